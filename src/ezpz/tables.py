"""Set words in tables and lines. What is piped is never cut: only a terminal has a width."""

from __future__ import annotations

import sys

from ezpz.fields import Record
from ezpz.visible import encoding_of, is_terminal, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any

USUAL = 80  # columns of text that is no table
_NARROWEST = 16  # columns of a text beside a start that leaves it less


class Column(Record):
    """A column of a table: its title, what returns its words for an item, and whether it is flush right.

    Those with ``yields`` from 1 on make room, in that order, for the last column of a table that is too wide.
    """

    title: str
    text: Callable[[Any], str]
    is_right: bool = False
    yields: int = 0


def table(columns: Sequence[Column], items: Iterable[Any], width: int | None = None) -> list[list[str]]:
    """Return the line of titles, and the lines of each item.

    The last column names what a user types next, so its words stay whole: others make room for it, and where even that
    is not enough they have a second line. All words are made visible. The width is that of a terminal; None for none.
    """
    rows = [[column.title for column in columns]]
    rows += [[visible(column.text(item)) for column in columns] for item in items]
    kept, room = list(range(len(columns))), sys.maxsize
    if width is not None:
        yielding = sorted((number for number in kept if columns[number].yields), key=lambda each: columns[each].yields)
        most = _room([number for number in kept if number not in yielding], rows, width)
        longest = max((len(row[-1]) for row in rows[1:] if len(row[-1]) <= most), default=0)
        while yielding and longest > _room(kept, rows, width):
            kept.remove(yielding.pop(0))
        room = _room(kept, rows, width)
    cells = [[*(row[number] for number in kept[:-1]), row[-1] if len(row[-1]) <= room else ""] for row in rows]
    lines = aligned(cells, {place for place, number in enumerate(kept) if columns[number].is_right})
    return [[line, *([f"    {row[-1]}"] if len(row[-1]) > room else [])] for line, row in zip(lines, rows, strict=True)]


def _room(kept: Sequence[int], rows: Sequence[Sequence[str]], width: int) -> int:
    """Return how many columns the others that are kept leave the last one."""
    return width - sum(2 + max(len(row[number]) for row in rows) for number in kept[:-1])


def aligned(
    rows: Sequence[Sequence[str]], right: Collection[int] = (), measure: Callable[[str], int] = len
) -> list[str]:
    """Return a line for each row of words, columns as wide as their longest word; some of them flush right."""
    widths = [max(map(measure, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - measure(word)) for word, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, gaps, strict=True))
        lines.append("  ".join(gap + word if at in right else word + gap for at, (word, gap) in pairs).rstrip())
    return lines


def wrapped(text: str, indent: str = "", more: str = "  ", width: int = USUAL, *, breaks: bool = True) -> list[str]:
    """Return lines that begin with ``indent``, further ones with ``more`` too; ``breaks`` cuts long words."""
    from textwrap import wrap  # 5 ms that a mistake and --json need not

    later = indent + more
    return wrap(
        text, width, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False, break_long_words=breaks
    )


def hanging(start: str, text: str, width: int = USUAL) -> Iterator[str]:
    """Yield a start with a text after it, in lines of at most ``width`` columns; the text keeps its own column."""
    first, *others = wrapped(text, more="", width=max(width - len(start), _NARROWEST)) or [""]
    yield f"{start}{first}".rstrip()
    yield from (f"{'':<{len(start)}}{other}" for other in others)


def screen_width(least: int = USUAL) -> int | None:
    """Return the columns of the terminal that is stdout, at least so many; None where stdout is none."""
    if not is_terminal(sys.stdout):
        return None
    from shutil import get_terminal_size

    return max(least, get_terminal_size().columns)


def or_dash(value: float | str | None) -> str:
    """Return a value as a cell shows it: four digits of a float, a dash for None."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def cut(line: str, width: int | None) -> str:
    """Return a line, without its end where it has more than ``width`` columns."""
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def bar(share: float, width: int) -> str:
    """Return a bar that is so wide at a share of 1, of blocks where stdout can take them."""
    try:
        "█".encode(encoding_of(sys.stdout, "ascii"))
    except (UnicodeEncodeError, LookupError):
        return "#" * round(width * share)
    return "█" * round(width * share)
