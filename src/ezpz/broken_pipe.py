"""Say what a reader that leaves, as in ``ezpz runs | head -1``, does to a program of ours: it ends silently, with 141.

That is 128 + SIGPIPE, as a shell gives it for ``yes | head -1``. Python itself prints a traceback, or fails on the same
bytes again at its end and turns the exit code into 120; the documentation of `signal` gives the remedy under "Note on
SIGPIPE".
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

ENDED = 128 + 13  # SIGPIPE is 13 everywhere


def ending_with_the_reader(work: Callable[[], int]) -> int:
    """Do the work of a program and return its exit code; 141 where who reads stdout or stderr has left before its end.

    Raises:
        BrokenPipeError: It was another pipe or connection.
    """
    try:
        try:
            return work()
        finally:
            _flush()
    except BrokenPipeError:
        left = [stream for stream in (sys.stdout, sys.stderr) if _has_left(stream)]
        if not left:
            raise
        for stream in left:
            give_up(stream)
        return ENDED


def give_up(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: its reader has left, or its file was closed."""
    try:
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        if null != target:  # a closed descriptor is the first that the system gives out again
            os.dup2(null, target)
            os.close(null)
    except (OSError, ValueError):
        pass  # it has no descriptor


def _flush() -> None:
    """Write what stdout still holds; what stderr could not write was said by the way, and changes no exit code: Python
    would try again at its end, and end with 120.
    """
    try:
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.flush()
    except BrokenPipeError:
        pass  # told below, where it matters
    except OSError:
        give_up(sys.stderr)
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        pass  # a full disk: Python tells it at its end


def _has_left(stream: TextIO | None) -> bool:
    from select import POLLERR, POLLHUP, poll

    if stream is None:
        return False

    try:
        asked = poll()
        asked.register(stream.fileno(), 0)
        return any(event & (POLLERR | POLLHUP) for _, event in asked.poll(0))
    except (OSError, ValueError):
        return False
