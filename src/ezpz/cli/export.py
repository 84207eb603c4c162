"""Run ``ezpz export``: make the HDF5 file, or a CSV, of a run that ended without one or is still running."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ezpz.cli.standard_output import NAME, print_file
from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.verbs import RUN_HELP, make_verb_parser
from ezpz.visible import show_path

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_OPTIONS = (
    option("runs", nargs="*", metavar="RUN", help=RUN_HELP),
    option("--csv", action="store_true", help="comma-separated values, a line per row"),
    option("--nc", action="store_true", help="the HDF5 file under the name of netCDF files"),
    option(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="where to write, - for standard output (in the run folder, named after the run)",
    ),
)
_ABOUT = "Also of a run that ended without its HDF5 file, or is still running."

_EXAMPLES = (
    ("ezpz export", "the HDF5 file of the newest run"),
    ("ezpz export train --csv -o run.csv", "a CSV"),
    ("ezpz export --csv -o - | head", "a CSV on standard output"),
)


def main(argv: Sequence[str]) -> int:
    """Export runs and return the exit code."""
    parser = make_verb_parser("export", _OPTIONS, _ABOUT, usage="[RUN ...] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _export)


def _export(options: Namespace) -> int:
    if options.csv and options.nc:
        raise UsageError(
            "--csv and --nc name two formats (from the command line); expected one of them. Leave one out."
        )
    if options.output is not None and len(options.runs) > 1:
        raise UsageError(
            f"-o {options.output} is one file (from the command line); expected one RUN with it, not "
            f"{len(options.runs)}. Leave -o out, or export one run after another."
        )
    from ezpz.track.dataset import export_run
    from ezpz.track.named import run_named

    form = "csv" if options.csv else "nc" if options.nc else "h5"
    for folder in [run_named(word) for word in options.runs or [None]]:
        if str(options.output) == NAME:
            print_file(partial(export_run, folder, form), is_text=options.csv)
        else:
            show_path(str(export_run(folder, form, options.output)))
    return 0
