"""Say what a reader that leaves, as in ``ezpz runs | head -1``, does to a program of ours: it ends silently, with 141.

That is 128 + SIGPIPE, as a shell gives it for ``yes | head -1``. Python itself prints a traceback, or fails on the same
bytes again at its end and turns the exit code into 120, as it does on a full disk; the documentation of `signal` gives
the remedy under "Note on SIGPIPE".
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

    Where stdout takes no more, as on a full disk, one line reports it, and the code is at least 1.

    Raises:
        OSError: It was another file, pipe or connection.
    """
    code = 0
    try:
        try:
            code = work()
        finally:
            _flush()
    except BrokenPipeError:
        left = [stream for stream in (sys.stdout, sys.stderr) if _has_left(stream)]
        if not left:
            raise
        for stream in left:
            give_up(stream)
        return ENDED
    except OSError as error:
        if error.filename is not None or not _is_stuck(sys.stdout):
            raise
        give_up(sys.stdout)
        _complain(f"cannot write to stdout: {error.strerror}; expected room for what is printed")
        return code or 1
    return code


def give_up(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: its reader has left, or its file was closed."""
    try:
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        if null != target:  # a closed descriptor is the first that the system gives out again
            os.dup2(null, target)
            os.close(null)
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # it has no descriptor


def _flush() -> None:
    """Write what stdout still holds; what stderr could not write was secondary, and changes no exit code: Python
    would try again at its end, and end with 120.
    """
    try:
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.flush()
    except BrokenPipeError:
        pass  # stdout below decides
    except OSError:
        give_up(sys.stderr)
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _is_stuck(stream: TextIO | None) -> bool:
    """Tell whether the file of a stream takes nothing."""
    try:
        if stream is not None and not stream.closed:
            if getattr(stream, "write_through", False):  # PYTHONUNBUFFERED: it holds nothing to try again with
                stream.write("\n")
            stream.flush()
    except OSError:
        return True
    return False


def _complain(text: str) -> None:
    try:
        print(f"ezpz: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # nor does stderr take anything: the exit code tells


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
