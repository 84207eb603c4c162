"""Find out what every rank of one host is doing, and read the last collectives that they leave.

Who is asked where it is shall not change by that. A signal may cut a system call of the program short: a `sleep` of C
returns, and a call may fail with EINTR. So the rank's own thread is asked first, then py-spy, and a signal is sent only
where neither has told.
"""

from __future__ import annotations

import os
import signal
import time

from ezpz import proc
from ezpz.fields import replace
from ezpz.launch.host import process_stacks, rank_start
from ezpz.launch.stack_groups import locate
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.collectives import messages
from ezpz.watch.collectives.beside_main import LOOK, BesideMain, awaited_threads
from ezpz.watch.collectives.last_collectives import CollectivesQuery, collected
from ezpz.watch.collectives.outside_view import LOADER, OutsideView, may_be_saving, source_lines

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.process_stacks import Frame, SeenThread
    from ezpz.launch.host.rank_process import RankProcess

_DUMP = 1.5  # seconds for a rank to write its stacks after the signal
_SOON = 0.4  # the same, and for py-spy, where a launch that fails waits for it
_WORKERS = 4  # of a loader that are asked what they do
_WORKER = 0.2  # seconds for one of them
_SPIED = 32  # children of ranks of this host that py-spy looks at, each for some tenths of a second of CPU
_ANSWER = 0.02  # seconds between two looks for answers of ranks


