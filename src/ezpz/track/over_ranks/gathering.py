"""Run each rank's gathering thread: meet the others, cut rows into slices, move them, record windows."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.track.over_ranks.collector import Collector
from ezpz.track.over_ranks.slices import ENDED, GONE, Slice, Slicer, pack, read_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ezpz.ranks import Ranks
    from ezpz.track.over_ranks.transport import Funnel
    from ezpz.track.values import Value

__all__ = ["Child", "Root", "Task"]

_TICK = 0.25  # seconds between two turns
_SOON = 0.02  # the same when somebody waits for this rank, or a message is half here
# How often ranks that are missing are looked for, by the seconds since this one began: (until, every). A store that has
# ended with rank 0 lets torch print a page of warning at the next look, so the looks grow rare.
_LOOKS = ((2.0, 0.0), (10.0, _TICK), (60.0, 2.0), (float("inf"), 10.0))
_MOST_ROWS = 16384  # that wait until the ranks have met
_QUIET = 3.0  # seconds without news after which rank 0 waits no longer
_ALONE = 0.5  # seconds to wait for the others when none has been seen
_AGAIN = 0.5  # seconds after which rank 0 asks once more


@dataclass
class Task:
    """What the program's thread and the other one share.

    Attributes:
        rows: Rows that the thread has not read yet; a program without others keeps the newest of them until it ends.
        finishing: Set when no more rows come.
        stop: Set when the thread shall end at once.
        patience: Seconds that rank 0 waits at most when it is finishing.
        wake: Ends the pause between two turns.
        over: Set by the thread when no one needs to wait for it any more.
    """

    ranks: Ranks
    window: int
    prefix: str
    folder: Path | None
    record: Callable[[int, dict[str, Any]], None] | None
    on_folder: Callable[[Path], None] | None
    rows: deque[tuple[int, Mapping[str, Value], float | None]] = field(default_factory=lambda: deque(maxlen=_MOST_ROWS))
    finishing: bool = False
    stop: bool = False
    patience: float = 0.0
    wake: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class _Worker:
    """What all ranks do alike."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._slicer = Slicer(task.ranks.rank, task.window)
        self._store: Any = None
        self._funnel: Funnel | None = None
        self._begin = monotonic()
        self._look_at = 0.0
        self._introduced = False
        self._finish_at: float | None = None  # when this thread saw that the program is finishing
        self._warned = False

    def pause(self) -> float:
        """Return for how many seconds nothing needs to be done."""
        if self._task.finishing or (self._funnel is not None and self._funnel.busy):
            return _SOON
        if self._is_met() or monotonic() - self._begin > _LOOKS[0][0]:
            return _TICK
        # Soon, so that short programs meet as well; many ranks must not all ask one store that often.
        return min(_TICK, _SOON + self._task.ranks.world_size / 16384)

    def _is_met(self) -> bool:
        return self._introduced and self._funnel is not None and self._funnel.ready

    def _meet(self) -> Funnel | None:
        """Return this rank's place in the tree as soon as anybody is connected with it."""
        from ezpz.track.over_ranks.transport import Funnel, find_store

        now = monotonic()
        if self._task.finishing and self._finish_at is None:
            self._finish_at = now
        if self._funnel is None:
            self._store = find_store(self._task.ranks, self._task.prefix)
            if self._store is None:
                return None
            self._funnel = Funnel(self._store, self._task.ranks.rank, self._task.ranks.world_size)
            self._begin = now
        if not self._is_met() and now >= self._look_at:
            self._look(self._funnel)
            self._look_at = now + next(every for until, every in _LOOKS if now - self._begin < until)
        return self._funnel if self._funnel.connected else None

    def _look(self, funnel: Funnel) -> None:
        try:
            self._introduced = self._introduced or self._introduce()
        except RuntimeError:  # rank 0 has ended, and the store with it
            funnel.orphaned = True
        else:
            funnel.meet()

    def _introduce(self) -> bool:
        """Tell, or learn, the run folder; tell whether that was done."""
        raise NotImplementedError

    def _since_finish(self) -> float:
        return 0.0 if self._finish_at is None else monotonic() - self._finish_at

    def _slices(self) -> Iterator[Slice]:
        """Yield the windows that the rows so far have filled."""
        rows = self._task.rows
        if len(rows) == rows.maxlen:
            self._warn("rows came faster than they could be read: some are missing from the records over all ranks.")
        while rows:
            full = self._slicer.add(*rows.popleft())
            if full is not None:
                yield full

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            get_logger(__name__).warning(text)

    def _gone(self, funnel: Funnel) -> Iterator[Slice]:
        """Yield a slice without rows for every rank that was lost."""
        import numpy as np

        lost, funnel.lost = funnel.lost, []
        for first, last in lost:
            for rank in range(first, last):
                yield Slice(rank, 0, GONE, 0, np.array([], dtype=np.int64), None, {})


