"""Arrange plots on a screen: side by side where there is room, one below the other where not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ezpz.broken_pipe import give_up
from ezpz.view.terminal.screen import Screen, look, say
from ezpz.view.terminal.textplot import WIDTH, Drawing
from ezpz.view.terminal.width import columns
from ezpz.visible import is_closed

if TYPE_CHECKING:
    from collections.abc import Sequence

_TWO, _THREE = 120, 180  # columns from which on so many plots stand side by side
_GAP = 2
_LOWEST, _HIGHEST = 10, 25  # lines of a plot
_KEPT = 2  # lines of a terminal that a plot leaves free: the headline and the prompt


def lay_out(screen: Screen, number: int) -> tuple[int, int]:
    """Return how many plots stand side by side, at most ``number``, and how many columns each has."""
    side = 1 + (screen.width >= _TWO) + (screen.width >= _THREE)
    side = max(1, min(side, number))
    return side, (screen.width - _GAP * (side - 1)) // side


def height_for(screen: Screen, width: int) -> int:
    """Return the lines of a plot of ``width`` columns: a third of that, and no more than a terminal shows at once."""
    height = min(_HIGHEST, max(_LOWEST, width // 3))
    return height if not screen.height else max(_LOWEST - 2, min(height, screen.height - _KEPT))


def drawing(screen: Screen, number: int, *, height: int = 0, log: bool = False) -> Drawing:
    """Return how each of ``number`` plots is to be drawn on a screen."""
    _, width = lay_out(screen, number)
    return Drawing(width, height or height_for(screen, width), True, screen.ascii_only, screen.color, log)


def arrange(blocks: Sequence[Sequence[str]], side: int) -> list[str]:
    """Put blocks of lines side by side.

    Args:
        blocks: Each of lines that take the same columns.
        side: How many stand beside one another.

    Returns:
        Lines, those of shorter blocks filled up with blanks.
    """
    lines = []
    for start in range(0, len(blocks), side):
        row = blocks[start : start + side]
        for number in range(max(map(len, row))):
            parts = [block[number] if number < len(block) else " " * columns(block[0]) for block in row]
            lines.append((" " * _GAP).join(parts))
    return lines


def show_blocks(blocks: Sequence[Sequence[str]], screen: Screen) -> bool:
    """Print blocks made for a screen to stdout; without a reader, do nothing and return False."""
    side, _ = lay_out(screen, len(blocks))
    try:
        return not blocks or say(sys.stdout, "\n".join(arrange(blocks, side)))
    except OSError:  # a full disk ends no training; the files that are kept report that it is full
        give_up(sys.stdout)
        return False


def look_at_stdout() -> Screen:
    """Return what a program's own output can show at the end of its run.

    A rank's output goes through its launcher, and somebody reads that on a terminal of 80 columns: where its width
    is not known, plots are as wide as the saved ones.
    """
    return Screen(WIDTH) if is_closed(sys.stdout) else look(sys.stdout, piped=WIDTH)
