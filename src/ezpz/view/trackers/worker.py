"""Run one tracker in a thread of its own: a bounded queue, one warning at most, and an end that is bounded too.

A row costs its sender two appends and no lock. The thread looks at its queue once a second, so that what a library
computes comes in few bursts instead of between the operations of every step.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.redact import redact_text
from ezpz.track.tracker_protocol import TrackerOff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.tracker_protocol import About, Row, Tracker


# Threads that a tracker's library starts must not keep the program from ending.
#
# Python waits for every thread that is no daemon, and for every worker of a ``ThreadPoolExecutor``, before it calls
# what is registered with ``atexit``: a library that waits for a network there would hold the ranks, the launcher and
# the job. A thread inherits to be a daemon from the thread that starts it, which holds for all but those that say
# ``daemon=False``. These are made daemons too, and only these: threads that a program starts by itself are left alone.

_OWNER = "_ezpz_tracker"  # on a thread: the tracker's thread that it descends from

_insistent: dict[Thread, list[Thread]] = {}  # of each tracker's thread: those that were meant to be waited for


def adopt(thread: Thread) -> None:
    """Have all threads that descend from `thread`, which is not started yet, be daemons."""
    setattr(thread, _OWNER, thread)
    _insistent[thread] = []
    if not hasattr(Thread.start, _OWNER):
        # No public hook tells of a thread that starts, and the list of threads does not say who started one.
        Thread.start = _wrapped(Thread.start)  # type: ignore[method-assign]
        _release_pools()


def adopted(thread: Thread) -> list[Thread]:
    """Return the descendants that were meant to be waited for."""
    return list(_insistent.get(thread, ()))


def forget(thread: Thread) -> None:
    """Forget a tracker's thread."""
    _insistent.pop(thread, None)


def _release_pools() -> None:
    """Keep ``concurrent.futures`` from waiting for descendants at the end.

    It waits in a function that Python calls before those of ``atexit``, the last registered first; so ours is
    registered after its. The names are private: without them Python waits as ever.
    """
    from concurrent.futures import thread as pools

    def release() -> None:
        queues: Any = getattr(pools, "_threads_queues", {})
        for worker in list(queues):
            if hasattr(worker, _OWNER):
                queues.pop(worker, None)

    register: Any = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(release)


def _wrapped(start: Any) -> Any:
    def start_as_daemon(self: Thread) -> None:
        owner = getattr(current_thread(), _OWNER, None)
        if owner is not None and self.ident is None:
            setattr(self, _OWNER, owner)
            if not self.daemon:
                _insistent.get(owner, []).append(self)
                self.daemon = True
        start(self)

    setattr(start_as_daemon, _OWNER, None)
    return start_as_daemon


MOST_ROWS = 1 << 15  # rows that wait for one tracker: about 20 MB of 8 scalars each
_LOOK_EVERY = 1.0  # seconds
_MOST_AT_ONCE = 1000  # rows for one call of log_rows


