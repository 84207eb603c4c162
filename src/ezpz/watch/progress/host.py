"""Follow the heartbeats, sections and steps of the ranks of one host, and report those that show no progress."""

from __future__ import annotations

import math
import signal
import time

from ezpz import durations
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.progress import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.rank_process import RankProcess

_LOOK = 5.0  # seconds between two looks at most
_LATE = 1.0  # seconds behind the time of a look: this process itself stood still


class _Rank:
    """What a rank has shown of its progress.

    Attributes:
        rank: The rank.
        beat: When it last showed some, by the monotonic clock; None as long as none is expected of it.
        has_beaten: Whether it ever sent a heartbeat.
        section: Where it may be without one for longer, or for less long, than elsewhere; None outside.
        ending: Seconds that it may take for its end when its program has ended; 0 before.
        is_busy: Whether it has reported that it works on its record, so that other ranks may wait for it.
        is_idle: Whether it was reported to show none.
    """

    __slots__ = ("beat", "ending", "has_beaten", "is_busy", "is_idle", "rank", "section")

    def __init__(self, rank: RankProcess) -> None:
        self.rank = rank
        self.beat: float | None = None
        self.section: messages.Section | None = None
        self.ending = 0.0
        self.has_beaten = self.is_busy = self.is_idle = False

    def enter(self, section: messages.Section | None) -> None:
        """Let it be in a section, or in none: either is progress, but none outside is expected before a beat."""
        self.section = section if section and section.name else None
        self.beat = time.monotonic() if self.section or self.has_beaten else None
        self.is_idle = False

    def limit(self, usual: float) -> float | None:
        """Return how long it may show no progress where it is."""
        section = self.section
        if section is None:
            return max(usual, self.ending)
        if section.timeout <= 0:
            return None
        timeout = min(section.timeout, durations.LONGEST)
        return max(usual, timeout) if section.at_least else timeout

    def due(self, usual: float | None) -> float | None:
        """Return when its limit is over; None where it has none now."""
        if not usual or not self.rank.alive or self.beat is None or self.is_idle:
            return None
        limit = self.limit(usual)
        return self.beat + limit if limit else None


class ProgressOfHost(HostSide):
    """The time without progress of each rank that has ever shown some."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._ranks: dict[int, _Rank] = {}
        self._usual = handle.settings.idle  # seconds; None without a limit
        self._stopped_at: float | None = None  # when the launcher stopped all ranks
        self._look_at = math.inf
        self._awake = 0.0  # when this process was last seen to run

    def hear(self, rank: RankProcess, message: Message) -> None:
        """Take what a rank tells of its progress."""
        self._come(time.monotonic())
        own = self._of(rank)
        if isinstance(message, messages.Beat):
            own.beat, own.has_beaten, own.is_idle = time.monotonic(), True, False
        elif isinstance(message, messages.Ending):
            own.ending = message.seconds
            own.enter(None)
        elif isinstance(message, messages.Section):
            own.enter(message)
        elif isinstance(message, messages.At):
            rank.step = message.step
        elif isinstance(message, messages.Pace):
            if not rank.rank and self.handle.settings.live:
                self.handle.report(message)
        elif isinstance(message, messages.Busy):
            self._set_busy(own, busy=bool(message.busy))
        self._look_by(own.due(self._usual))

    def hung_up(self, connection: socket.socket, rank: RankProcess, pid: int) -> None:
        """Expect nothing more of a process: another program may run in its place."""
        del connection
        own = self._of(rank)
        if own.section is not None:
            own.enter(None)
        if pid != rank.pid:  # one that the rank had started, as a shell does, and nothing is expected of the next
            own.beat, own.has_beaten, own.ending = None, False, 0.0
        if own.is_busy:
            self._set_busy(own, busy=False)
        self._look_by(own.due(self._usual))

    def obey(self, order: Message) -> None:
        """Count the time without progress from now on, but of ranks that are busy: these make progress themselves."""
        del order
        for own in self._ranks.values():
            if own.beat is not None and not own.is_busy:
                own.beat, own.is_idle = time.monotonic(), False
                self._look_by(own.due(self._usual))

    def signalled(self, number: int) -> None:
        """Take note of a signal to all ranks: none of them is idle while it is stopped."""
        now = time.monotonic()
        if number == signal.SIGSTOP:
            self._stopped_at = now
        elif number == signal.SIGCONT and self._stopped_at is not None:
            self._forgive(now - self._stopped_at)
            self._stopped_at = None

    def _of(self, rank: RankProcess) -> _Rank:
        return self._ranks.setdefault(rank.rank, _Rank(rank))

    def _set_busy(self, own: _Rank, *, busy: bool) -> None:
        own.is_busy = busy
        if self._usual:
            self.handle.report(messages.RankBusy(rank=own.rank.rank, busy=busy))

    def _look_by(self, due: float | None) -> None:
        """Look at the ranks at a moment at the latest, and every few seconds."""
        if due is not None and due < self._look_at:
            now = time.monotonic()
            self._look_at = min(due, now + _LOOK)
            self.handle.after(self._look_at - now, self._look)

    def _look(self) -> None:
        """Report ranks whose limit is over."""
        now = time.monotonic()
        self._come(now)
        self._look_at = math.inf
        for own in self._ranks.values():
            due = own.due(self._usual)
            if due is not None and now >= due and self._stopped_at is None:
                self._report(own, now)
        dues = [due for own in self._ranks.values() if (due := own.due(self._usual)) is not None]
        if dues:
            self._look_by(min(dues) if self._stopped_at is None else now + _LATE)

    def _come(self, now: float) -> None:
        """Forgive ranks the time in which this process stood still, stopped in its terminal or by its host: it has
        heard nothing since it was last awake, and ranks may have stood still as well.
        """
        if now - self._look_at > _LATE:
            self._forgive(now - self._awake)
            self._look_at = now  # what comes with the same waking is no second time
        self._awake = now

    def _report(self, own: _Rank, now: float) -> None:
        own.is_idle = True
        self.handle.report(
            messages.Idle(
                rank=own.rank.rank,
                pid=own.rank.pid,
                seconds=now - (own.beat or now),
                limit=own.limit(self._usual or 0.0) or 0.0,
                section=own.section.name if own.section else "",
                ending=own.ending > 0,
            )
        )

    def _forgive(self, seconds: float) -> None:
        for own in self._ranks.values():
            if own.beat is not None:
                own.beat += seconds
