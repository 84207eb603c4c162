"""Follow how far the ranks of one host are: the stages of their start, their heartbeats, and what a hanging rank does.

A program that never imports ezpz is watched from outside: whether a Python runs in its process tree, whether libtorch
is mapped in it. One that does (`ezpz.setup_torch`, `ezpz.heartbeat`) reports the exact times itself, on a connection of
its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ezpz import durations, proc
from ezpz.launch import messages
from ezpz.launch.host.local_socket import credentials

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.host.last_collectives import Question
    from ezpz.launch.host.rank_process import RankProcess
    from ezpz.launch.host.savers import HostSavers
    from ezpz.launch.host.stacks import Frame
    from ezpz.launch.messages import Message, Settings

__all__ = ["Progress"]

_FIRST_LOOK, _SLOWEST, _LAST_LOOK = 0.25, 5.0, 600.0  # seconds: looks at the stages grow rarer, and end
_EXACT = 0.05  # of the time since the ranks began: how far the time of a look may lie behind the stage
_DUMP = 1.5  # seconds for a rank to write its stacks after the signal
_ANSWER = 0.02  # seconds between two looks for answers of ranks
_LATE = 1.0  # seconds behind the time when it was to look
_ORDER = ("shim", "process", "interpreter", "torch", "setup", "met", "group", "model", "data", "step", "second_step")


class Progress:
    """Stages, heartbeats and stacks of one host's ranks. It sends nothing itself: what is to be reported is returned.

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
        self._idle: set[int] = set()
        self._unsent: list[Message] = []  # reports of ranks that the launcher does not have yet
        self._stopped_at: float | None = None  # when the launcher stopped all ranks
        self._dump_by: float | None = None
        self._dumping: list[RankProcess] = []
        self._stacks: dict[int, messages.RankStack] = {}
        self._asked = 0
        self._savers: HostSavers | None = None  # made when the first rank says that it can save
        self._question: Question | None = None  # for the last collectives
        self.run_folder = ""  # where a rank of this host keeps the record of its run

    def begin(self) -> None:
        """Look for the stages of the ranks often again, because they begin only now."""
        self._began = time.monotonic()
        self._pause = _FIRST_LOOK
        self._look_at = self._began + self._pause

    def hear(self, connection: socket.socket, message: Message) -> bool:
        """Take a message that a rank itself has sent; tell whether it was one."""
        if isinstance(message, messages.RankSpeaks):
            if message.rank in self._ranks:
                self._speakers[connection] = self._ranks[message.rank]
                self._pids[connection] = message.pid
            return True
        rank = self._speakers.get(connection)
        if rank is not None:
            self._hear_rank(connection, rank, message)
        return rank is not None

    def _hear_rank(self, connection: socket.socket, rank: RankProcess, message: Message) -> None:
        if isinstance(message, messages.StageReached):
            rank.reach(message.stage, time.time())
            if message.stage == "setup":  # it has imported torch, perhaps since the last look
                rank.reach("torch", time.time())
        elif isinstance(message, messages.Beat):
            rank.beat = time.monotonic()
            rank.has_beaten = True
            self._idle.discard(rank.rank)
        elif isinstance(message, messages.Ending):
            rank.ending = message.seconds
            self._set_section(rank, None)
        elif isinstance(message, messages.Section):
            self._set_section(rank, message)
        elif isinstance(message, messages.At):
            rank.step = message.step
            if self._savers:
                self._savers.came_to(rank.rank, message.step)
        elif isinstance(message, messages.Pace | messages.Recording):
            self._pass_on(rank, message)
        elif isinstance(message, messages.DumpsAt):
            rank.dumps[_pid_of(connection) or rank.pid] = message.number
        elif isinstance(message, messages.Busy):
            self._set_busy(rank, busy=bool(message.busy))
        elif isinstance(message, messages.Saver | messages.Saved | messages.Leaves | messages.SaveAnswer):
            self._hear_of_saving(connection, rank, message)

    def speaker(self, connection: socket.socket) -> RankProcess | None:
        """Return which rank speaks on a connection; None before it has said so."""
        return self._speakers.get(connection)

    def hung_up(self, connection: socket.socket) -> None:
        """Forget a rank's connection."""
        rank, pid = self._speakers.pop(connection, None), self._pids.pop(connection, 0)
        if rank:
            rank.dumps.clear()
            if rank.section is not None:  # another program may run in its place
                self._set_section(rank, None)
            if pid != rank.pid:  # one that the rank had started, as a shell does, and nothing is expected of the next
                rank.beat, rank.has_beaten, rank.ending = None, False, 0.0
            if rank.is_busy:
                self._set_busy(rank, busy=False)
            if self._savers:
                self._savers.forget(connection)

    def _hear_of_saving(
        self,
        connection: socket.socket,
        rank: RankProcess,
        message: messages.Saver | messages.Saved | messages.Leaves | messages.SaveAnswer,
    ) -> None:
        self._make_savers().hear(connection, rank, message)

    def _make_savers(self) -> HostSavers:
        if self._savers is None:
            from ezpz.launch.host.savers import HostSavers

            self._savers = HostSavers(self._unsent)
        return self._savers

    def _pass_on(self, rank: RankProcess, message: messages.Pace | messages.Recording) -> None:
        if isinstance(message, messages.Recording):
            self.run_folder = message.folder
        if rank.rank == 0 and (self._settings.live or isinstance(message, messages.Recording)):
            self._unsent.append(message)

    def _set_busy(self, rank: RankProcess, *, busy: bool) -> None:
        rank.is_busy = busy
        if self._settings.idle:
            self._unsent.append(messages.RankBusy(rank=rank.rank, busy=busy))

    def _set_section(self, rank: RankProcess, section: messages.Section | None) -> None:
        """Let a rank be in a section, or in none: either is progress, but none outside is expected before a beat."""
        rank.section = section if section and section.name else None
        rank.beat = time.monotonic() if rank.section or rank.has_beaten else None
        self._idle.discard(rank.rank)

    def _limit(self, rank: RankProcess) -> float | None:
        """Return how long a rank may show no progress where it is."""
        limit, section = self._settings.idle, rank.section
        if not limit or section is None:
            return limit and max(limit, rank.ending)
        if section.timeout <= 0:
            return None
        timeout = min(section.timeout, durations.LONGEST)
        return max(limit, timeout) if section.at_least else timeout

    def count_anew(self) -> None:
        """Count the time without progress from now on, but of ranks that are busy: these make progress themselves."""
        for rank in self._ranks.values():
            if rank.beat is not None and not rank.is_busy:
                rank.beat = time.monotonic()
                self._idle.discard(rank.rank)

    def signalled(self, number: int) -> None:
        """Take note of a signal to all ranks: none of them is idle while it is stopped."""
        now = time.monotonic()
        if number == signal.SIGSTOP:
            self._stopped_at = now
        elif number == signal.SIGCONT and self._stopped_at is not None:
            self._forgive(now - self._stopped_at)
            self._stopped_at = None

    def came_back(self, now: float, due: float | None) -> None:
        """Take note that this process itself stood still, stopped in its terminal or by its host: it has heard nothing
        meanwhile.
        """
        if due is not None and now - due > _LATE:
            self._forgive(now - due)

    def _forgive(self, seconds: float) -> None:
        for rank in self._ranks.values():
            if rank.beat is not None:
                rank.beat += seconds

    @property
    def busy(self) -> bool:
        """Whether the launcher waits for stacks, or for collectives."""
        return self._dump_by is not None or self._question is not None

    def due(self) -> float | None:
        """Return when there is something to do."""
        dues = [self._look_at, self._dump_by, self._next_idle()]
        if self._question:
            dues.append(min(self._question.end, time.monotonic() + _ANSWER))
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float, expected: int) -> list[Message]:
        """Do what is due, and return the reports that come of it."""
        reports = self._unsent[:]
        self._unsent.clear()
        if self._look_at is not None and now >= self._look_at:
            self._look(now)
            reports += self.stages(expected)
        for rank, limit, due in self._idle_dues():
            if now >= due:
                self._idle.add(rank.rank)
                reports.append(
                    messages.Idle(
                        rank=rank.rank,
                        pid=rank.pid,
                        seconds=now - due + limit,
                        limit=limit,
                        section=rank.section.name if rank.section else "",
                        ending=rank.ending > 0,
                    )
                )
        if self._dump_by is not None and now >= self._dump_by:
            reports.append(self._stacks_taken())
        if self._question and (now >= self._question.end or not self._question.silent):
            question, self._question = self._question, None
            reports.append(question.answer(os.uname().nodename, self._clock, whole=self._settings.by_rank))
        return reports

    def stages(self, expected: int, *, final: bool = False) -> list[Message]:
        """Return reports of stages that all ranks of this host have reached, or that some have when all is over."""
        reports: list[Message] = []
        ranks = [rank for rank in self._ranks.values() if rank.rank >= 0]
        for stage in _ORDER:
            by_rank = [(rank.rank, rank.stages[stage]) for rank in ranks if stage in rank.stages]
            times = sorted(when for _, when in by_rank)
            known = self._reported.get(stage, 0)
            if times and len(times) > known and (final or len(times) >= expected):
                self._reported[stage] = len(times)
                middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
                low, median, high = (when + self._clock for when in (times[0], middle, times[-1]))
                each = [(rank, when + self._clock) for rank, when in by_rank] if self._settings.by_rank else []
                reports.append(
                    messages.Stages(stage=stage, count=len(times), low=low, median=median, high=high, ranks=each)
                )
        return reports

    def obey(
        self,
        order: messages.TakeStacks
        | messages.TellCollectives
        | messages.CountAnew
        | messages.AskToSave
        | messages.SaveNow
        | messages.Hold
        | messages.Signal,
    ) -> None:
        """Do what the launcher orders."""
        if isinstance(order, messages.AskToSave | messages.SaveNow | messages.Hold | messages.Signal):
            if isinstance(order, messages.Hold):
                self._make_savers()  # for ranks that can save later
            if self._savers:
                self._savers.ask(order)
        elif isinstance(order, messages.TakeStacks):
            self.take_stacks(order)
        elif isinstance(order, messages.TellCollectives):
            from ezpz.launch.host.last_collectives import Question

            self._question = Question(self._settings.collectives, self._of_plan(), order.id)
        else:
            self.count_anew()

    def take_stacks(self, order: messages.TakeStacks) -> None:
        """Begin to find out what every rank is doing, at last by a signal that ends it when that does no more harm."""
        from ezpz.launch.host import stacks

        self._asked, self._stacks, self._dumping = order.id, {}, []
        asks = {rank.rank: self._how(rank) for rank in self._ranks.values() if rank.alive and rank.pid}
        spied = _spy([pid for pid, number in asks.values() if pid and not number])
        for number, (pid, signal_number) in asks.items():
            rank = self._ranks[number]
            frames = spied.get(pid)
            asks_by = signal_number or (int(signal.SIGABRT) if order.fatal else 0)
            if frames:
                self._note(rank, frames, "")
            # Python takes its handler away when it ends, and a new program has none.
            elif rank.output and asks_by and pid and proc.catches(pid, asks_by):
                rank.output.expect_dump()
                self._dumping.append(rank)
                rank.asked_by.add(asks_by)
                _send(pid, asks_by)
                if not signal_number:
                    rank.by_us = True
            else:
                self._note(rank, [], stacks.kernel_state(pid or rank.pid))
        self._dump_by = time.monotonic() + (_DUMP if self._dumping else 0.0)

    def last_words(self) -> list[Message]:
        """Return what ranks that have failed left of their last collectives, where it was not asked for."""
        if not self._settings.collectives or not any(rank.code for rank in self._of_plan()):
            return []
        from ezpz.launch.host.last_collectives import collected

        ranks = collected(self._settings.collectives, self._of_plan(), set(), self._clock, whole=self._settings.by_rank)
        return [messages.CollectivesTold(id=0, host=os.uname().nodename, ranks=ranks)] if ranks else []

    def _of_plan(self) -> list[RankProcess]:
        return [rank for rank in self._ranks.values() if rank.rank >= 0]

    def clear(self) -> None:
        """Take away what ranks needed to tell their last collectives."""
        if self._settings.collectives and os.path.isdir(self._settings.collectives):
            from ezpz.launch.host import last_collectives

            last_collectives.clear(self._settings.collectives)
        if self._settings.recorder:
            from ezpz.launch.host import rank_start

            rank_start.clear(self._settings.recorder)

    @staticmethod
    def _how(rank: RankProcess) -> tuple[int, int]:
        """Return the Python of a rank, 0 without any, and the signal at which it writes its stacks, 0 where it named
        none.
        """
        from ezpz.launch.host import stacks

        pythons = stacks.pythons(rank.pid)
        asked = next(((pid, rank.dumps[pid]) for pid in pythons if pid in rank.dumps), None)
        if asked or not pythons:
            return asked or (0, 0)
        # The first one may only wait for the program, as `accelerate launch` does.
        return next((pid for pid in pythons if stacks.maps_torch(pid)), pythons[0]), 0

    def _note(self, rank: RankProcess, frames: list[Frame], where: str) -> None:
        rows = [(frame.function, frame.file, frame.line) for frame in frames]
        self._stacks[rank.rank] = messages.RankStack(rank=rank.rank, pid=rank.pid, frames=rows, where=where)

    def _stacks_taken(self) -> Message:
        from ezpz.launch.host import stacks

        self._dump_by = None
        for rank in self._dumping:
            frames = stacks.parse_dump(rank.output.dump()) if rank.output else []
            self._note(rank, frames, "" if frames else stacks.kernel_state(rank.pid))
        dumps: list[str] = []
        if self._settings.recorder:
            from ezpz.launch.host import rank_start

            dumps = rank_start.ask(self._settings.recorder, list(self._stacks))
        host, ranks = os.uname().nodename, list(self._stacks.values())
        return messages.StacksTaken(id=self._asked, host=host, ranks=ranks, dumps=dumps)

    def _look(self, now: float) -> None:
        from ezpz.launch.host import stacks

        waiting = [rank for rank in self._ranks.values() if rank.alive and "torch" not in rank.stages]
        for rank in waiting:
            stage = stacks.stage_of(rank.pid) if rank.pid else ""
            if stage:
                rank.reach("interpreter", time.time())
            if stage == "torch":
                rank.reach("torch", time.time())
        self._pause = min(_SLOWEST, max(_FIRST_LOOK, _EXACT * (now - self._began)))
        self._look_at = now + self._pause if now - self._began < _LAST_LOOK else None

    def _idle_dues(self) -> list[tuple[RankProcess, float, float]]:
        """Return each rank that is watched, its limit, and when that is over."""
        if not self._settings.idle or self._stopped_at is not None:
            return []
        dues = []
        for rank in self._ranks.values():
            if rank.alive and rank.beat is not None and rank.rank not in self._idle:
                limit = self._limit(rank)
                if limit:
                    dues.append((rank, limit, rank.beat + limit))
        return dues

    def _next_idle(self) -> float | None:
        return min((due for _, _, due in self._idle_dues()), default=None)


def _spy(pids: list[int]) -> dict[int, list[Frame] | None]:
    """Return what py-spy sees in each process, all at the same time: it may take seconds."""
    import threading

    from ezpz.launch.host import stacks

    seen: dict[int, list[Frame] | None] = {}

    def look(pid: int) -> None:
        seen[pid] = stacks.py_spy(pid)

    threads = [threading.Thread(target=look, args=(pid,)) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def _pid_of(connection: socket.socket) -> int:
    """Return the process on the other side; 0 where the kernel does not tell."""
    return credentials(connection)[0] if sys.platform == "linux" else 0


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already
