"""``ezpz export``: make the HDF5 file, or a CSV, of a run that ended without one or still goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import EzpzError, end_with

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Export runs and return the exit code."""
    parser = argparse.ArgumentParser(prog="ezpz export", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run folder")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv", dest="form", action="store_const", const="csv", help="comma-separated values, a line per row"
    )
    form.add_argument(
        "--nc", dest="form", action="store_const", const="nc", help="the HDF5 file under the name of netCDF files"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where to write (in the run folder, named after the run)"
    )
    parser.set_defaults(form="h5")
    options = parser.parse_args(argv)
    if options.output is not None and len(options.folders) > 1:
        parser.error(f"-o {options.output} is one file; expected one DIR with it, not {len(options.folders)}")
    from ezpz.track.dataset import export_run

    try:
        for folder in options.folders:
            print(export_run(folder, options.form, options.output))
    except EzpzError as error:
        return end_with(error)
    return 0
