"""Time the parts of a step, without waiting for the device in any step.

    dtd data    dtf forward    dtb backward    dto clipping and optimizer    dt the whole step: their sum

On a CPU the host's clock tells at once. An accelerator works through a queue, and the host is far ahead of it: there
events are put into the queue between the parts, and read when the device has passed them, some steps later. One step
ends where the next begins, so that the times of all steps add up to the time of the run; what lies between two steps on
purpose, such as an evaluation, is left out by `Clock.skip`.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ezpz.dist.device import get_torch_device_type, make_event, synchronize

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("dtf", "dtb", "dtd", "dto")


class Times(Protocol):
    """The times of one step, which may not have passed yet."""

    def ready(self) -> bool:
        """Tell, without waiting, whether the device has come so far."""

    def read(self) -> dict[str, float]:
        """Return ``dt`` and its parts in seconds, waiting for the device where need be."""


class Clock(Protocol):
    """Takes the times of one step after the other."""

    def skip(self) -> None:
        """Begin the next step now, and not where the last one ended."""

    def mark(self, part: str) -> None:
        """Say that all since the last mark belonged to ``part``; a part may come several times in a step."""

    def stop(self) -> Times:
        """End a step at its last mark."""


def make_clock(*, exact: bool = False) -> Clock:
    """Return a clock for this rank's device.

    Args:
        exact: Wait for the device at every mark: each step's own numbers at once, at the price of a stall in each part.
    """
    if get_torch_device_type() == "cpu":
        return HostClock(None)
    return HostClock(synchronize) if exact or make_event() is None else EventClock()


class HostClock:
    """Reads the host's clock.

    Args:
        wait: Called before: returns when the device has done what it was given. None on a CPU, which has nothing to
            wait for.
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait = wait
        self.skip()

    def skip(self) -> None:
        """See `Clock`."""
        if self._wait is not None:
            self._wait()
        self._last = perf_counter()
        self._parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    def mark(self, part: str) -> None:
        """See `Clock`."""
        if self._wait is not None:
            self._wait()
        now = perf_counter()
        self._parts[part] += now - self._last
        self._last = now

    def stop(self) -> Times:
        """See `Clock`."""
        parts, self._parts = self._parts, dict.fromkeys(PARTS, 0.0)
        return _Known({"dt": sum(parts.values()), **parts})


class _Known:
    def __init__(self, times: dict[str, float]) -> None:
        self._times = times

    def ready(self) -> bool:
        return True

    def read(self) -> dict[str, float]:
        return self._times


class EventClock:
    """Puts events into the device's queue."""

    def __init__(self) -> None:
        self.skip()

    def skip(self) -> None:
        """See `Clock`."""
        self._marks: list[tuple[str, Any]] = [("", _now())]

    def mark(self, part: str) -> None:
        """See `Clock`."""
        self._marks.append((part, _now()))

    def stop(self) -> Times:
        """See `Clock`."""
        marks = self._marks
        self._marks = [("", marks[-1][1])]
        return _Coming(marks)


class _Coming:
    def __init__(self, marks: list[tuple[str, Any]]) -> None:
        self._marks = marks

    def ready(self) -> bool:
        return bool(self._marks[-1][1].query())

    def read(self) -> dict[str, float]:
        self._marks[-1][1].synchronize()
        parts = dict.fromkeys(PARTS, 0.0)
        for (_, before), (part, event) in zip(self._marks, self._marks[1:], strict=False):
            parts[part] += before.elapsed_time(event) / 1000.0  # events count milliseconds
        return {"dt": sum(parts.values()), **parts}


def _now() -> Any:
    event = make_event()
    event.record()
    return event
