"""``ezpz fetch``: data sets for trainers, brought ahead to where jobs have no network."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from ezpz.cli_parser import VerbParser
from ezpz.errors import EzpzError, UsageError, end_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.train.data.download import DataSet

__all__ = ["main"]

_HELP = """\
usage: ezpz fetch NAME ... [--folder D]
       ezpz fetch --list [--folder D]

Download data sets, prove them by their sums, and print where they lie. What is there and right is kept, what is wrong is
replaced. Type it on a login host when the hosts of jobs have no network. Proxies are taken from the environment
(https_proxy, http_proxy, no_proxy).

  --folder D  the folder that gets a folder per data set; by default $EZPZ_DATA, else $XDG_CACHE_HOME/ezpz/data,
              else ~/.cache/ezpz/data
  --list      show the data sets, their sizes and whether they are here
"""


def main(argv: Sequence[str]) -> int:
    """Fetch or list data sets and return the exit code."""
    try:
        parser = VerbParser("ezpz fetch")
        parser.add_argument("-h", "--help", action="store_true")
        parser.add_argument("names", nargs="*")
        parser.add_argument("--folder")
        parser.add_argument("--list", action="store_true")
        wishes = parser.parse_intermixed_args(list(argv))
        if wishes.help:
            print(_HELP, end="")
        elif wishes.list:
            if wishes.names:
                raise UsageError(
                    f"--list shows all data sets (from the command line); expected no {wishes.names[0]!r}."
                )
            print("\n".join(_table(wishes.folder)))
        else:
            _fetch(wishes.names, wishes.folder)
    except EzpzError as error:
        return end_with(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _fetch(names: Sequence[str], folder: str | None) -> None:
    from ezpz.train.data.download import SHIPPED, fetch, named

    if not names:
        raise UsageError("nothing to fetch (from the command line); expected a NAME. `ezpz fetch --list` shows them.")
    for name in names:  # a misspelt one is told before any is downloaded
        if name not in SHIPPED:
            named(name, "the command line")
    for name in names:
        try:
            place = fetch(name, folder, progress=_Progress())
        finally:
            _Progress.end()
        print(f"{name}: {place}{' (ships with ezpz)' if name in SHIPPED else ''}", flush=True)


class _Progress:
    """One line on a terminal's stderr that shows how far a file is; nothing elsewhere."""

    shown = ""

    def __call__(self, file: str, size: int, of: int) -> None:
        """Show a new percentage."""
        text = f"{file}  {100 * size // of:3d} % of {of / 1e6:.1f} MB"
        if text != _Progress.shown and sys.stderr.isatty():
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            _Progress.shown = text

    @classmethod
    def end(cls) -> None:
        """Clear the line."""
        if cls.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            cls.shown = ""


def _table(folder: str | None) -> Iterator[str]:
    from ezpz.train.data.download import CATALOG, SHIPPED, data_folder

    root = data_folder(folder)
    rows = [(name, f"{data.size / 1e6:.1f} MB", _state(data, folder), data.about) for name, data in CATALOG.items()]
    rows += [(name, "", "shipped", about) for name, (_, about) in SHIPPED.items()]
    for name, size, state, about in rows:
        yield f"{name:<14} {size:>9}  {state:<9} {about}"
    yield f"\nData folder: {root}"


def _state(dataset: DataSet, folder: str | None) -> str:
    """Return whether the files are there with their sizes; their sums would take seconds."""
    from ezpz.train.data.download import data_folder

    place = data_folder(folder) / dataset.name
    there = [remote for remote in dataset.files if (place / remote.name).is_file()]
    if not there:
        return "not here"
    right = [remote for remote in there if (place / remote.name).stat().st_size == remote.size]
    return "here" if len(right) == len(dataset.files) else "in part"
