"""The command line of ``launch``: options first, then the command, which is never looked into."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Wishes", "parse"]

_EPILOG = """\
examples:
  launch python3 -m ezpz.test_dist        one rank per device, or a few without devices
  launch -n 4 --ppn 2 python3 train.py    four ranks on two hosts
  launch --dry-run python3 train.py       print the line that would run, and run nothing

Everything after the first word that is not an option, or after --, is the command.
"""


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        ranks: Total number of ranks, or None.
        ranks_origin: ``-n`` or ``WORLD_SIZE``.
        per_host: Ranks per host, or None.
        hostfile: Path of the user's host file, or empty.
        dry_run: Print the line instead of running it.
        command: The program and its arguments; empty for a bare ``launch``.
    """

    ranks: int | None
    ranks_origin: str
    per_host: int | None
    hostfile: str
    dry_run: bool
    command: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. Run `launch --help` for the options.")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> _Parser:
    parser = _Parser(
        prog="launch",
        usage="launch [options] [--] COMMAND [ARG ...]",
        description="Start COMMAND once per rank, on every host and device of the job.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", "--np", "-np", dest="ranks", type=_count, metavar="N", help="total number of ranks")
    parser.add_argument("--ppn", "-ppn", dest="per_host", type=_count, metavar="N", help="ranks per host")
    parser.add_argument("--hostfile", default="", metavar="FILE", help="hosts to use instead of the scheduler's")
    parser.add_argument("--dry-run", action="store_true", help="print the line that would run, and run nothing")
    return parser


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Wishes:
    """Read the command line.

    ``WORLD_SIZE=12 launch …`` without ``RANK`` is a wish for 12 ranks, weaker than ``-n``; with ``RANK`` it is a
    leftover of an outer launcher and ignored.

    Raises:
        UsageError: An option is unknown or its value is not as expected.
        SystemExit: After ``--help``, with 0.
    """
    parser = _parser()
    options, command = _split(list(argv), parser)
    parsed = parser.parse_args(options)
    ranks, origin = parsed.ranks, "-n"
    wish = environ.get("WORLD_SIZE", "")
    if ranks is None and wish and "RANK" not in environ:
        try:
            ranks, origin = _count(wish), "WORLD_SIZE"
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"argument WORLD_SIZE: {error} (from the environment). Run `unset WORLD_SIZE`.") from None
    return Wishes(ranks, origin, parsed.per_host, parsed.hostfile, parsed.dry_run, tuple(command))


def _split(argv: list[str], parser: _Parser) -> tuple[list[str], list[str]]:
    """Part our options from the command at the first word that is neither an option nor an option's value."""
    takes_value = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}  # noqa: SLF001  # argparse offers no other list
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return argv[:index], argv[index + 1 :]
        if not word.startswith("-"):
            break
        name = word.split("=", 1)[0]
        if name not in takes_value:
            raise UsageError(_unknown(word, list(takes_value)))
        index += 2 if takes_value[name] and "=" not in word else 1
    return argv[:index], argv[index:]


def _unknown(word: str, names: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word.split("=", 1)[0], names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"unknown option {word} (from the command line).{hint} Options of the command come after it: `launch [options] COMMAND {word}`."
