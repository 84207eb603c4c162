"""Terminals of a given width for programs under test, and all that they write there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


@contextmanager
def open_terminal(columns: int, rows: int = 50) -> Iterator[tuple[int, int]]:
    """Yield the descriptor of a screen and one to write to it; newlines stay as they are."""
    screen, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    modes = termios.tcgetattr(program)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(program, termios.TCSANOW, modes)
    try:
        yield screen, program
    finally:
        os.close(program)
        os.close(screen)


def shown_by(run: subprocess.Popen[bytes], screen: int, seconds: float) -> str:
    """Return all that a program has shown when it ends, which takes so many seconds at most; then it is killed."""
    seen, deadline = b"", time.monotonic() + seconds
    os.set_blocking(screen, False)
    with run:
        while time.monotonic() < deadline:
            ended = run.poll() is not None
            try:
                seen += os.read(screen, 65536)
            except BlockingIOError:
                if ended:
                    break
                time.sleep(0.02)
        else:
            run.kill()
    return seen.decode()


def screen_after(written: str, columns: int) -> list[str]:
    r"""Return the lines that a terminal shows when all of this was written to it, those that it scrolled away too.

    It knows newlines, carriage returns, ``\x1b[K``, colours and modes, and moves to the next line when a letter comes
    behind a full one, as terminals do.
    """
    lines, row, column = [[]], 0, 0
    for part in re.findall(r"\x1b\[K|\x1b\[[0-9;]*m|\x1b\[\?[0-9;]*[hl]|[^\x1b]", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
        elif part == "\x1b[K":
            del lines[row][column:]
        elif part[0] != "\x1b":
            if column == columns:
                row, column = row + 1, 0
            lines += [[] for _ in range(len(lines), row + 1)]
            lines[row] += " " * (column - len(lines[row]))
            lines[row][column : column + 1] = part
            column += 1
        lines += [[] for _ in range(len(lines), row + 1)]
    return ["".join(line).rstrip() for line in lines]
