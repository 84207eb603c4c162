"""Run each rank's gathering thread: cut rows into slices, send them to rank 0, and record windows there."""

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
from ezpz.track.over_ranks.slices import ENDED, NO_STEP, Slicer, pack, read_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ezpz.ranks import Ranks
    from ezpz.track.over_ranks.slices import Slice
    from ezpz.track.over_ranks.transport import Inbox, Keys, Outbox
    from ezpz.track.values import Value

__all__ = ["Child", "Root", "Task"]

_TICK = 0.25  # seconds between two turns
_SOON = 0.02  # the same when somebody waits for this rank
_AT_FIRST = 2.0  # seconds in which a rank looks often for rank 0, so that its log soon goes to the run folder
_LOOKS_A_SECOND = 1000  # that all ranks together take at the store
_OLD = 10.0  # seconds after which rows of a window that is not full are sent too
_MOST_ROWS = 16384  # that wait for another rank's first word
_QUIET = 3.0  # seconds without news after which rank 0 waits no longer
_ALONE = 1.0  # seconds from its own beginning in which rank 0 expects the first word of another rank


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
        worked: When the thread last got on, by the monotonic clock.
        recorded: Steps that rank 0 has recorded.
        is_short: Whether rows were left out, or the thread has ended by an error.
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
    worked: float = 0.0
    recorded: int = 0
    is_short: bool = False


