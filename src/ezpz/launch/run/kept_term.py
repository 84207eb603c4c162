"""Keep a SIGTERM from outside back while ranks do something first, for which a watcher asks.

Schedulers send it when they preempt, requeue or cancel a job, and so does `ezpz kill`.
"""

from __future__ import annotations

import math
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.event_loop import Loop
    from ezpz.launch.watchers import Wait

__all__ = ["KeptTerm", "seconds_to_wait"]

_MARGIN = 5.0  # seconds before SIGKILL that are left to the program's own handler
_SHARE = 0.5  # of the time until SIGKILL, where that is short
_ONE_SIGNAL = 3.0  # seconds in which a signal that comes again is the same one: schedulers send one several times


def seconds_to_wait(kill_after: float | None, most: float) -> float:
    """Return for how long a SIGTERM may be kept back.

    Args:
        kill_after: Seconds from the SIGTERM to the SIGKILL of a scheduler; None without one.
        most: Seconds that are worth waiting where nobody but the launcher kills.
    """
    return most if kill_after is None else max(kill_after - _MARGIN, _SHARE * kill_after)


class KeptTerm:
    """A SIGTERM that is kept back, or none.

    Args:
        loop: The launcher's.
        say: Writes a line.
        pass_on: Sends it to all ranks.

    Attributes:
        wait: What ranks do before they get it; None where none is kept back.
    """

    def __init__(self, loop: Loop, say: Callable[[str], None], pass_on: Callable[[], None]) -> None:
        self._loop, self._say, self._pass_on = loop, say, pass_on
        self._began = -math.inf
        self.wait: Wait | None = None

    def __bool__(self) -> bool:
        return self.wait is not None

    def begin(self, wait: Wait, kill_after: float | None) -> float:
        """Keep one back that has come now; return for how many seconds at most."""
        self.wait, self._began = wait, time.monotonic()
        return self.limit(kill_after)

    def limit(self, kill_after: float | None) -> float:
        """Keep it back for as long as a SIGKILL so many seconds after it allows; return how long that is."""
        wait = self.wait
        if wait is None:
            return 0.0
        seconds = seconds_to_wait(kill_after, wait.most)
        why = f"the ranks have not {wait.done} within {seconds:g} s; "
        self._loop.at("kept", self._began + seconds, lambda: self.end(why))
        return seconds

    def again(self, *, now: bool = False) -> None:
        """Take a second signal, if one is kept back: it means now, unless it comes so soon that it is the same."""
        if self and (now or time.monotonic() >= self._began + _ONE_SIGNAL):
            self.end("a second signal came; ")

    def fail(self, why: str) -> None:
        """Pass it on because a rank has failed: others may wait for that rank."""
        if self.wait:
            self.end(f"{why} before all ranks had {self.wait.done}; ")

    def end(self, why: str = "") -> None:
        """Pass it on."""
        if self:
            self.drop()
            self._say(f"{why}passing SIGTERM on")
            self._pass_on()

    def drop(self) -> None:
        """Keep it back no longer, because the ranks are killed."""
        self.wait = None
        self._loop.cancel("kept")
