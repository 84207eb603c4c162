"""Keep the hosts of a launch: their agents, the programs that started these, and when each of them is given up.

Which ranks run there is no business of the hosts: that is a `World`, of which one after the other, or several at once,
may run on the same agents.
"""

from __future__ import annotations

import math
import signal
import time

from ezpz.launch import agent_messages
from ezpz.launch.run.launcher_child import Children

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.event_loop import Loop
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.control import Control

__all__ = ["Hosts"]

_ASK_EVERY = 5.0  # seconds between two questions to all hosts whether they live,
_NO_ANSWER = 22.0  # and until one that does not answer is lost: about as long as for one that is cut off
_CLEAN_UP = 8.0  # seconds from SIGKILL until a host that reports nothing is given up
_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does
_LINGERS_AFTER_FAILURE = 1.5  # it may wait for a host that is lost
_HUNG_UP = 5.0  # seconds for agents to kill their ranks, and for the programs that started them to end


class Hosts:
    """The hosts of a launch.

    Args:
        plan: How their agents are started.
        control: The agents.
        loop: The launcher's.
        note: Shows the user a sentence.
        lost: Takes the index of a host that stands still, and whose connections do not end.
        wrote: Takes stream and bytes of what the programs write that start agents and ranks.
        is_read: Tells whether somebody reads the output; who does not lets hosts wait.
        is_ending: Tells whether all ranks are being ended: whoever does not end is given up then.

    Attributes:
        children: The programs that start agents and ranks.
        is_killed: Whether all of them have been ordered to kill their ranks.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        control: Control,
        loop: Loop,
        *,
        note: Callable[[str], None],
        lost: Callable[[int], None],
        wrote: Callable[[int, bytes], None],
        is_read: Callable[[], bool],
        is_ending: Callable[[], bool],
    ) -> None:
        self.control = control
        self.children = Children(loop, plan.is_mpi, wrote)
        self.is_killed = False
        self._loop, self._note, self._lost = loop, note, lost
        self._is_read, self._is_ending = is_read, is_ending
        self._planned, self._tells_codes = plan.placement.hosts, plan.tells_codes
        self._was_unread = False  # when hosts were to be given up
        self._answered: dict[int, float] = {}  # host: when it last said that it lives
        self._asked_at = -math.inf

    @property
    def running(self) -> set[int]:
        """The hosts whose agent has come and is not done, by index."""
        return set(self.control.heard) - self.control.done

    @property
    def are_over(self) -> bool:
        """Whether nothing of them is left to wait for."""
        children = self.children
        if children.alive or not children.drained:
            return False
        return not self.control.open_outputs and self.control.all_done

    def name(self, index: int) -> str:
        """Return a host's name as the plan has it, or what it calls itself."""
        planned = self._planned
        return planned[index] if 0 <= index < len(planned) else self.control.heard.get(index, "?")

    def order(self, order: Message, to: set[int] | None = None, *, world: int = 0) -> set[int]:
        """Send the agents of some hosts, or of all, an order for a world; return the hosts that it was sent to."""
        return self.control.order(order, to, world)

    # Whether they live.

    def ask_who_lives(self) -> None:
        """Ask now, and again and again."""
        self._loop.after("alive", _ASK_EVERY, self._ask_who_lives)

    def lives(self, index: int) -> None:
        """Take note of an answer."""
        self._answered[index] = time.monotonic()

    def _ask_who_lives(self) -> None:
        """Give up a host that answers no more, while another one does: it stands still, and its connections do not
        end.
        """
        if self._is_ending():
            return
        now = time.monotonic()
        asked = self.running
        if now - self._asked_at > 2 * _ASK_EVERY:  # this process stood still itself, or it asks for the first time
            self._answered.clear()
        silent = [index for index in asked if now - self._answered.setdefault(index, now) > _NO_ANSWER]
        self._asked_at = now
        self._loop.after("alive", _ASK_EVERY, self._ask_who_lives)
        if silent and any(now - self._answered[index] < 2 * _ASK_EVERY for index in asked):
            for index in silent:
                self.lose(index)
        self.control.order(agent_messages.AreYouAlive(), asked - set(silent))

    def lose(self, index: int) -> None:
        """Give one up, although its connections have not ended."""
        self.control.drop(index)
        self._lost(index)

    # Their end.

    def kill(self) -> None:
        """Kill all ranks of all worlds now, and give up the hosts that do not report the end of that."""
        self.is_killed = True
        reached = self.order(agent_messages.Kill())
        self._loop.after("clean", _CLEAN_UP, self._clean_up_is_over)
        if not reached:
            self.children.kill(signal.SIGKILL)

    def _clean_up_is_over(self) -> None:
        """Give hosts up; but they report their end behind their output, and who reads it slowly lets them wait."""
        if not self._is_read():
            self._was_unread = True
        elif self._was_unread:
            self._was_unread = False
        else:
            self.give_up()
            return
        self._loop.after("clean", _CLEAN_UP, self._clean_up_is_over)

    def give_up(self) -> None:
        """Wait no longer for hosts that report nothing after SIGKILL, nor for the programs that started them."""
        self.children.kill(signal.SIGKILL, group=True)
        silent = [self.name(index) for index in self.control.heard if index not in self.control.done]
        if silent and self._is_read():
            self._note(f"{', '.join(silent[:3])} did not report that all is over there")
        self.control.done.update(self.control.heard)
        self.control.give_up()

    def release(self, *, after_failure: bool) -> None:
        """Let shims end when all hosts are done; then mpiexec has nothing left to wait for."""
        control, children = self.control, self.children
        if control.heard and control.all_done and not self._loop.waits_for("lingers") and children.alive:
            self.order(agent_messages.Release(codes=self._tells_codes))
            self._loop.after("lingers", _LINGERS_AFTER_FAILURE if after_failure else _LINGERS, self._end_programs)

    def _end_programs(self) -> None:
        """End the programs that still run although nothing is left for them to do."""
        self.children.kill(signal.SIGKILL if self.is_killed else signal.SIGTERM)
        if self.children.alive:
            self.is_killed = True
            self._loop.after("lingers", _LINGERS_AFTER_FAILURE, self._end_programs)

    def hang_up(self) -> None:
        """Leave the agents, which end their ranks by that, and wait a moment for what runs only as long as these do."""
        self.is_killed = True
        self.control.close()
        end = time.monotonic() + _HUNG_UP
        while self.children.alive and time.monotonic() < end:
            self.children.reap()
            time.sleep(0.01)
