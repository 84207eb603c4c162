"""Text on stdout, whatever stdout can encode and whoever reads it."""

from __future__ import annotations

import os
import sys

__all__ = ["write_out"]


def write_out(text: str) -> None:
    """Print to stdout; a reader that has left (``| head``) is no error, and the exit code stays."""
    if sys.stdout is None:
        return
    try:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)  # Python would fail on the same bytes again at its end
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
