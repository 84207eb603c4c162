"""Threads that a tracker's library starts must not keep the program from ending.

Python waits for every thread that is no daemon, and for every worker of a ``ThreadPoolExecutor``, before it calls what
is registered with ``atexit``: a library that waits for a network there would hold the ranks, the launcher and the job. A
thread inherits to be a daemon from the thread that starts it, which holds for all but those that say ``daemon=False``.
These are made daemons too, and only these: threads that a program starts by itself are left alone.
"""

from __future__ import annotations

import threading
from threading import Thread, current_thread
from typing import Any

__all__ = ["adopt", "adopted", "forget"]

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

    It waits in a function that Python calls before those of ``atexit``, the last registered first; so ours is registered
    after its. The names are private: without them Python waits as ever.
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
