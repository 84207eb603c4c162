"""Follow how far the ranks of one host are: who of them speaks, and the stages of their start.

A program that never imports ezpz is watched from outside: whether a Python runs in its process tree, whether libtorch
is mapped in it. One that does (`ezpz.setup_torch`, `ezpz.heartbeat`) reports the exact times itself, on a connection of
its own.
"""

from __future__ import annotations

import sys
import time

from ezpz.launch import agent_messages
from ezpz.local_socket import credentials

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.agent_messages import Message, Settings
    from ezpz.launch.host.rank_process import RankProcess

__all__ = ["Speakers"]

_FIRST_LOOK, _SLOWEST, _LAST_LOOK = 0.25, 5.0, 600.0  # seconds: looks at the stages grow rarer, and end
_EXACT = 0.05  # of the time since the ranks began: how far the time of a look may lie behind the stage


class Speakers:
    """The stages of one host's ranks. It sends nothing itself: what is to be reported is returned.

    Args:
        ranks: The rank processes of the host; others come and go in it.
        settings: What the launcher wants of every agent.
        clock: What to add to this host's clock to get the launcher's, in seconds.
    """

    def __init__(self, ranks: dict[int, RankProcess], settings: Settings, clock: float) -> None:
        self._ranks, self._settings, self._clock = ranks, settings, clock
        self._speakers: dict[socket.socket, RankProcess] = {}
        self._pids: dict[socket.socket, int] = {}  # of the processes that speak
        self._reported: dict[str, int] = {}  # stage to the number of ranks that the launcher knows of
        self._began, self._pause = 0.0, 0.0
        self._look_at: float | None = None
        self.begin()
        self._unsent: list[Message] = []  # reports of ranks that the launcher does not have yet
        self.run_folder = ""  # where a rank of this host keeps the record of its run

    def begin(self) -> None:
        """Look for the stages of the ranks often again, because they begin only now."""
        self._began = time.monotonic()
        self._pause = _FIRST_LOOK
        self._look_at = self._began + self._pause

    def hear(self, connection: socket.socket, message: Message) -> bool:
        """Take a message that a rank itself has sent; tell whether it was one."""
        if isinstance(message, agent_messages.RankSpeaks):
            if message.rank in self._ranks:
                self._speakers[connection] = self._ranks[message.rank]
                self._pids[connection] = message.pid
            return True
        rank = self._speakers.get(connection)
        if rank is not None:
            self._hear_rank(connection, rank, message)
        return rank is not None

    def _hear_rank(self, connection: socket.socket, rank: RankProcess, message: Message) -> None:
        if isinstance(message, agent_messages.StageReached):
            rank.reach(message.stage, time.time())
            if message.stage == "setup":  # it has imported torch, perhaps since the last look
                rank.reach("torch", time.time())
        elif isinstance(message, agent_messages.Recording):
            self.run_folder = message.folder
            if not rank.rank:
                self._unsent.append(message)
        elif isinstance(message, agent_messages.StepsIn):
            rank.follow_step(_pid_of(connection) or rank.pid, message.number)
        elif isinstance(message, agent_messages.DumpsAt):
            rank.dumps[_pid_of(connection) or rank.pid] = message.number

    def speaker(self, connection: socket.socket) -> RankProcess | None:
        """Return which rank speaks on a connection; None before it has said so."""
        return self._speakers.get(connection)

    def hung_up(self, connection: socket.socket) -> tuple[RankProcess | None, int]:
        """Forget a connection; return the rank whose it was, and the process that spoke on it."""
        rank, pid = self._speakers.pop(connection, None), self._pids.pop(connection, 0)
        if rank:
            rank.dumps.clear()
        return rank, pid

    def due(self) -> float | None:
        """Return when there is something to do."""
        return self._look_at

    def tick(self, now: float, expected: int) -> list[Message]:
        """Do what is due, and return the reports that come of it."""
        reports = self._unsent[:]
        self._unsent.clear()
        if self._look_at is not None and now >= self._look_at:
            self._look(now)
            reports += self.stages(expected)
        return reports

    def stages(self, expected: int, *, final: bool = False) -> list[Message]:
        """Return reports of stages that all ranks of this host have reached, or that some have when all is over."""
        reports: list[Message] = []
        ranks = [rank for rank in self._ranks.values() if rank.rank >= 0]
        for stage in agent_messages.STAGES:
            by_rank = [(rank.rank, rank.stages[stage]) for rank in ranks if stage in rank.stages]
            times = sorted(when for _, when in by_rank)
            known = self._reported.get(stage, 0)
            if times and len(times) > known and (final or len(times) >= expected):
                self._reported[stage] = len(times)
                middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
                low, median, high = (when + self._clock for when in (times[0], middle, times[-1]))
                each = [(rank, when + self._clock) for rank, when in by_rank] if self._settings.by_rank else []
                reports.append(
                    agent_messages.Stages(stage=stage, count=len(times), low=low, median=median, high=high, ranks=each)
                )
        return reports

    def _look(self, now: float) -> None:
        from ezpz.launch.host import process_stacks

        waiting = [rank for rank in self._ranks.values() if rank.alive and "torch" not in rank.stages]
        for rank in waiting:
            stage = process_stacks.stage_of(rank.pid) if rank.pid else ""
            if stage:
                rank.reach("interpreter", time.time())
            if stage == "torch":
                rank.reach("torch", time.time())
        self._pause = min(_SLOWEST, max(_FIRST_LOOK, _EXACT * (now - self._began)))
        self._look_at = now + self._pause if now - self._began < _LAST_LOOK else None


def _pid_of(connection: socket.socket) -> int:
    """Return the process on the other side; 0 where the kernel does not tell."""
    return credentials(connection)[0] if sys.platform == "linux" else 0
