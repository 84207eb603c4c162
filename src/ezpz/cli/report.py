"""``ezpz report``: a run as one HTML page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import EzpzError, UsageError, end_with

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_ABOUT = """\
Write a run's page: curves, throughput, where a step's time goes, slow ranks, start-up, configuration. One file that
needs no network, also of a run that goes on or was killed."""


def main(argv: Sequence[str]) -> int:
    """Write the page, print where it is, and return the exit code."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    parser = ArgumentParser(prog="ezpz report", description=_ABOUT, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="the run folder, or its journal")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: report.html in the run folder)")
    options = parser.parse_args(argv)
    try:
        print(_write(options.dir, options.output), flush=True)
    except EzpzError as error:
        return end_with(error)
    except BrokenPipeError:  # the page is written; who should have read its name has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _write(folder: str, output: str | None) -> Path:
    from ezpz.track.report import write_report
    from ezpz.track.run import open_run

    run = open_run(folder)
    path = run.folder / "report.html" if output is None else Path(output).expanduser().absolute()
    source = "the run folder" if output is None else "--output"
    try:
        return write_report(run, path)
    except OSError as error:
        raise UsageError(
            f"cannot write the report: {path}: {error.strerror or error} (from {source}); expected a file in a folder "
            "that can be written. Use for example -o report.html."
        ) from error
