"""Signals as something to wait for: each that comes makes a descriptor readable, and none is lost between two looks."""

from __future__ import annotations

import os
import signal
from typing import Any

__all__ = ["ENDING", "Signals"]

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEARD = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class Signals:
    """What has been sent to this process since the last look; a context manager, which gives the signals back."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:  # noqa: PYI034  # Self needs Python 3.11
        for end in (self._write, self._read):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _HEARD:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come."""
        return self._read

    def come(self) -> bytes:
        """Return the numbers of the signals that have come."""
        return os.read(self._read, 4096)
