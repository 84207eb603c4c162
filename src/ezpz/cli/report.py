"""Run ``ezpz report``: write a run as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path

from ezpz.broken_pipe import give_up
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
    option("run", nargs="?", metavar="RUN", help=RUN_HELP),
    option(
        "-o",
        "--output",
        metavar="FILE",
        help="the page, - for standard output (default: report.html in the run folder)",
    ),
    option(
        "--public",
        action="store_true",
        help="leave out hosts, paths, users and arguments (default file: report-public.html)",
    ),
)
_ABOUT = """\
Curves, throughput, where a step's time goes, slow ranks, start-up, configuration. One file that needs no network,
also of a run that is still running or was killed."""

_EXAMPLES = (
    ("ezpz report outputs/train/2026-11-20-165036", "report.html in that folder"),
    ("ezpz report train --public -o page.html", "one to hand to others"),
    ("ezpz open train", "the same, and shown in a browser"),
)


def main(argv: Sequence[str]) -> int:
    """Write the page, print where it is, and return the exit code."""
    parser = make_verb_parser("report", _OPTIONS, _ABOUT, usage="[RUN] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _report)


def _report(options: Namespace) -> int:
    try:
        path = _write(options.run, options.output, public=options.public)
        if path is not None:
            show_path(str(path))
    except BrokenPipeError:  # the page is written; who should have read its name has left
        give_up(sys.stdout)
    return 0


def _write(word: str | None, output: str | None, *, public: bool) -> Path | None:
    from ezpz.track.named import run_named
    from ezpz.track.run_reader import open_run
    from ezpz.view.report import write_report

    run = open_run(run_named(word))
    if output == NAME:
        print_file(lambda path: write_report(run, path, public=public), is_text=True)
        return None
    path = None if output is None else Path(output).expanduser().absolute()
    source = "the run folder" if output is None else "--output"
    try:
        return write_report(run, path, public=public)
    except OSError as error:
        raise UsageError(
            f"cannot write the report: {path or run.folder}: {error.strerror or error} (from {source}); "
            "expected a file in a folder that can be written. Use for example -o report.html."
        ) from error
