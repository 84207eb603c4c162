"""The thread that puts a journal on the disk once a second, so that no step of the training waits for a disk."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Keeper"]

_EVERY = 1.0  # seconds: what a crash of the host may cost


class Keeper:
    """Calls a function once a second while there is something to do.

    The thread starts with the first row, so a history that records nothing has none, and ends with the program.

    Attributes:
        due: Whether there is something to do; set by the writer.
        is_on: Whether `start` was called.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self.due = False
        self.is_on = False
        self._sync = sync
        self._end = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        self.is_on = True
        self._thread = Thread(target=self._run, name="ezpz-journal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # Python is ending and starts no threads any more: closing the journal syncs it
            self._thread = None

    def _run(self) -> None:
        while not self._end.wait(_EVERY):
            if self.due:
                self.due = False  # before the sync: a row that is written meanwhile is due again
                self._sync()

    def end(self) -> None:
        """Let the thread end, and wait for a sync that is under way."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
