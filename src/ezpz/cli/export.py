"""Run ``ezpz export``: make the HDF5 file, or a CSV, of a run that ended without one or is still running."""

from __future__ import annotations

from pathlib import Path

from ezpz.cli import make_verb_parser
from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.visible import show_path

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_OPTIONS = (
    option("folders", nargs="+", metavar="DIR", help="a run folder, or one that holds runs: the newest"),
    option("--csv", action="store_true", help="comma-separated values, a line per row"),
    option("--nc", action="store_true", help="the HDF5 file under the name of netCDF files"),
    option("-o", "--output", metavar="FILE", type=Path, help="where to write (in the run folder, named after the run)"),
)
_ABOUT = "Also of a run that ended without its HDF5 file, or is still running."

_EXAMPLES = (("ezpz export DIR", "the HDF5 file"), ("ezpz export DIR --csv -o run.csv", "a CSV"))


def main(argv: Sequence[str]) -> int:
    """Export runs and return the exit code."""
    parser = make_verb_parser("export", _OPTIONS, _ABOUT, usage="DIR [DIR ...] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _export)


def _export(options: Namespace) -> int:
    if options.csv and options.nc:
        raise UsageError(
            "--csv and --nc name two formats (from the command line); expected one of them. Leave one out."
        )
    if options.output is not None and len(options.folders) > 1:
        raise UsageError(
            f"-o {options.output} is one file (from the command line); expected one DIR with it, not "
            f"{len(options.folders)}. Leave -o out, or export one run after another."
        )
    from ezpz.track.dataset import export_run
    from ezpz.track.terminal.choice import run_named

    for folder in [run_named(word) for word in options.folders]:
        show_path(str(export_run(folder, "csv" if options.csv else "nc" if options.nc else "h5", options.output)))
    return 0
