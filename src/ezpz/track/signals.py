"""Complete the records at SIGTERM, as schedulers send it at the end of wall time, and SIGHUP; then pass the signal on.

Python calls a handler between two of its own instructions, so not while the main thread waits in C++, as in a
collective whose other ranks have been ended already. The C half of Python's handler writes the signal's number to a
pipe at once, in any case (``signal.set_wakeup_fd``); a thread reads it and does the work when the handler has not begun
within a second. An event loop that uses the wake-up itself keeps it.

Slurm sends SIGTERM up to three times at the time limit, within a moment: what comes again within 3 s is the same
signal, and does not end the process while the first one still completes the records. Later it does, at once.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ONE_SIGNAL = 3.0  # seconds in which a signal that comes again is the same one

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PATIENCE = 1.0  # seconds; launchers and schedulers give at least three before SIGKILL
_RECENT = 10.0  # seconds: a handler that began so long before this thread saw the signal has answered it

_stops: list[Callable[[str], None]] = []
_previous: dict[int, Any] = {}
_last = -math.inf  # when a handler began
_first: dict[int, float] = {}  # signal: when it came, without what came again so soon that it is the same
_at_work: set[int] = set()  # signals for which the records are being completed by a handler
_pipe: tuple[int, int] | None = None


def attach(stop: Callable[[str], None]) -> None:
    """Have ``stop`` called with a signal's name before the signal does what it did before.

    A signal that is ignored stays so. Only the main thread can answer signals; in another one this does nothing.
    """
    _stops.append(stop)
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if number not in _previous and before is not None and before != signal.SIG_IGN:
            _previous[number] = before
            signal.signal(number, _handle)
    _watch()


def detach(stop: Callable[[str], None]) -> None:
    """Undo `attach`; with the last one, handlers that are still ours give way to those before."""
    if stop in _stops:
        _stops.remove(stop)
    if _stops or threading.current_thread() is not threading.main_thread():
        return
    for number, before in list(_previous.items()):
        if signal.getsignal(number) is _handle:
            signal.signal(number, before)
            del _previous[number]


def _handle(number: int, frame: Any) -> None:
    global _last
    _last = now = time.monotonic()
    if now < _first.get(number, -math.inf) + ONE_SIGNAL:
        return
    _first[number] = now
    if number not in _at_work:  # else it comes for the second time, and means now
        _at_work.add(number)
        try:
            _call_all(number)
        finally:
            _at_work.discard(number)
    before = _previous.get(number, signal.SIG_DFL)
    if callable(before):
        before(number, frame)
    else:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _complete() -> bool:
    """Complete the records; True if nothing else waits for SIGTERM in this process."""
    _call_all(signal.SIGTERM)
    return not callable(_previous.get(signal.SIGTERM))


_handle.complete = _complete  # type: ignore[attr-defined]  # how ezpz.dist.failure_watch, which may not know this module, asks


def _call_all(number: int) -> None:
    for stop in tuple(_stops):
        stop(signal.Signals(number).name)


def _watch() -> None:
    """Start the thread that reads the pipe, once."""
    global _pipe
    if _pipe is not None:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    taken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if taken != -1:
        signal.set_wakeup_fd(taken, warn_on_full_buffer=False)
        os.close(reader)
        os.close(writer)
        return
    _pipe = reader, writer
    with suppress(RuntimeError):  # Python is ending and starts no threads any more
        threading.Thread(target=_read, args=(reader,), name="ezpz-signals", daemon=True).start()


def _read(reader: int) -> None:
    while numbers := os.read(reader, 64):
        seen = time.monotonic()
        while _last < seen - _RECENT and time.monotonic() < seen + _PATIENCE:
            time.sleep(0.05)
        if _last < seen - _RECENT:
            for number in {number for number in numbers if number in _previous}:
                _call_all(number)


def _forked() -> None:
    """Leave signals, in a child, as they were before: its SIGTERM is not the parent's, whose pipe it would write to."""
    global _pipe
    _stops.clear()
    if _pipe is not None:
        taken = signal.set_wakeup_fd(-1)
        if taken not in {-1, _pipe[1]}:
            signal.set_wakeup_fd(taken)
        for descriptor in _pipe:
            os.close(descriptor)
        _pipe = None
    for number, before in _previous.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, before)
    _previous.clear()


os.register_at_fork(after_in_child=_forked)