class _Worker:
    """What all ranks do alike."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._slicer = Slicer(task.ranks.rank, task.window)
        self._keys: Keys | None = None
        self._begin = monotonic()
        self._warned = False

    def _at_least(self, seconds: float) -> float:
        """Return for how long to pause, so that many ranks do not ask the store too often."""
        return max(seconds, self._task.ranks.world_size / _LOOKS_A_SECOND)

    def _find(self) -> Keys | None:
        """Return the store's keys as soon as the program has one."""
        if self._keys is None:
            from ezpz.track.over_ranks.transport import find_keys

            self._keys = find_keys(self._task.ranks, self._task.prefix)
            if self._keys is not None:
                self._begin = monotonic()
                self._meet(self._keys)
        return self._keys

    def _meet(self, keys: Keys) -> None:
        """Begin, with keys that have just been found."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""
        if self._keys is not None:
            self._keys.close()

    def _slices(self) -> Iterator[Slice]:
        """Yield the windows that the rows so far have filled."""
        rows = self._task.rows
        if len(rows) == rows.maxlen:
            self._task.is_short = True
            self._warn(f"more than {_MOST_ROWS} rows waited: the oldest are missing from the records over all ranks.")
        while rows:
            self._task.worked = monotonic()
            full = self._slicer.add(*rows.popleft())
            if full is not None:
                yield full

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            get_logger(__name__).warning(text)


class Child(_Worker):
    """Every rank but the first: what it has goes to rank 0."""

    _outbox: Outbox
    _there = False  # whether rank 0 has made this history
    _asked = False  # whether rank 0 is finishing
    _sent_at = 0.0

    def pause(self) -> float:
        """Return for how many seconds nothing needs to be done."""
        soon = self._asked if self._there else monotonic() - self._begin < _AT_FIRST
        return self._at_least(_SOON if soon else _TICK)

    def turn(self) -> bool:
        """Do what can be done; tell whether all is done. A store that has ended took rank 0 with it."""
        from ezpz.track.over_ranks.transport import StoreEndedError

        finishing = self._task.finishing  # read first: the rows that came before it are in this turn
        try:
            keys = self._find()
            if keys is None:
                return finishing
            if not self._there:
                self._look(keys)
            self._asked = self._asked or (self._there and keys.has("ask"))
            if self._asked and keys.has("closed"):
                return True
            if finishing:
                self._put(*self._slices(), self._slicer.cut(end=ENDED))
                self._outbox.finish()
            elif self._there:
                self._put(*self._slices())
                if self._slicer.waits and (self._asked or monotonic() - self._sent_at > self._at_least(_OLD)):
                    self._put(self._slicer.cut())
                self._outbox.turn()
        except StoreEndedError:
            return True
        return finishing

    def _meet(self, keys: Keys) -> None:
        from ezpz.track.over_ranks.transport import Outbox

        self._outbox = Outbox(keys, self._task.ranks.rank)
        self._put(self._slicer.cut())  # rank 0 knows by this that there is more to come
        self._outbox.turn()

    def _look(self, keys: Keys) -> None:
        """Learn the run folder, if rank 0 has one."""
        self._there = keys.has("folder")
        folder = os.fsdecode(keys.get("folder")) if self._there else ""
        if self._task.on_folder is not None and folder:
            self._task.on_folder(Path(folder))

    def _put(self, *pieces: Slice) -> None:
        for piece in pieces:
            self._outbox.put(pack(piece))
            self._task.worked = self._sent_at = monotonic()
        if self._outbox.dropped:
            self._warn("rank 0 takes no values of this rank: some are missing from the records over all ranks.")


class Root(_Worker):
    """Rank 0: what comes is recorded."""

    _inbox: Inbox
    _asks = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._collector = Collector(task.ranks.world_size, task.window)
        self._finish_at = 0.0
        self._last_recorded = NO_STEP

    def pause(self) -> float:
        """Return for how many seconds nothing needs to be done."""
        return _SOON if self._task.finishing else _TICK

    def turn(self) -> bool:
        """Do what can be done; tell whether all is done."""
        from ezpz.track.over_ranks.transport import StoreEndedError

        finishing = self._task.finishing  # read first: the rows that came before it are in this turn
        try:
            keys = self._find()
            if keys is None:
                return finishing and self._end()
            self._take(map(read_slice, self._inbox.take()))
            if self._collector.others:
                self._take(self._slices())
            if not finishing:
                self._save()
                return False
            if not self._asks:
                self._asks, self._finish_at = True, monotonic()
                self._take((*self._slices(), self._slicer.cut(end=ENDED)))
                keys.set("ask", b"1")
            if self._is_worth_waiting():
                return False
            keys.set("closed", b"1")
        except StoreEndedError:  # its owner has destroyed it, or ended: no other rank can send any more
            pass
        return self._end()

    def _meet(self, keys: Keys) -> None:
        from ezpz.track.over_ranks.transport import Inbox

        self._inbox = Inbox(keys)
        keys.set("folder", os.fsencode(self._task.folder or ""))

    def _take(self, pieces: Iterable[Slice]) -> None:
        for piece in pieces:
            self._task.worked = monotonic()
            self._collector.take(piece)

    def _is_worth_waiting(self) -> bool:
        """Tell whether what others have on its way may still come. A rank that has ended has nothing more."""
        now, collector = monotonic(), self._collector
        if now - self._finish_at > self._task.patience:
            return False
        if not collector.others:
            return now - self._begin < _ALONE
        behind = collector.behind(self._slicer.upto - 1)
        since = collector.news if any(rank in collector.others for rank in behind) else self._begin
        return bool(behind) and now - since < _QUIET + 2 * self._at_least(_TICK)

    def _save(self, *, rest: bool = False) -> None:
        if self._collector.is_full:
            self._collector.take(self._slicer.cut())
        for m in self._collector.records(rest=rest):
            self._task.worked = monotonic()
            if self._task.stop:
                return
            if self._task.record is not None:
                self._task.record(m["steps"][-1], m)
            if m["steps"][-1] > self._last_recorded:  # a large world has a record of each metric
                self._last_recorded = m["steps"][-1]
                self._task.recorded += len(m["steps"])

    def _end(self) -> bool:
        """Record the rest, and say what it lacks."""
        collector, logger = self._collector, get_logger(__name__)
        self._take((*self._slices(), self._slicer.cut(end=ENDED)) if collector.others else ())
        self._save(rest=True)
        if not collector.others:
            if self._slicer.upto > NO_STEP or self._task.rows:
                logger.info(
                    "values of rank 0 alone are recorded: no other rank has made this history, or torch's process "
                    "group was missing."
                )
            return True
        behind = collector.behind(self._slicer.upto - 1)
        if behind:
            logger.info(
                f"{_named(behind)} had not sent all up to step {self._slicer.upto - 1}; each record over ranks says "
                "how many ranks it holds."
            )
        if collector.late:
            logger.warning(f"{collector.late} rows of steps that had passed are not in the records over all ranks.")
        return True


def _named(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 1, 4-63``."""
    runs = []
    for _, same in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in same]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    shown = [*runs[:8], "…"] if len(runs) > 8 else runs
    return ("rank " if runs and len(runs) == 1 and "-" not in runs[0] else "ranks ") + ", ".join(shown)
