"""Run ``ezpz fetch``: download data sets for trainers before a job that has no network."""

from __future__ import annotations

import sys

from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.tables import hanging
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

_OPTIONS = (
    option("names", nargs="*", metavar="NAME", help="a data set of the list, or hf:NAME"),
    option("--folder", metavar="D", help="where they are kept; by default $HF_HOME, else ~/.cache/huggingface"),
    option("--list", action="store_true", help="show the data sets that have a name of their own"),
)
_ABOUT = """\
Data sets are downloaded by the package datasets, and the place of each is printed. Type it on a login host when the
hosts of jobs have no network, with the same HF_HOME or --folder (a trainer's --data_dir) as the job. Proxies are taken
from the environment (https_proxy, no_proxy)."""

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
        show("\n".join(_table()))
    return 0


def _fetch(names: Sequence[str], folder: str | None) -> None:
    from ezpz.train.data.catalog import SHIPPED, fetch, hub_name

    if not names:
        raise UsageError("nothing to fetch (from the command line); expected a NAME. `ezpz fetch --list` shows them.")
    for name in names:  # a misspelt one is refused before any is downloaded
        if name not in SHIPPED:
            hub_name(name, "the command line")
    for name in names:
        show(f"{name}: {fetch(name, folder)}{' (ships with ezpz)' if name in SHIPPED else ''}")


def _table() -> Iterator[str]:
    from ezpz.train.data.catalog import HUB, SHIPPED
    from ezpz.view.terminal.screen import look

    rows = [(name, f"hf:{long}", about) for name, (long, about) in HUB.items()]
    rows += [(name, "ships with ezpz", about) for name, (_, about) in SHIPPED.items()]
    width = look(sys.stdout).width
    for name, source, about in rows:
        yield from hanging(f"{name:<14} ", f"{about}; {source}", width)
