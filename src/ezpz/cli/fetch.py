"""Run ``ezpz fetch``: download data sets for trainers before a job that has no network."""

from __future__ import annotations

import sys

from ezpz.cli import make_verb_parser
from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.tables import hanging
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from ezpz.train.data.download import DataSet

_OPTIONS = (
    option("names", nargs="*", metavar="NAME", help="a data set of the list"),
    option(
        "--folder",
        metavar="D",
        help="the folder that gets a folder per data set; by default $EZPZ_DATA, else $XDG_CACHE_HOME/ezpz/data, else "
        "~/.cache/ezpz/data",
    ),
    option("--list", action="store_true", help="show the data sets, their sizes and whether they are here"),
)
_ABOUT = """\
Data sets are downloaded and proved by their sums, and the place of each is printed. What is there and right is
kept, what is wrong is replaced. Type it on a login host when the hosts of jobs have no network. Proxies are taken
from the environment (https_proxy, http_proxy, no_proxy)."""

_EXAMPLES = (
    ("ezpz fetch --list", "all data sets"),
    ("ezpz fetch mnist cifar10", "two of them"),
    ("ezpz fetch mnist --folder /data", "into a folder of your group"),
)


def main(argv: Sequence[str]) -> int:
    """Fetch or list data sets and return the exit code."""
    parser = make_verb_parser("fetch", _OPTIONS, _ABOUT, usage="[NAME ...] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _answer)


def _answer(options: Namespace) -> int:
    if not options.list:
        _fetch(options.names, options.folder)
    elif options.names:
        raise UsageError(f"--list shows all data sets (from the command line); expected no {options.names[0]!r}.")
    else:
        show("\n".join(_table(options.folder)))
    return 0


def _fetch(names: Sequence[str], folder: str | None) -> None:
    from ezpz.train.data.download import SHIPPED, fetch, named

    if not names:
        raise UsageError("nothing to fetch (from the command line); expected a NAME. `ezpz fetch --list` shows them.")
    for name in names:  # a misspelt one is refused before any is downloaded
        if name not in SHIPPED:
            named(name, "the command line")
    for name in names:
        try:
            place = fetch(name, folder, progress=_Progress())
        finally:
            _Progress.end()
        show(f"{name}: {place}{' (ships with ezpz)' if name in SHIPPED else ''}")


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
    from ezpz.track.terminal.screen import look
    from ezpz.train.data.download import CATALOG, SHIPPED, data_folder

    root = data_folder(folder)
    rows = [(name, f"{data.size / 1e6:.1f} MB", _state(data, folder), data.about) for name, data in CATALOG.items()]
    rows += [(name, "", "shipped", about) for name, (_, about) in SHIPPED.items()]
    width = look(sys.stdout).width
    for name, size, state, about in rows:
        yield from hanging(f"{name:<14} {size:>9}  {state:<9} ", about, width)
    yield ""
    yield from hanging("Data folder: ", str(root), width)


def _state(dataset: DataSet, folder: str | None) -> str:
    """Return whether the files are there with their sizes; their sums would take seconds."""
    from ezpz.train.data.download import data_folder

    place = data_folder(folder) / dataset.name
    there = [remote for remote in dataset.files if (place / remote.name).is_file()]
    if not there:
        return "not here"
    right = [remote for remote in there if (place / remote.name).stat().st_size == remote.size]
    return "here" if len(right) == len(dataset.files) else "in part"
