"""Find out what every rank of one host is doing, and read the last collectives that they leave."""

from __future__ import annotations

import os
import signal
import time

from ezpz import proc
from ezpz.launch.host import process_stacks, rank_start
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.collectives import messages
from ezpz.watch.collectives.last_collectives import CollectivesQuery, collected

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.process_stacks import Frame
    from ezpz.launch.host.rank_process import RankProcess

_DUMP = 1.5  # seconds for a rank to write its stacks after the signal
_ANSWER = 0.02  # seconds between two looks for answers of ranks


class StacksOfHost(HostSide):
    """What the launcher has asked of this host, and what of it the ranks have answered."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._dumping: list[RankProcess] = []
        self._stacks: dict[int, messages.RankStack] = {}
        self._asked = 0
        self._question: CollectivesQuery | None = None  # for the last collectives

    def obey(self, order: Message) -> None:
        """Begin to find out what the launcher asks."""
        if isinstance(order, messages.TakeStacks):
            self._take_stacks(order)
        elif isinstance(order, messages.TellCollectives):
            self._question = CollectivesQuery(self.handle.settings.collectives, self._of_plan(), order.id)
            self._look_for_answers()
        self._stay()

    def finish(self) -> None:
        """Report what ranks that have failed left of their last collectives, where it was not asked for."""
        folder = self.handle.settings.collectives
        if not folder or not any(rank.code for rank in self._of_plan()):
            return
        ranks = collected(folder, self._of_plan(), set(), self.handle.clock, whole=self.handle.settings.by_rank)
        if ranks:
            self.handle.report(messages.CollectivesTold(id=0, host=os.uname().nodename, ranks=ranks))

    def _stay(self) -> None:
        """Keep the agent from ending as long as the launcher waits."""
        self.handle.stay(self.handle.waits("dumps") or self._question is not None)

    def _of_plan(self) -> list[RankProcess]:
        return [rank for rank in self.handle.ranks.values() if rank.rank >= 0]

    def _look_for_answers(self) -> None:
        question = self._question
        if question is None:
            return
        now = time.monotonic()
        if now < question.end and question.silent:
            self.handle.after(min(_ANSWER, question.end - now), self._look_for_answers, "answers")
            return
        self._question = None
        settings = self.handle.settings
        self.handle.report(question.answer(os.uname().nodename, self.handle.clock, whole=settings.by_rank))
        self._stay()

    def _take_stacks(self, order: messages.TakeStacks) -> None:
        """Begin to find out what every rank is doing, at last by a signal that ends it when that does no more harm."""
        self._asked, self._stacks, self._dumping = order.id, {}, []
        asks = {rank.rank: self._how(rank) for rank in self.handle.ranks.values() if rank.alive and rank.pid}
        spied = _spy([pid for pid, number in asks.values() if pid and not number])
        for number, (pid, signal_number) in asks.items():
            rank = self.handle.ranks[number]
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
                self._note(rank, [], process_stacks.kernel_state(pid or rank.pid))
        self.handle.after(_DUMP if self._dumping else 0.0, self._stacks_taken, "dumps")

    @staticmethod
    def _how(rank: RankProcess) -> tuple[int, int]:
        """Return the Python of a rank, 0 without any, and the signal at which it writes its stacks, 0 where it named
        none.
        """
        pythons = process_stacks.pythons(rank.pid)
        asked = next(((pid, rank.dumps[pid]) for pid in pythons if pid in rank.dumps), None)
        if asked or not pythons:
            return asked or (0, 0)
        # The first one may only wait for the program, as `accelerate launch` does.
        return next((pid for pid in pythons if process_stacks.maps_torch(pid)), pythons[0]), 0

    def _note(self, rank: RankProcess, frames: list[Frame], where: str) -> None:
        rows = [(frame.function, frame.file, frame.line) for frame in frames]
        self._stacks[rank.rank] = messages.RankStack(rank=rank.rank, pid=rank.pid, frames=rows, where=where)

    def _stacks_taken(self) -> None:
        for rank in self._dumping:
            frames = process_stacks.parse_dump(rank.output.dump()) if rank.output else []
            self._note(rank, frames, "" if frames else process_stacks.kernel_state(rank.pid))
        dumps: list[str] = []
        if self.handle.settings.recorder:
            dumps = rank_start.ask(self.handle.settings.recorder, list(self._stacks))
        host, ranks = os.uname().nodename, list(self._stacks.values())
        self.handle.report(messages.StacksTaken(id=self._asked, host=host, ranks=ranks, dumps=dumps))
        self._stay()


def _spy(pids: list[int]) -> dict[int, list[Frame] | None]:
    """Return what py-spy sees in each process, all at the same time: it may take seconds."""
    import threading

    seen: dict[int, list[Frame] | None] = {}

    def look(pid: int) -> None:
        seen[pid] = process_stacks.py_spy(pid)

    threads = [threading.Thread(target=look, args=(pid,)) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already