class StacksOfHost(HostSide):
    """What the launcher has asked of this host, and what of it the ranks have answered."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._dumping: list[RankProcess] = []
        self._stacks: dict[int, messages.RankStack] = {}
        self._by: dict[int, str] = {}
        self._beside: dict[int, BesideMain] = {}
        self._seen_beside: dict[int, list[SeenThread]] = {}
        self._spied: dict[int, list[SeenThread] | None] = {}
        self._threads: CollectivesQuery | None = None  # ranks whose own threads are asked
        self._seen: dict[int, OutsideView] = {}
        self._ends = False  # whether the run ends with this question
        self._workers: list[tuple[RankProcess, int, int]] = []  # of loaders: their rank, process, and what signal asks
        self._left: list[int] = []  # ranks that had ended with 0 when stacks were asked for
        self._asked = 0
        self._held: dict[int, str] = {}  # tracebacks of ranks that had not ended then
        self._end = 0.0  # when no more of them are waited for
        self._question: CollectivesQuery | None = None  # for the last collectives

    def obey(self, order: Message) -> None:
        """Begin to find out what the launcher asks."""
        if isinstance(order, messages.TakeStacks):
            folder = self.handle.settings.collectives
            ranks = [rank for rank in self._of_plan() if not order.only or rank.rank in order.only]
            patience = _SOON if order.only else _DUMP
            self._threads = CollectivesQuery(folder, ranks if folder else [], order.id, patience=patience)
            looked_at = () if order.only else ranks
            self._beside = {rank.rank: BesideMain(self._how(rank)[0]) for rank in looked_at if rank.alive and rank.pid}
            self._when_threads_told(order)
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
        self.handle.stay(self.handle.waits("threads") or self.handle.waits("dumps") or self._question is not None)

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

    def _when_threads_told(self, order: messages.TakeStacks) -> None:
        """Take stacks when the ranks' own threads have told theirs, or had time to."""
        question, now = self._threads, time.monotonic()
        if question is None or question.number != order.id:  # asked anew meanwhile
            return
        if now < question.end and question.silent:
            step = min(_ANSWER, question.end - now)
            self.handle.after(step, lambda: self._when_threads_told(order), "threads")
            return
        self._threads = None
        self._take_stacks(order, question.threads())

    def _take_stacks(self, order: messages.TakeStacks, told: dict[int, list[SeenThread]]) -> None:
        """Begin to find out what every rank is doing, at last by a signal that ends it when that does no more harm.

        Args:
            order: Whether it does.
            told: Threads that ranks have told themselves, the main one first.
        """
        self._asked, self._stacks, self._dumping, self._by, self._workers = order.id, {}, [], {}, []
        self._ends = order.fatal
        asked = [rank for rank in self.handle.ranks.values() if not order.only or rank.rank in order.only]
        self._held = {rank.rank: rank.output.held for rank in asked if order.only and rank.output}
        asks = {rank.rank: self._how(rank) for rank in asked if rank.alive and rank.pid}
        self._left = [rank.rank for rank in self._of_plan() if rank.code == 0]
        self._seen = {number: OutsideView(self.handle.ranks[number], pid) for number, (pid, _) in asks.items()}
        pids = [pid for rank, (pid, _) in asks.items() if pid and rank not in told]
        children = [child for each in self._beside.values() for child in each.to_spy]
        spied = _spy(pids, _SOON) if order.only else _spy([*pids, *children[:_SPIED]])
        self._spied = spied
        self._seen_beside = {rank: told.get(rank) or spied.get(pid) or [] for rank, (pid, _) in asks.items()}
        self._end = time.monotonic() + (_SOON if order.only else _DUMP)
        for number, (pid, signal_number) in asks.items():
            rank = self.handle.ranks[number]
            main = process_stacks.main_of(self._seen_beside[number], pid)
            frames = main.frames if main else []
            may_end = order.fatal and not (order.only and may_be_saving(pid))
            asks_by = signal_number or (int(signal.SIGABRT) if may_end else 0)
            if frames:
                self._by[number] = "its own thread" if number in told else "py-spy"
                self._note(rank, frames, [each.frames for each in self._seen_beside[number] if each is not main])
            # Python takes its handler away when it ends, and a new program has none.
            elif rank.output and asks_by and pid and proc.catches(pid, asks_by):
                rank.output.expect_dump()
                self._dumping.append(rank)
                self._by[number] = "a signal"
                rank.asked_by.add(asks_by)
                _send(pid, asks_by)
                if not signal_number:
                    rank.by_us = True
            else:
                self._note(rank, [])
        self._await_dumps()

    def _await_dumps(self) -> None:
        """Report the stacks when all ranks that write them have ended of that, or their time is over."""
        now = time.monotonic()
        if now < self._end and not all(rank.reported for rank in self._dumping):
            self.handle.after(min(_ANSWER, self._end - now), self._await_dumps, "dumps")
        else:
            self.handle.after(LOOK if self._beside and not self._dumping else 0.0, self._stacks_taken, "dumps")

    def _told_beside(self, number: int) -> list[str]:
        beside = self._beside.get(number)
        return beside.told(self._seen_beside.get(number, ()), self._spied) if beside else []

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

    def _note(self, rank: RankProcess, frames: list[Frame], threads: Sequence[list[Frame]] = ()) -> None:
        """Take the place of a rank: where it raised, if it runs none of its own code any more because of that.

        Args:
            rank: The rank.
            frames: Those of its main thread.
            threads: Those of its others.
        """
        held, raised = self._held.get(rank.rank, ""), ""
        traced = process_stacks.parse_traceback(held)
        if traced and not any(frame.function == "<module>" for frame in frames):
            frames, raised = traced, _raised(held)
        stack = self._seen[rank.rank].told(rank, frames)
        self._stacks[rank.rank] = replace(stack, raised=raised, worker=awaited_threads(frames, threads))

    def _stacks_taken(self) -> None:
        for rank in self._dumping:
            dump = rank.output.dump() if rank.output else ""
            self._note(rank, process_stacks.parse_dump(dump), process_stacks.parse_threads(dump))
        if self._ends:
            self._workers = [each for number in self._seen for each in self._workers_of(self.handle.ranks[number])]
        self._ask_worker()

    def _workers_of(self, rank: RankProcess) -> list[tuple[RankProcess, int, int]]:
        """Return the processes that load data for a rank which waits for them, with the signal that asks them.

        They have inherited it from a rank that lives on after it.
        """
        number = next((rank.dumps[pid] for pid in rank.dumps if proc.catches(pid, rank.dumps[pid])), 0)
        if not (number and rank.alive and self._seen[rank.rank].loads):
            return []
        others = [
            pid for pid in process_stacks.pythons(rank.pid) if pid not in rank.dumps and proc.catches(pid, number)
        ]
        return [(rank, pid, number) for pid in others[:_WORKERS]]

    def _ask_worker(self) -> None:
        """Ask the next worker, one after another: what they write would be mixed; report when there is none."""
        if not self._workers:
            self._report_stacks()
            return
        rank, pid, number = self._workers[0]
        if rank.output:
            rank.output.expect_dump()
        _send(pid, number)
        self.handle.after(_WORKER, self._worker_told, "dumps")

    def _worker_told(self) -> None:
        rank, *_ = self._workers.pop(0)
        frames = process_stacks.parse_dump(rank.output.dump()) if rank.output else []
        place = locate(frames) if frames else None
        if place and place.what != LOADER:  # else it waits for work itself
            where = f"{place.what} ({os.path.basename(place.file)}:{place.line})"
            self._stacks[rank.rank] = replace(self._stacks[rank.rank], worker=where)
            self._workers = [each for each in self._workers if each[0] is not rank]
        self._ask_worker()

    def _report_stacks(self) -> None:
        sources = source_lines({number: each.place for number, each in self._seen.items() if each.place})
        ranks = [replace(each, source=sources.get(each.rank, "")) for each in self._stacks.values()]
        dumps: list[str] = []
        if self.handle.settings.recorder:
            dumps = rank_start.ask(self.handle.settings.recorder, list(self._stacks))
        ranks = [
            replace(each, by=self._by.get(each.rank, "the kernel"), beside=self._told_beside(each.rank))
            for each in ranks
        ]
        taken = messages.StacksTaken(
            id=self._asked,
            host=os.uname().nodename,
            ranks=ranks,
            dumps=dumps,
            left=self._left,
            py_spy=bool(process_stacks.find_py_spy()),
        )
        self.handle.report(taken)
        self._stay()


def _raised(words: str) -> str:
    """Return the exception at the end of a rank's words; empty where it says that others did not come, or were lost."""
    from ezpz.why.last_words import ending
    from ezpz.why.waiting_words import lost_a_peer, waited_in_vain

    return "" if waited_in_vain(words) or lost_a_peer(words) else ending(words).partition("\n")[0][:500]


def _spy(pids: list[int], seconds: float = process_stacks.PY_SPY_SECONDS) -> dict[int, list[SeenThread] | None]:
    """Return what py-spy sees in each process, all at the same time: it may take seconds."""
    import threading

    seen: dict[int, list[SeenThread] | None] = {}

    def look(pid: int) -> None:
        seen[pid] = process_stacks.py_spy(pid, seconds)

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
