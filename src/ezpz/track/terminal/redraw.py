"""A picture on a terminal that is drawn again in its own place.

The screen is never cleared and no second one is opened, so that what stood above stays, and the last picture too. The
cursor is never hidden: it waits below the picture, wherever Ctrl-C, Ctrl-Z or a kill comes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from ezpz.track.terminal.screen import Screen, look, say
from ezpz.track.terminal.width import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Picture"]

_UNKNOWN = (80, 24)  # of a terminal that has no size


class Picture:
    """What was drawn last, and how to draw over it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: Sequence[str] = ()

    def screen(self) -> Screen:
        """Return what the terminal can show now. Its own size counts, not ``COLUMNS``, which does not follow it."""
        try:
            wide, high = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            wide, high = 0, 0
        found = look(self._stream, width=wide or None, piped=_UNKNOWN[0])
        return found._replace(height=high or _UNKNOWN[1])

    def draw(self, lines: Sequence[str], screen: Screen) -> bool:
        """Draw lines over those of the last call.

        Args:
            lines: None wider than the screen, and at least one fewer than it is high.
            screen: The terminal as it is now.

        Returns:
            False if nobody reads any more.
        """
        # A terminal that became narrower has folded what it showed.
        up = sum(max(1, -(-columns(line) // screen.width)) for line in self._lines)
        up = min(up, screen.height - 1)
        start = f"\x1b[{up}A\r" if up else ""
        # Each line clears its own rest, and the last clears what is below: clearing first would flicker.
        text = "\n".join(f"{line}\x1b[K" for line in lines)
        self._lines = list(lines)
        return say(self._stream, f"{start}{text}\x1b[J")