class Worker:
    """The thread of one tracker.

    Attributes:
        name: The tracker's name.
        state: What finds its copy again, as far as it is known.
    """

    def __init__(self, tracker: Tracker, about: About) -> None:
        self.name = tracker.name
        self.state: dict[str, object] = {}
        self._tracker: Any = tracker
        self._about = about
        self._waiting: deque[tuple[int | None, float, Mapping[str, Any]]] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # may be rung from a signal handler, as no Event may be set
        self._idle = Event()
        self._idle.set()
        self._off = False
        self._has_warned = False
        self._end: str | None = None
        self._dropped = 0
        self._first_dropped = 0
        self._step: int | None = None
        self._thread = Thread(target=self._run, name=f"ezpz-tracker-{self.name}", daemon=True)
        adopt(self._thread)
        try:
            identify = getattr(tracker, "identify", None)
            self.state = dict(identify(about)) if identify else {}
            self._thread.start()
        except Exception as error:  # noqa: BLE001  # a user's own tracker, or no more threads: training continues
            self._give_up(error)

    def put(self, row: Row) -> None:
        """Let one row wait for the tracker, or count it as dropped where too many wait."""
        number = len(self._waiting)
        if number >= MOST_ROWS:
            if not self._dropped:
                self._first_dropped = row[0]
            self._dropped += 1
        elif not self._off:
            self._waiting.append(row)
            if number == MOST_ROWS // 4:
                self._bell.put(None)

    def put_config(self, config: Mapping[str, object]) -> None:
        """Let a configuration wait for the tracker, between the rows before and after it."""
        if not self._off:
            self._waiting.append((None, time(), config))
            self._bell.put(None)

    def put_now(self, row: Row, seconds: float) -> None:
        """Let one row wait, and wait until the tracker has it, but no longer than that."""
        if not self._off:
            self._idle.clear()
            self.put(row)
            self._bell.put(None)
            self._idle.wait(seconds)

    @property
    def has_all(self) -> bool:
        """Whether the tracker has got every row of `put_now`."""
        return self._idle.is_set()

    def ask_to_end(self, state: str) -> None:
        """Let the tracker end its copy when it has all rows so far."""
        self._end = state
        self._bell.put(None)

    def wait(self, deadline: float, limit: float) -> None:
        """Wait for the end, at most until the time `deadline` of ``monotonic``, and say what is missing."""
        threads = [self._thread, *adopted(self._thread)]
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - monotonic()))
        missing = self._missing()
        if any(thread.is_alive() for thread in threads):
            self._warn(f"did not end within {limit:g} s{missing}; the program continues without it")
        elif self._dropped:
            self._warn(f"was slower than the run{missing}; they are in the run folder")
        self._off = self._has_warned = True
        forget(self._thread)

    def end(self, state: str, limit: float) -> None:
        """Ask for the end and wait for it, no longer than `limit` seconds."""
        self.ask_to_end(state)
        self.wait(monotonic() + limit, limit)

    def _missing(self) -> str:
        parts = []
        if self._dropped:
            parts.append(f"{self._dropped} rows are missing there, the first at step {self._first_dropped}")
        if self._waiting:
            parts.append(f"{len(self._waiting)} rows still waited for it")
        return "".join(f"; {part}" for part in parts)

    def _run(self) -> None:
        try:
            self.state = {**self.state, **(self._tracker.start(self._about) or {})}
            while not self._hand_over():
                try:
                    self._bell.get(timeout=_LOOK_EVERY)
                except Empty:
                    pass  # a second has passed
            self._tracker.finish(self._end)
        except TrackerOff as reason:
            self._off = self._has_warned = True
            self._waiting.clear()
            get_logger(__name__).info(f"tracker {self.name} is off ({reason})")
        # SystemExit too: a library may call sys.exit, and this thread has no other use for it.
        except BaseException as error:  # noqa: BLE001  # whatever a foreign library raises, training continues
            self._give_up(error)
        finally:
            self._idle.set()

    def _hand_over(self) -> bool:
        """Give the tracker all that waits; return whether that was the last of it."""
        last = self._end is not None  # looked at first: what waits now was put before the end was asked for
        while self._waiting and not self._off:
            rows: list[Row] = []
            while self._waiting and len(rows) < _MOST_AT_ONCE and self._waiting[0][0] is not None:
                rows.append(self._waiting.popleft())  # type: ignore[arg-type]  # it has a step: looked at above
            if rows:
                self._log(rows)
            else:
                self._tracker.config(self._waiting.popleft()[2])
        self._idle.set()
        return last

    def _log(self, rows: list[Row]) -> None:
        log_rows = getattr(self._tracker, "log_rows", None)
        self._step = rows[0][0]
        if log_rows is not None:
            log_rows(rows)
            return
        for step, _, values in rows:
            self._step = step
            self._tracker.log(step, values)

    def _give_up(self, error: BaseException) -> None:
        self._off = True
        self._waiting.clear()
        when = "" if self._step is None else f" from step {self._step}"
        reason = redact_text(next(iter(str(error).splitlines()), ""))
        self._warn(f"is off{when}: {type(error).__name__}: {reason}; training continues, and so does the run folder")

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            get_logger(__name__).warning(f"tracker {self.name} {text}.")
