"""Set words in columns."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_NARROWEST = 16  # columns of a text beside a start that leaves it less


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Return a line for each row of words, every column as wide as its longest word.

    Args:
        rows: The words, as many in each row; the first row may be the titles.
        right: Numbers of the columns that are flush right.
        gap: The text between two columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            word.rjust(width) if number in right else word.ljust(width)
            for number, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def hanging(start: str, text: str, width: int) -> Iterator[str]:
    """Yield a start with a text after it, in lines of at most ``width`` columns; the text keeps its own column.

    Args:
        start: The text in front of the first line.
        text: Words; one that is longer than a line is broken, unless there is no room for it at all.
        width: Columns.
    """
    from textwrap import wrap

    room = max(width - len(start), _NARROWEST)
    first, *others = wrap(text, room, break_on_hyphens=False) or [""]
    yield f"{start}{first}".rstrip()
    yield from (f"{'':<{len(start)}}{other}" for other in others)
