"""Write a file to standard output: what ``-o -`` means to the verbs that make one."""

from __future__ import annotations

import sys
from pathlib import Path

from ezpz.errors import UsageError

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "-"


def print_file(write: Callable[[Path], object], *, is_text: bool) -> None:
    """Print the bytes of a file, which is written in a folder of its own first, because some forms need to seek.

    Args:
        write: Writes the file at a path.
        is_text: Whether a terminal can show it.

    Raises:
        UsageError: A terminal would get what is no text.
        OSError: The reader has left, or a disk is full.
    """
    from shutil import copyfileobj
    from tempfile import TemporaryDirectory

    from ezpz.visible import is_terminal

    if not is_text and is_terminal(sys.stdout):
        raise UsageError(
            "-o - (from the command line) would write bytes that are no text on this terminal; expected a file or a "
            "pipe. Type `-o FILE`, or `--csv`."
        )
    with TemporaryDirectory(prefix="ezpz-") as folder:
        path = Path(folder, "output")
        write(path)
        sys.stdout.flush()
        with path.open("rb") as file:
            copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def refuse_standard_output(option: str, value: object, expected: str) -> None:
    """Refuse ``-`` where an option names what cannot be printed.

    Raises:
        UsageError: It is ``-``.
    """
    if str(value) == NAME:
        raise UsageError(
            f"{option} - (from the command line) cannot go to standard output; expected {expected}. Name another one."
        )
