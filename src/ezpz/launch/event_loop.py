"""Wait for files, timers and signals at the same time, and call what belongs to each.

The supervisor and the host agents are each one such loop, with no thread beside it.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_LONGEST_WAIT = 86400.0  # seconds: epoll takes no more than 24 days
_REST = 0.1  # seconds until a file that could not be served is watched again

NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # another connection cannot be taken, but waits


def ready(selector: selectors.BaseSelector, wait: float | None) -> Iterator[selectors.SelectorKey]:
    """Yield the files for which something has come, each unless what was done for those before it has changed how it is
    watched.

    A file that is closed meanwhile may lend its descriptor to one that is opened in the same moment: what has come for
    the old one must not be taken for the new one's.

    Args:
        selector: Watches the files; may be closed meanwhile.
        wait: Seconds to wait for the first; None for any time.
    """
    for key, _ in selector.select(wait):
        watched = selector.get_map()
        if watched is not None and watched.get(key.fd) is key:
            yield key


class Loop:
    """Files that can be read or written, and named timers.

    A file is anything with a descriptor; it is watched either for reading or for writing, not for both.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[str, tuple[float, Callable[[], object]]] = {}
        self._parts: list[LoopPart] = []

    def part(self) -> Loop:
        """Return one whose files and timers have their turns with those of this one, until it is closed."""
        part = LoopPart(self)
        self._parts.append(part)
        return part

    def read(self, file: Any, action: Callable[[Any], object]) -> None:
        """Call ``action(file)`` whenever there is something to read; nothing changes where the file is watched
        already.
        """
        self._watch(file, selectors.EVENT_READ, action)

    def write(self, file: Any, action: Callable[[Any], object]) -> None:
        """Call ``action(file)`` whenever there is room to write."""
        self._watch(file, selectors.EVENT_WRITE, action)

    def forget(self, file: Any) -> None:
        """Watch a file no more; it may be unknown, and must still be open."""
        number = _number(file)
        self.cancel(_resting(number))
        if number in self._selector.get_map():
            self._selector.unregister(number)

    def rest(self, file: Any) -> None:
        """Watch a file only again in a moment: what waits there cannot be taken now, and would wake us for ever."""
        key = self._selector.unregister(file)
        self.after(_resting(key.fd), _REST, lambda: self._watch(file, key.events, key.data))

    def at(self, name: str, due: float, action: Callable[[], object]) -> None:
        """Call ``action()`` once at a moment of the monotonic clock, in place of the earlier timer of that name."""
        self._timers[name] = due, action

    def after(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        """Call ``action()`` once after some seconds; a timer of that name that runs already stays as it is."""
        self._timers.setdefault(name, (time.monotonic() + seconds, action))

    def cancel(self, name: str) -> None:
        """Forget a timer, if there is one."""
        self._timers.pop(name, None)

    def delay(self, seconds: float) -> None:
        """Let all timers end so much later."""
        for loop in (self, *self._parts):
            later = {name: (due + seconds, action) for name, (due, action) in loop._timers.items()}  # noqa: SLF001  # own
            loop._timers = later  # noqa: SLF001  # as above

    def waits_for(self, name: str) -> bool:
        """Tell whether a timer of that name runs."""
        return name in self._timers

    def due(self, name: str) -> float:
        """Return when a timer ends; infinity without one."""
        return self._timers[name][0] if name in self._timers else float("inf")

    def turn(self, *dues: float | None) -> float:
        """Wait until something can be done, do it, and return the time.

        Args:
            dues: Moments of the monotonic clock at which to come back as well; None for never.
        """
        timers = [due for loop in (self, *self._parts) for due, _ in loop._timers.values()]  # noqa: SLF001  # its own
        due = min([*timers, *(due for due in dues if due is not None)], default=None)
        wait = None if due is None else min(_LONGEST_WAIT, max(0.0, due - time.monotonic()))
        for key in ready(self._selector, wait):
            key.data(key.fileobj)
        now = time.monotonic()
        for loop in (self, *self._parts):
            loop._ring(now)  # noqa: SLF001  # its own
        return now

    def _ring(self, now: float) -> None:
        """Do what timers have waited for."""
        for name in [name for name, (due, _) in self._timers.items() if now >= due]:
            if now >= self.due(name):  # an earlier one may have cancelled it or put it off
                self._timers.pop(name)[1]()

    def close(self) -> None:
        """Watch nothing any more."""
        self._selector.close()
        self._timers.clear()

    def _watch(self, file: Any, event: int, action: Callable[[Any], object]) -> None:
        key = self._selector.get_map().get(_number(file))
        if key is None:
            self._selector.register(file, event, action)
        elif key.events != event:
            self._selector.modify(file, event, action)


class LoopPart(Loop):
    """A part of a loop, in whose turns its files and timers have theirs; `close` ends these and no others.

    Args:
        whole: That loop.
    """

    def __init__(self, whole: Loop) -> None:
        self._whole, self._selector = whole, whole._selector  # noqa: SLF001  # of its own kind
        self._timers: dict[str, tuple[float, Callable[[], object]]] = {}
        self._parts: list[LoopPart] = []
        self._watched: dict[int, selectors.SelectorKey] = {}

    def forget(self, file: Any) -> None:
        """Watch a file no more; it may be unknown, and must still be open."""
        super().forget(file)
        self._watched.pop(_number(file), None)

    def close(self) -> None:
        """Watch nothing any more of what is its own: a descriptor may be another file's by now."""
        for number, key in self._watched.items():
            if self._selector.get_map().get(number) is key:
                self._selector.unregister(number)
        self._timers.clear()
        self._whole._parts.remove(self)  # noqa: SLF001  # as above

    def _watch(self, file: Any, event: int, action: Callable[[Any], object]) -> None:
        super()._watch(file, event, action)
        self._watched[_number(file)] = self._selector.get_map()[_number(file)]


def _number(file: Any) -> int:
    """Return the descriptor of a file: of one that it does not know, `selectors` makes a text with its addresses."""
    return file if type(file) is int else file.fileno()


def _resting(number: int) -> str:
    """Return the name of the timer that ends the rest of a file."""
    return f"rest {number}"


class SignalPipe:
    """Signals as something to wait for: each makes a descriptor readable, and none is lost between two looks.

    A context manager, which gives the signals back; a process that does nothing else need not leave it. Signals that
    were blocked come now.

    Args:
        numbers: Signals that are waited for.
        ignored: Signals that have no effect.
    """

    def __init__(self, numbers: Iterable[int], ignored: Iterable[int] = ()) -> None:
        self._numbers, self._ignored = tuple(numbers), tuple(ignored)
        self._read, self._write = os.pipe()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> SignalPipe:  # noqa: PYI034  # Self needs Python 3.11
        for end in (self._write, self._read):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._numbers:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        for number in self._ignored:
            self._handlers[number] = signal.signal(number, signal.SIG_IGN)
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come."""
        return self._read

    def take(self) -> bytes:
        """Return the numbers of the signals that have come."""
        return os.read(self._read, 4096)
