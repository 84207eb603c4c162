"""Measure what steps wait for beside their own work: batches, the garbage collector, and the recording of rows.

`measure` looks at every DataLoader of torch in this process, in a loop of one's own too, and at Python's collector.
What was found goes into the journal with the seconds of sections (`ezpz.progress.take_spent`), as ``data``,
``garbage collection`` and ``logging``; ``data rows`` is a list of one number, among how many steps the waits were: 50
that wait alike, or one of 50 that waits for a batch of a new epoch. A step costs 0.5 µs more. ``EZPZ_STEP_PARTS=0``
measures nothing of it.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from threading import get_ident, main_thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from ezpz.progress import in_block, spend

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COLLECTION", "DATA", "LOGGING", "ROWS_OF_DATA", "Pauses", "is_off", "measure", "pauses"]

DATA, COLLECTION, LOGGING = "data", "garbage collection", "logging"
ROWS_OF_DATA = "data rows"
_LEAST = 0.001  # seconds of a collection: shorter ones are a matter of the step
_SLOW = 0.005  # seconds of an update from which on it is worth a word
_LOADERS = "torch.utils.data.dataloader"


class Pauses:
    """What was measured in this process and is not recorded yet.

    Attributes:
        waited: Seconds that the main thread has waited for batches outside of sections.
        squares: The sum of their squares.
        collected: Seconds of all long collections so far.
        workers: Of the DataLoader that was asked last; None before the first.
        is_measured: Whether loaders and the collector are looked at.
    """

    def __init__(self) -> None:
        self.waited = self.squares = self.collected = 0.0
        self.workers: int | None = None
        self.is_measured = False
        self._begun = 0.0

    def add_wait(self, seconds: float) -> None:
        """Take a wait for a batch."""
        self.waited += seconds
        self.squares += seconds * seconds

    def take_waited(self) -> tuple[float, int]:
        """Return the seconds that steps have waited for batches since the last call, and among how many steps.

        That number is the square of the sum by the sum of squares: n of n waits that are alike, about one of n of which
        one is long.
        """
        waited, squares = self.waited, self.squares
        self.waited = self.squares = 0.0
        return waited, max(1, round(waited * waited / squares)) if squares > 0 else 1

    def collect(self, phase: str, _info: object) -> None:
        """Time a collection, as `gc.callbacks` tells it."""
        now = monotonic()
        if phase == "start":
            self._begun = now
        elif now - self._begun >= _LEAST:
            took = now - self._begun
            self.collected += took
            spend(COLLECTION, took)

    def updated(self, begun: float, collected: float) -> None:
        """Take the time of an update of a history, which is hardly ever worth it.

        Args:
            begun: When it began.
            collected: What was collected until then.
        """
        took = monotonic() - begun
        if took > _SLOW and self.is_measured and not in_block():
            spend(LOGGING, max(0.0, took - (self.collected - collected)))


pauses = Pauses()
_main = main_thread().ident


def is_off() -> bool:
    """Tell whether the user wants none of it."""
    return os.environ.get("EZPZ_STEP_PARTS", "").strip().lower() in {"0", "no", "off", "false"}


def measure() -> None:
    """Look at the collector and, once torch is loaded, at its DataLoaders; a second call adds what was not there."""
    if is_off():
        return
    pauses.is_measured = True
    if pauses.collect not in gc.callbacks:
        gc.callbacks.append(pauses.collect)
    iterator: Any = getattr(sys.modules.get(_LOADERS), "_BaseDataLoaderIter", None)
    taken = getattr(iterator, "__next__", None)
    if taken is not None and not hasattr(taken, "__wrapped__"):
        iterator.__next__ = _timed(taken)


def _timed(taken: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the method that takes the next batch, timed where the main thread of this process calls it."""

    @functools.wraps(taken)
    def __next__(self: Any) -> Any:  # noqa: N807  # its name in tracebacks
        if get_ident() != _main or in_block():
            return taken(self)
        collected, begun = pauses.collected, monotonic()
        try:
            return taken(self)
        finally:
            pauses.add_wait(monotonic() - begun - (pauses.collected - collected))
            pauses.workers = getattr(self, "_num_workers", None)

    return __next__
