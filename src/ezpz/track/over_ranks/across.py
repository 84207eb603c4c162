"""Bring values of all ranks to rank 0 in the background: no collective, no wait and no order between ranks.

The program's thread does no more than append to a list. A thread of each rank looks at it four times a second, cuts it
into windows of steps and puts these into the program's store (`ezpz.track.over_ranks.transport`); rank 0's makes one
record of each window (`ezpz.track.over_ranks.window`). Ranks may record different keys, fewer rows or nothing at all,
and may come and end when they like.
"""

from __future__ import annotations

import atexit
import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.track.over_ranks.gathering import Child, Root, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ezpz.ranks import Ranks
    from ezpz.track.values import Value

__all__ = ["Across"]

_PATIENCE = 30.0  # seconds that rank 0 waits for others at the end of a run
_LEAVE = 5.0  # seconds in which another rank puts its rest into the store; in which a thread ends with the program
_AT_EXIT = 1.0  # seconds that rank 0 waits for others when the program has not finished
_GRACE = 4.0  # seconds beyond its patience in which rank 0 writes what it has
_AT_WORK = 3.0  # seconds: a thread that has got on since then is waited for, however long, but at an unexpected end

_LAST = 1.0  # seconds for the record that a thread is at when it is stopped

_made: dict[str, int] = {}  # how many of each name this process has made: ranks count alike


class Across:
    """Values of all ranks, gathered at rank 0 in the background."""

    def __init__(
        self,
        ranks: Ranks,
        window: int,
        *,
        name: str,
        folder: Path | None,
        record: Callable[[int, dict[str, Any]], None] | None,
        on_folder: Callable[[Path], None] | None = None,
    ) -> None:
        """Start the thread; in a world of one there is nothing to do and none is started.

        Args:
            ranks: Who this process is.
            window: Steps in a record.
            name: Name of the history, the same on all ranks; those of one name are distinguished by their order.
            folder: The run folder, on rank 0.
            record: Takes the last step and the ``m`` of a record of kind ``ranks``; called by the thread, on rank 0.
            on_folder: Takes the run folder; called by the thread, once, on other ranks.
        """
        number = _made[name] = _made.get(name, 0) + 1
        self._task = Task(ranks, window, f"ezpz/across/{name}/{number}", folder, record, on_folder)
        self._rows = self._task.rows
        self._pid = os.getpid()
        self._notes: dict[int, dict[str, float]] = {}
        self._steps = 0  # handed over, each once
        self._last: int | None = None
        self._open = ranks.world_size > 1
        if self._open:
            self._thread = threading.Thread(target=self._run, name="ezpz-across", daemon=True)
            self._thread.start()
            atexit.register(self._at_exit)

    def add(self, step: int, values: Mapping[str, Value], weight: float | None = None) -> None:
        """Take one row of this rank; of its values ints, floats and bools are kept.

        Args:
            step: The row's step. Rows come in the order of steps; one of a window that has passed is left out.
            values: Kept as they are until the thread has read them, so they must not change.
            weight: What this rank counts for in means over the ranks.
        """
        if self._open:
            if self._notes and step in self._notes:
                values = {**values, **self._notes.pop(step)}
            if self._last is None or step > self._last:
                self._last, self._steps = step, self._steps + 1
            self._rows.append((step, values, weight))

    def note(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take numbers that stand for the batch of a step, or for weights, before its row.

        Args:
            step: The step of the row.
            numbers: By column, one of `ezpz.track.step_states.SUM_COLUMNS`.
        """
        if self._open:
            self._notes.setdefault(step, {}).update(numbers)

    def finish(self, patience: float = _PATIENCE) -> list[str]:
        """Hand over what is left; on rank 0 wait for the others and record it. A second call does nothing.

        Args:
            patience: Seconds that rank 0 waits at most. It waits until every rank has ended or has sent its rows up to
                rank 0's last step, or nothing new has come for 3 s. Other ranks do not wait: they put their rest
                into the store, for which they have 5 s. A thread that is still at work is waited for longer, but for
                less than the usual patience.

        Returns:
            On rank 0, what is missing in its records, in a sentence.
        """
        if not self._open or os.getpid() != self._pid:
            return []
        self._open, task = False, self._task
        task.patience, task.finishing = patience, True
        task.wake.set()
        deadline = monotonic() + (patience + _GRACE if task.ranks.rank == 0 else _LEAVE)
        while not task.over.wait(max(0.1, deadline - monotonic())):
            if patience < _PATIENCE or monotonic() - task.worked > _AT_WORK:
                task.stop = True
                task.over.wait(_LAST)  # it ends with the record that it is at
                break
        missing = self._steps - task.recorded
        if task.ranks.rank or missing <= 0 or not (task.stop or task.is_short):
            return []
        problem = f"values over all ranks of {missing} of {self._steps} steps could not be recorded"
        get_logger(__name__).warning(f"{problem}; rank 0's own are complete.")
        return [problem]

    def _at_exit(self) -> None:
        """Leave no thread that could wake up inside torch while Python ends: that would abort the process."""
        if os.getpid() != self._pid:  # a forked child has inherited this, and has no such thread
            return
        self.finish(_AT_EXIT)
        self._task.stop = True
        self._task.wake.set()
        self._thread.join(_LEAVE)

    def _run(self) -> None:
        task = self._task
        worker = (Root if task.ranks.rank == 0 else Child)(task)
        try:
            while not task.stop and not worker.turn():
                task.wake.wait(worker.pause())
                task.wake.clear()
        except Exception as error:  # noqa: BLE001  # torch or a callback may raise anything
            task.is_short = True
            get_logger(__name__).warning(
                f"values of all ranks are no longer gathered: {type(error).__name__}: {error}; training continues."
            )
        worker.close()
        self._open = False
        task.rows.clear()
        task.over.set()
