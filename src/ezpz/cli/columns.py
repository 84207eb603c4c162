"""Set words in columns."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Return a line for each row of words, every column as wide as its longest word.

    Args:
        rows: The words, as many in each row; the first row may be the titles.
        right: Numbers of the columns that are flush right.
        gap: What stands between two columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            word.rjust(width) if number in right else word.ljust(width)
            for number, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