class Child(_Worker):
    """Every rank but the first: what it has goes up."""

    def turn(self) -> bool:
        """Do what can be done; tell whether all is done."""
        funnel = self._meet()
        if self._funnel is not None and self._funnel.orphaned:
            return True
        if funnel is None:
            lately = monotonic() - self._begin < _ALONE  # then the others may be on their way
            return self._task.finishing and not lately and not (self._introduced and self._since_finish() < _QUIET)
        for piece in (*self._slices(), *self._gone(funnel)):
            funnel.put(pack(piece))
        funnel.turn()
        if funnel.asked and not funnel.ending:
            funnel.asked = False
            funnel.put(pack(self._slicer.cut()))
        if self._finish_at is not None and not funnel.ending:
            funnel.put(pack(self._slicer.cut(end=ENDED)))
            funnel.end()
        if funnel.dropped:
            self._warn("rank 0 takes no values of this rank: some are missing from the records over all ranks.")
        funnel.turn()
        if funnel.ending and funnel.delivered:
            self._task.over.set()
        return funnel.done

    def _introduce(self) -> bool:
        if not self._store.check(["folder"]):
            return False
        folder = os.fsdecode(self._store.get("folder"))
        if self._task.on_folder is not None and folder:
            self._task.on_folder(Path(folder))
        return True


class Root(_Worker):
    """Rank 0: what comes is recorded."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._collector = Collector(task.ranks.world_size, task.window)
        self._ask_at: float | None = None

    def turn(self) -> bool:
        """Do what can be done; tell whether all is done."""
        funnel = self._meet()
        if funnel is None:
            return self._task.finishing and self._gives_up()
        for piece in (*self._slices(), *self._gone(funnel), *map(read_slice, funnel.turn())):
            self._collector.take(piece)
        if self._finish_at is None:
            self._save()
            return False
        return self._finish(funnel)

    def _finish(self, funnel: Funnel) -> bool:
        now = monotonic()
        if self._ask_at is None:
            self._collector.take(self._slicer.cut(end=ENDED))
            self._ask_at = now
        last = self._slicer.upto - 1
        quiet = now - self._collector.news > _QUIET
        if not (self._collector.complete(last) or quiet or self._since_finish() > self._task.patience):
            if now >= self._ask_at:
                funnel.ask()
                self._ask_at = now + _AGAIN
            return False
        self._save(rest=True)
        self._report(last)
        return True

    def _save(self, *, rest: bool = False) -> None:
        for m in self._collector.records(rest=rest):
            if self._task.record is not None:
                self._task.record(m["steps"][-1], m)

    def _introduce(self) -> bool:
        self._store.set("folder", os.fsencode(self._task.folder or ""))
        return True

    def _gives_up(self) -> bool:
        """Tell whether it is no use to wait for ranks that have not come, and say so."""
        lately = monotonic() - self._begin < _ALONE
        some = self._funnel is not None and not lately and self._funnel.anybody()
        if (lately or (some and self._since_finish() < _QUIET)) and self._since_finish() < self._task.patience:
            return False
        if self._task.rows:
            get_logger(__name__).info(
                "values of rank 0 alone are recorded: not every rank has made this history, or torch's process group "
                "was missing."
            )
        return True

    def _report(self, last: int) -> None:
        logger, on_folder = get_logger(__name__), self._collector
        if on_folder.gone:
            logger.warning(
                f"{_named(on_folder.gone)} ended without a word; records over all ranks lack what was not sent yet."
            )
        missing = on_folder.behind(last)
        if missing:
            logger.warning(
                f"{_named(missing)} sent nothing up to step {last}; records over all ranks lack these values."
            )
        if on_folder.late:
            logger.warning(f"{on_folder.late} rows of steps that had passed are not in the records over all ranks.")


def _named(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 1, 4-63``."""
    runs = []
    for _, same in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in same]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    shown = [*runs[:8], "…"] if len(runs) > 8 else runs
    return ("rank " if runs and len(runs) == 1 and "-" not in runs[0] else "ranks ") + ", ".join(shown)
