"""Ask what a stream can show, and write to one whose reader may leave."""

from __future__ import annotations

import os

from ezpz.broken_pipe import give_up
from ezpz.fields import Record, replace
from ezpz.view.terminal.width import columns
from ezpz.visible import LINES, encoding_of, flush, is_closed, is_terminal, use_color, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO


# A picture on a terminal that is drawn again in its own place.
#
# The screen is never cleared and no second one is opened, so that what stood above stays, and the last picture too. The
# cursor is never hidden: it waits below the picture, wherever Ctrl-C, Ctrl-Z or a kill comes.

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
        screen = look(self._stream, width=wide or None, piped=_UNKNOWN[0])
        return replace(screen, height=high or _UNKNOWN[1])

    def draw(self, lines: Sequence[str], screen: Screen) -> bool:
        """Draw lines over those of the last call.

        Args:
            lines: None wider than the screen, and at least one fewer than it is high.
            screen: The terminal as it is now.

        Returns:
            False if there is no reader any more.
        """
        # A terminal that became narrower has folded what it showed.
        up = sum(max(1, -(-columns(line) // screen.width)) for line in self._lines)
        up = min(up, screen.height - 1)
        start = f"\x1b[{up}A\r" if up else ""
        lines = [visible(line, colors=screen.color) for line in lines]
        # Each line clears its own rest, and the last clears what is below: clearing first would flicker.
        text = "\n".join(f"{line}\x1b[K" for line in lines)
        self._lines = list(lines)
        return _write(self._stream, f"{start}{text}\x1b[J", "replace")


PIPED = 100  # columns of a file or pipe: job logs are wide, and nothing folds them
LEAST = 12  # columns below which no plot can be read
_SAMPLE = "▝┤█▁…"
_NO_UTF8 = {"C", "POSIX"}


class Screen(Record):
    """What a stream can show.

    Attributes:
        width: Columns.
        height: Lines; 0 where nothing scrolls away, as in a file.
        ascii_only: It can encode nothing beyond ASCII.
        color: It takes colours.
    """

    width: int
    height: int = 0
    ascii_only: bool = False
    color: bool = False


def look(stream: TextIO, *, width: int | None = None, piped: int = PIPED) -> Screen:
    """Look at a stream.

    Args:
        stream: Where something is to be shown.
        width: Columns that the user asked for; they override ``COLUMNS``, which overrides the terminal's own.
        piped: Columns where none of these is known and it is no terminal.
    """
    own, height = _size(stream)
    text = os.environ.get("COLUMNS", "")
    wide = width or (int(text) if text.isascii() and text.isdigit() else 0) or own or piped
    return Screen(max(wide, LEAST), height, not _takes_blocks(stream), use_color(stream))


def _size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of a terminal; 0 for each unknown one (Open MPI gives ranks one without a size)."""
    try:
        size = os.get_terminal_size(stream.fileno()) if is_terminal(stream) else os.terminal_size((0, 0))
    except (OSError, ValueError, AttributeError, TypeError):  # no descriptor, or a closed one
        return 0, 0
    return size.columns, size.lines


def _takes_blocks(stream: TextIO) -> bool:
    # Python answers LC_ALL=C with UTF-8 (PEP 540); who typed it means ASCII.
    if os.environ.get("LC_ALL") in _NO_UTF8 and not os.environ.get("PYTHONIOENCODING"):
        return False
    try:
        _SAMPLE.encode(encoding_of(stream, "ascii"))
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(stream: TextIO | None, text: str, errors: str = "replace") -> bool:
    """Write a text, visible, and a newline, and see that it arrives.

    Args:
        stream: Where to.
        text: What; lines of a fixed width keep it by the default of the next one.
        errors: What becomes of letters that the stream cannot encode, as for `str.encode`.

    Returns:
        False if there is no reader: a closed stream, or a reader that has left (``| head``).

    Raises:
        OSError: The stream takes no more, as on a full disk; or it is an object of the program's own, and fails.
    """
    if stream is None or is_closed(stream):
        return False
    return _write(stream, visible(text, LINES, colors=use_color(stream)), errors)


def _write(stream: TextIO, text: str, errors: str) -> bool:
    encoding = encoding_of(stream)
    try:
        stream.write(text.encode(encoding, errors).decode(encoding) + "\n")
        flush(stream)
    except BrokenPipeError:
        give_up(stream)
        return False
    except OSError:
        raise
    except Exception as error:  # an object of the program's own may raise anything
        raise OSError(f"{type(error).__name__}: {error}") from error
    return True
