"""Hold a SIGTERM from outside until the ranks have saved, so that a job that is ended early repeats no work.

Schedulers send it when they preempt, requeue or cancel a job, and so does `ezpz kill`. Ranks that can save when asked
(`ezpz.on_save`) do so before they get it; a `train.Loop` saves by itself when it comes.
"""

from __future__ import annotations

import math
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.loop import Loop

__all__ = ["MARGIN", "HeldTerm", "seconds_to_save"]

MARGIN = 5.0  # seconds before SIGKILL that are left to the program's own handler
_SHARE = 0.5  # of the time until SIGKILL, where that is short
_ONE_SIGNAL = 3.0  # seconds in which a signal that comes again is the same one: schedulers send one several times
_ALONE = 25.0  # seconds where nobody but the launcher kills,
_SAVES = 2.0  # or so many of the longest save,
_REACTION = 8.0  # and what ranks need to begin it


def seconds_to_save(kill_after: float | None, longest: float | None) -> float:
    """Return for how long a SIGTERM may be held.

    Args:
        kill_after: Seconds from the SIGTERM to the SIGKILL of a scheduler; None without one.
        longest: Seconds of the longest save so far; None before the first.
    """
    if kill_after is None:
        return max(_ALONE, _SAVES * (longest or 0.0) + _REACTION)
    return max(kill_after - MARGIN, _SHARE * kill_after)


class HeldTerm:
    """A SIGTERM that is held, or none.

    Args:
        loop: The launcher's.
        say: Writes a line.
        pass_on: Sends it to all ranks.
    """

    def __init__(self, loop: Loop, say: Callable[[str], None], pass_on: Callable[[], None]) -> None:
        self._loop, self._say, self._pass_on = loop, say, pass_on
        self._began = -math.inf
        self._is_held = False

    def __bool__(self) -> bool:
        return self._is_held

    def begin(self, seconds: float) -> None:
        """Hold one that has come now, for so long at most."""
        self._is_held, self._began = True, time.monotonic()
        self.limit(seconds)

    def limit(self, seconds: float) -> None:
        """Hold it for so many seconds from its beginning at most."""

        def end() -> None:
            self.end(f"the ranks have not saved within {seconds:g} s; ")

        if self._is_held:
            self._loop.at("held", self._began + seconds, end)

    def again(self, *, now: bool = False) -> None:
        """Take a second signal, if one is held: it means now, unless it comes so soon that it is the same."""
        if self and (now or time.monotonic() >= self._began + _ONE_SIGNAL):
            self.end("a second signal came; ")

    def end(self, why: str = "") -> None:
        """Pass it on."""
        if self._is_held:
            self.drop()
            self._say(f"{why}passing SIGTERM on")
            self._pass_on()

    def drop(self) -> None:
        """Hold it no longer, because the ranks are killed."""
        self._is_held = False
        self._loop.cancel("held")
