"""Run the one process per host that speaks with the launcher: it hears shims and ranks, reads output, and kills.

It is forked off by the first shim of a host (``mpiexec``, ``srun``), or by the launcher itself (local), or run as
``python3 -I -S start_agent.py`` by ``ssh HOST`` or, under ``--mpi no``, by ``mpiexec`` and ``srun``. In all cases but
the first it is the parent of the ranks, and there are no shims. When the connection to the launcher ends, it kills all
ranks of its host: that is how nothing outlives a launcher that was killed. What it reports, and what it is ordered to
do, are the tables of `ezpz.launch.messages`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ezpz import proc
from ezpz.errors import LaunchError, shell_code
from ezpz.launch import messages
from ezpz.launch.backlog import enlarge, keep_freed_memory
from ezpz.launch.host import process_tree, rank_start
from ezpz.launch.host.connection import Connection
from ezpz.launch.host.local_socket import credentials, is_own, receive, send, will_pass
from ezpz.launch.host.rank_input import RankInput
from ezpz.launch.host.rank_process import LARGE_PIPE, READ, RankProcess
from ezpz.launch.host.rank_start import FOR_RANK_ALONE, TO_ALL
from ezpz.launch.host.speakers import Speakers
from ezpz.launch.loop import NO_ROOM, Loop, SignalPipe
from ezpz.launch.watchers import HostHandle, Watchers

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from ezpz.launch.host.connection import NoConnection
    from ezpz.launch.host.end_facts import Counters
    from ezpz.launch.host.mpi_trap import MpiTrap
    from ezpz.launch.host.output import RankOutput
    from ezpz.launch.messages import Message

__all__ = ["UNKNOWN", "Agent"]

UNKNOWN = 10**9  # ranks expected where it is not known which host of the plan this is: it waits for the launcher

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TWICE = 2.0  # seconds in which a signal to all processes of the job, and the launcher's order to pass it on, are one
_ASKED = 60.0  # seconds in which a rank that a scheduler has asked to end is not asked again
_LOST_GRACE = 2.0  # seconds for a scheduler's own SIGTERM to reach the ranks of a launcher that was killed
_FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL, where no launcher decides
_PARTIAL = 2.0  # seconds after which the launcher gets to know that not all ranks have come
_MISMATCH = 0.3  # seconds for the other ranks of a wrong world
_LET_IN = 256  # shims and ranks at once: whoever else calls shall not keep this process busy
_READS = 4  # of one pipe in a turn
# Pipes of a host that are made larger: 8 MiB of the 64 that a user of Linux may have before all new ones are small.
_MOST_LARGE = 32
_PASSED = "its launcher sent it that signal"
_CONNECT_AGAIN, _MOST_TRIES = 0.2, 5  # seconds until output that was cut off is connected again; times it is tried
_LOOK_FOR_ABSENT, _ABSENT_LOOKS = 1.0, 3  # seconds between two looks for ranks that cannot come any more
_COMING = 2.0  # seconds for the shims of a launch that has gone
_COUNTED = 0.05  # seconds until the kernel's counters are read
_RELEASE = 30.0  # seconds for the launcher to order how shims shall end


class LocalConnections:
    """The connections of one host's shims and ranks, on the Unix socket where they meet.

    Args:
        loop: Where they are watched.
        heard: Takes each message, with its connection and the open files that came with it.
        hung_up: Takes a connection that has ended.
    """

    def __init__(
        self,
        loop: Loop,
        heard: Callable[[socket.socket, Message, tuple[int, ...]], None],
        hung_up: Callable[[socket.socket], None],
    ) -> None:
        self._loop, self._heard, self._hung_up = loop, heard, hung_up
        self._inboxes: dict[socket.socket, messages.LineReader] = {}

    def listen(self, listener: socket.socket) -> None:
        """Let shims and ranks in."""
        listener.setblocking(False)
        self._loop.read(listener, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        """Let in those that wait, and hear them at once: a rank may have reported its last step, and ended since."""
        for _ in range(_LET_IN):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:  # no connection waits any more
                return
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._loop.rest(listener)
                    return
                continue  # who waited went away again
            if not is_own(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._inboxes[connection] = messages.LineReader(messages.FROM_RANKS)
            self._loop.read(connection, self._read)
            self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            data, files = receive(connection)
        except OSError as error:
            if isinstance(error, BlockingIOError) or will_pass(error):
                return
            data, files = b"", []
        try:
            for message in self._inboxes[connection].feed(data):
                self._heard(connection, message, tuple(files))
        except messages.MalformedMessage:
            data = b""
        if not data:
            self._loop.forget(connection)
            connection.close()
            del self._inboxes[connection]
            self._hung_up(connection)


class RankPipes:
    """The pipes of one host's ranks, read as fast as the launcher takes what they write."""

    def __init__(self, loop: Loop, ranks: dict[int, RankProcess], connection: Connection | NoConnection) -> None:
        self._loop, self._ranks, self._connection = loop, ranks, connection
        self._large: set[int] = set()  # pipes that were found full

    def add(self, rank: RankProcess) -> None:
        """Read what a rank writes."""
        for fd in rank.pipes:
            self._watch(rank, fd)

    def close(self, rank: RankProcess) -> None:
        """Read no more of a rank that has ended: a grandchild may hold its pipes for ever."""
        for fd in list(rank.pipes):
            self._close(rank, fd)

    def keep_pace(self) -> None:
        """Read only while the launcher takes more; else the pipes fill, and the ranks wait.

        What a rank has written before its end is read in any case.
        """
        connection = self._connection
        is_full = connection.full
        for rank in self._ranks.values():
            is_held = is_full and rank.may_wait
            if is_held != rank.is_held:
                rank.is_held = is_held
                for fd in rank.pipes:
                    if is_held:
                        self._loop.forget(fd)
                    else:
                        self._watch(rank, fd)
        if isinstance(connection, Connection) and not connection.is_cut:
            if connection.waiting:
                self._loop.write(connection.output, lambda _: connection.push())
            else:
                self._loop.forget(connection.output)

    def show(self) -> None:
        """Pass on all that may be shown now."""
        now = time.monotonic()
        for rank in self._ranks.values():
            if rank.output and not rank.reported:
                self._show(rank, rank.output, now)
                if rank.output.problem and not rank.log_ended:
                    rank.log_ended = True
                    self._connection.report(messages.Note(text=f"rank {rank.rank}: {rank.output.problem}"))
        self._connection.push()

    def _show(self, rank: RankProcess, output: RankOutput, now: float) -> None:
        for stream, data in output.take(now):
            self._connection.show(rank.rank, stream, data)

    def _watch(self, rank: RankProcess, fd: int) -> None:
        self._loop.read(fd, lambda fd: self._read(rank, fd))

    def _read(self, rank: RankProcess, fd: int) -> None:
        now, slots = time.monotonic(), self._connection.slots
        for _ in range(_READS):
            # Only a pipe that was found full is worth a slot: most launches need none of that memory.
            slot = slots.free() if slots and fd in self._large and rank.may_lend(fd) else None
            if slots and slot is not None:
                room = slots.room(slot)
                size, most, lent = rank.read_into(fd, room, now)
                if lent:
                    self._connection.lend(rank.rank, rank.pipes[fd], slot, lent)
            else:
                size, most = rank.read(fd, now), READ
            if size == 0:
                self._close(rank, fd)
            if size and rank.output and not rank.reported:
                self._show(rank, rank.output, now)  # while it is in the caches
            if size != most or (self._connection.full and rank.may_wait):
                return
            if fd not in self._large and len(self._large) < _MOST_LARGE:
                self._large.add(fd)
                enlarge(fd, LARGE_PIPE)

    def _close(self, rank: RankProcess, fd: int) -> None:
        self._loop.forget(fd)
        self._large.discard(fd)
        rank.close(fd)


class Agent:
    """The ranks of one host.

    Args:
        connection: To the launcher.
        launch: Id of the launch.
        expected: How many ranks this host shall have.
        own_session: Whether the ranks that it starts itself leave its session.
        has_shims: Whether others start the ranks, with shims in front of them.
        waits: Whether it ends only when the launcher lets it: an mpiexec would judge the end of this process by rules
            of its own.

    Attributes:
        ranks: The rank processes; those that are none of the plan below zero.
    """

    def __init__(
        self,
        connection: Connection | NoConnection,
        launch: str,
        expected: int,
        *,
        own_session: bool = True,
        has_shims: bool = False,
        waits: bool = False,
    ) -> None:
        self.connection = connection
        self.launch = launch
        self.expected = expected
        self.own_session = own_session
        self.has_shims = has_shims
        self.waits = waits
        self.ranks: dict[int, RankProcess] = {}
        self._counters: Counters | None = None
        self._loop = Loop()
        self._speakers = Speakers(self.ranks, connection.settings, connection.clock)
        self._local = LocalConnections(self._loop, self._hear, self._hung_up)
        self._pipes = RankPipes(self._loop, self.ranks, connection)
        self._input: RankInput | None = None
        self._heard: dict[int, float] = {}  # signal: when it came to this process, and so to every process of the job
        self._is_signalled_alone = False
        self._ordered: dict[int, float] = {}  # signal: when the launcher has last had it passed on
        self._holds_terms = False  # because ranks do something before they get a SIGTERM from outside
        self._term_is_held = False
        self._trap: MpiTrap | None = None
        self._tells_code = True
        self._start: Callable[[], None] | None = None  # starts the ranks where there are no shims
        self._noted: set[str] = set()
        # World, family and words of the ranks that are none of the plan.
        self._strangers: list[tuple[str, str, str]] = []
        self._servants: set[int] = set()  # what mpiexec has started on this host to start shims
        self._partial: list[int] = []
        self._tries = 0  # in turn that could not connect the output again
        self._absent = 0  # looks in turn that found ranks missing and nothing that could become one
        self._over = False
        self._lost = False
        self._up = False
        self._holders: set[str] = set()  # watchers for which they wait
        self._stayers: set[str] = set()  # watchers for which this process stays
        self._begun = not has_shims
        self._done = False
        self._stuck: list[int] | None = None  # what survives at the end of all ranks; None before that
        self._turns_away = False  # shims that still come, because no rank of this launch is to begin
        self._finished = False
        self._watch = Watchers(connection.settings.watchers, "host", self._handle, self._note_once, self._drop)
        if isinstance(connection, Connection):
            self._loop.read(connection.control, lambda _: self._obey())

    def _handle(self, name: str, config: str, guarded: Callable[..., Any]) -> HostHandle:
        """Return what a watcher may do here."""
        handle = HostHandle(name, config, self._loop, self._note_once, guarded)
        handle.ranks, handle.clock, handle.launch = self.ranks, self.connection.clock, self.launch
        handle.expected, handle.has_shims = self.expected, self.has_shims
        handle.report = self.connection.report
        handle.fail = self.give_up
        handle.is_running = lambda: self._begun and len(self.ranks) >= self.expected
        handle.hold = lambda holds: self._hold_start(name, holds=holds)
        handle.stay = lambda stays: (self._stayers.add if stays else self._stayers.discard)(name)
        handle.settings, handle.answer = self.connection.settings, _answer
        return handle

    def _drop(self, name: str) -> None:
        """Wait for a watcher no more, because it has failed."""
        self._stayers.discard(name)
        self._hold_start(name, holds=False)

    def _hold_start(self, name: str, *, holds: bool) -> None:
        """Keep the ranks of all hosts from beginning, by not being up, or let them."""
        if holds:
            self._holders.add(name)
        elif name in self._holders:
            self._holders.discard(name)
            if self._up:
                self._report_up(self.expected)

    def stand_guard(self, *, obeys_signals: bool, is_signalled_alone: bool = False) -> None:
        """Adopt orphans, and notice the end of children; other signals end only what is a host's own process.

        Elsewhere they tell what need not be passed on: like a rank this process has a session of its own, so a
        scheduler that reaches it (Slurm, by parents or cgroup) has reached the ranks too. PBS signals the sessions that
        it has started: this process ``is_signalled_alone``, and the launcher, which decides.
        """
        self._is_signalled_alone = is_signalled_alone
        signals = SignalPipe((signal.SIGCHLD, *_ENDING, *FOR_RANK_ALONE))
        signals.__enter__()
        process_tree.adopt()
        self._loop.read(signals, lambda _: self._signalled(signals.take(), obeys_signals))

    def listen(self, listener: socket.socket) -> None:
        """Let shims and ranks in."""
        self._local.listen(listener)

    def hear_starter(self, pipe: int) -> None:
        """Read which signals mpiexec or srun sends to the process in front of this one, and notice that one's end."""
        self._servants |= {process_tree.servant_of(os.getppid())} - {0}
        self._loop.read(pipe, self._on_starter_signals)

    def refuse_mpi(self, asked: str) -> None:
        """End each rank that starts an MPI; `variables` of the ranks see to it that none goes unnoticed.

        Args:
            asked: The option or variable by which none does.

        Raises:
            LaunchError: An MPI would go unnoticed.
        """
        from ezpz.launch.host.mpi_trap import MpiTrap

        self._trap = MpiTrap(self._loop, lambda number: self._mpi_started(number, asked))

    def variables(self, rank: int) -> dict[str, str]:
        """Return what a rank of this agent has among its variables besides those of the plan."""
        return self._trap.variables(rank) if self._trap else {}

    def add(self, rank: RankProcess) -> None:
        """Take charge of a rank."""
        self.ranks[rank.rank] = rank
        if self._counters:
            self._count(rank)
        else:
            self._loop.after("counters", _COUNTED, self._count_all)
        self._pipes.add(rank)
        self._give_input(rank)
        self._loop.after("partial", _PARTIAL, self._report_partial)

    def _count_all(self) -> None:
        """Note what the kernel has counted so far around each rank, once they run: a short run pays nothing."""
        from ezpz.launch.host.end_facts import Counters

        self._counters = Counters()
        for rank in self.ranks.values():
            self._count(rank)

    def _count(self, rank: RankProcess) -> None:
        assert self._counters
        shim = rank.shim_pid if rank.is_near else 0
        self._counters.begin(rank.rank, shim if rank.shim else "self")

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Let watchers do what they do beside the start of the ranks.

        Args:
            environ: What ranks get.
            first: Whether rank 0 is among them.
        """
        self._watch.before_begin(environ, first=first)

    def wait_for_all(self, start: Callable[[], None]) -> None:
        """Call ``start``, which adds this host's ranks, when those of all hosts can begin; without a launcher at
        once.
        """
        self._start, self._begun = start, False
        if isinstance(self.connection, Connection):
            self._report_up(self.expected)
        else:
            self._begin()

    def give_up(self, why: str, *, cannot: bool = False) -> None:
        """Tell the launcher that this host's part cannot continue, and kill its ranks.

        Args:
            why: What has happened.
            cannot: Whether the host lacks what ranks need.
        """
        self.connection.report(messages.Refused(text=why, cannot=cannot))
        self._kill()

    def turn_away(self) -> None:
        """End the shims of a launch that has gone before any rank began; what comes later finds an agent of its own."""
        self._turns_away = True
        self._loop.after("turned away", _COMING, self._leave)

    def _leave(self) -> None:
        self._over = True

    def run(self) -> int:
        """Return the exit code of the first rank that failed here, when nothing of this host's ranks is left."""
        keep_freed_memory()
        self._watch.start(self._loop)
        while not self._over:
            self._pipes.keep_pace()
            self._mend_output()
            due = self._speakers.due()
            now = self._loop.turn(due, *self._dues())
            self._pipes.show()
            self._settle()
            for message in self._speakers.tick(now, self.expected):
                self.connection.report(message)
        code = next((rank.code for rank in self._by_end() if rank.code and not (rank.by_us and self.waits)), 0)
        return shell_code(code) if self._tells_code else 0

    def _mend_output(self) -> None:
        """See to it that a connection for output that was cut is made once more."""
        connection = self.connection
        if not isinstance(connection, Connection) or self._lost or connection.is_given_up:
            return
        if connection.is_cut and not self._loop.waits_for("output"):
            self._loop.forget(connection.output)
            self._loop.after("output", _CONNECT_AGAIN, self._connect_output)

    def _connect_output(self) -> None:
        """Make it once more; a launcher that has gone has shown that on the other connection by now."""
        connection, why = self.connection, "it was inherited"
        assert isinstance(connection, Connection)
        if connection.can_connect_again:
            try:
                connection.connect_again()
            except (OSError, ValueError) as error:  # ValueError: what answers is no launcher
                why = str(getattr(error, "strerror", None) or error)
            else:
                self._tries = 0
                if self._input:
                    self._input.resume()
                return
        self._tries += 1
        if connection.can_connect_again and self._tries < _MOST_TRIES:
            self._loop.after("output", self._tries, self._connect_output)
        else:
            connection.give_up_output()
            self.give_up(f"its connection for output was cut and cannot be made again: {why}")

    # Messages of shims and ranks.

    def _hear(self, connection: socket.socket, message: Message, files: tuple[int, ...]) -> None:
        if isinstance(message, messages.ShimStarted):
            self._shim_started(connection, message, files)
        elif self._speakers.hear(connection, message):
            speaker = self._speakers.speaker(connection)
            if speaker:
                self._watch.hear(message, connection, speaker)
        else:
            rank = next((rank for rank in self.ranks.values() if rank.shim is connection), None)
            if rank:
                self._hear_shim(rank, message)

    def _shim_started(self, connection: socket.socket, shim: messages.ShimStarted, pipes: tuple[int, ...]) -> None:
        if self._turns_away:
            for fd in pipes:
                os.close(fd)
            try:
                send(connection, messages.TO_SHIMS.encode(messages.Release(codes=False)))
            except OSError:
                pass  # it has gone by itself
            return
        # A second rank 0 is none of the plan's, and will say so.
        known = shim.rank < 0 or shim.rank in self.ranks
        number = -len(self.ranks) - 1 if known else shim.rank
        rank = RankProcess(
            number,
            pipes=pipes[:2],
            stdin=pipes[2] if len(pipes) > 2 else None,
            log_dir=self.connection.settings.log_dir,
        )
        rank.world, rank.family = shim.world, shim.family
        rank.shim, rank.shim_pid = connection, shim.pid
        rank.is_near = sys.platform == "linux" and credentials(connection)[0] == shim.pid
        rank.reach("shim", shim.time)
        self._servants |= {process_tree.servant_of(shim.pid)} - {0}
        self.add(rank)
        self._loop.after("absent", _LOOK_FOR_ABSENT, self._look_for_absent)

    def _look_for_absent(self) -> None:
        """Give this host up when some of its ranks can no longer come: Intel MPI's mpiexec says nothing of a shim that
        was killed before it had connected, and waits.
        """
        if self._begun or self._turns_away or not len(self.ranks) < self.expected < UNKNOWN:
            return
        shims = {rank.shim_pid for rank in self.ranks.values() if rank.is_near}
        servants = self._servants
        running = {pid for servant in servants for pid in proc.children(servant) or () if not process_tree.is_gone(pid)}
        # An mpiexec's servant starts all of a host at once: nothing is left that could still come.
        self._absent = self._absent + 1 if shims == running and len(shims) == len(self.ranks) else 0
        if self._absent < _ABSENT_LOOKS:
            self._loop.after("absent", _LOOK_FOR_ABSENT, self._look_for_absent)
            return
        gone = self.expected - len(self.ranks)
        text = f"{gone} of its {self.expected} ranks ended before they came up, and its launcher has not said why"
        self.give_up(text, cannot=True)

    def _hear_shim(self, rank: RankProcess, message: Message) -> None:
        if isinstance(message, messages.RankReady):
            self._rank_ready(rank)
        elif isinstance(message, messages.RankStarted):
            rank.pid = message.pid
            rank.reach("process", time.time())
            self._give_input(rank)
        elif isinstance(message, messages.SignalPassed):
            if not self._hold_back(message.number):
                rank.passed[message.number] = time.monotonic()
        elif isinstance(message, messages.RankEnded):
            rank.end(message.code, _PASSED if -message.code in rank.passed else "")
        elif isinstance(message, messages.ShimCrashed):
            rank.shim_crash = message.text.rpartition(": ")[2]
        elif isinstance(message, messages.CannotRun):
            from ezpz.launch.host.rank_start import cannot_run

            why = f"cannot run {message.program}: {os.strerror(message.number)}"
            rank.end(cannot_run(message.number), why)
        elif isinstance(message, messages.PortTaken):
            self.connection.report(message)
        elif isinstance(message, messages.Note):
            self._note_once(message.text)
        elif isinstance(message, messages.WrongWorld):
            self._strangers.append((str(rank.world), rank.family, message.text))
            self._loop.after("mismatch", _MISMATCH, self._report_mismatch)

    def _rank_ready(self, rank: RankProcess) -> None:
        if rank.rank < 0:
            text = f"a rank came up that is there already (from {rank.family}); expected each once (from the plan)"
            self._strangers.append((str(rank.world), rank.family, text))
            self._loop.after("mismatch", _MISMATCH, self._report_mismatch)
            return
        rank.ready = True
        if self._begun or not isinstance(self.connection, Connection):
            rank.begin()

    def _begin(self) -> None:
        """Let the ranks begin: those of all hosts are ready, or there is no launcher that could tell."""
        if self._begun or self._over:
            return
        self._begun = True
        self._speakers.begin()
        if self._start:
            try:
                self._start()
            except LaunchError as error:
                self.give_up(str(error), cannot=True)
        for rank in self._alive():
            if rank.ready:
                rank.begin()

    def _give_input(self, rank: RankProcess) -> None:
        """Let the input of rank 0 come when it runs: no start that fails shall have read of it."""
        if rank.stdin is None or not rank.pid or rank.rank:
            return
        if isinstance(self.connection, Connection):
            self._input = RankInput(self._loop, self.connection, rank.stdin)
        else:
            os.close(rank.stdin)
            self.connection.report(messages.Note(text="rank 0 gets no input: the launcher cannot be reached"))
        rank.stdin = None

    def _hung_up(self, connection: socket.socket) -> None:
        speaker, pid = self._speakers.hung_up(connection)
        if speaker:
            self._watch.all("hung_up", connection, speaker, pid)
        for rank in self.ranks.values():
            if rank.shim is connection:
                rank.shim = None
                does = "was killed by" if rank.shim_crash.startswith(("SIG", "signal ")) else "crashed:"
                crash = rank.shim_crash and f"the shim in front of it (pid {rank.shim_pid}) {does} {rank.shim_crash}"
                rank.end(-signal.SIGKILL, crash or f"its shim (pid {rank.shim_pid}) was killed")

    def _mpi_started(self, number: int, asked: str) -> None:
        rank = self.ranks.get(number)
        if rank and rank.alive:
            rank.refused = (
                f"cannot start an MPI: no MPI has started the ranks (from {asked}), so that it would be alone in its "
                "world; expected a program without MPI. Start it with `launch --mpi yes`"
            )
            rank.signal(signal.SIGKILL, group=self.own_session)

    # Signals, and orders of the launcher.

    def _on_starter_signals(self, pipe: int) -> None:
        """Pass on a signal that mpiexec or srun has sent; without them this host's ranks end."""
        numbers = os.read(pipe, 4096)
        if not numbers:
            self._loop.forget(pipe)
            if not self._done:
                self.give_up("its launcher has ended what it had started there")
            return
        now = time.monotonic()
        for byte in numbers:
            number, reached = byte & ~TO_ALL, bool(byte & TO_ALL)
            if not self._begun:
                if number in _ENDING:
                    self.give_up(f"its launcher sent it {signal.Signals(number).name} before its ranks began")
                    self._over = True  # srun waits for this end, and tells then what it ended all for
                continue
            if self._hold_back(number):
                continue
            reached = reached or self._ordered.get(number, -_TWICE) > now - _TWICE
            self._heard[number] = now
            for rank in self._alive():
                rank.passed[number] = now
                rank.signal(number, group=self.own_session, reached=reached)
            self._give_early_signals()

    def _signalled(self, numbers: bytes, obeys: bool) -> None:
        for pid, status in process_tree.reap():
            rank = next((rank for rank in self.ranks.values() if rank.pid == pid and not rank.shim_pid), None)
            if rank:
                code = os.waitstatus_to_exitcode(status)
                if self.own_session:
                    _kill(-pid)  # what it left behind
                rank.end(code, _PASSED if -code in rank.passed else "")
        if not self._is_signalled_alone:
            self._heard.update(dict.fromkeys(numbers, time.monotonic()))
        ending = set(numbers) & set(_ENDING)
        if ending and obeys:  # sshd has gone, or somebody means this agent
            text = f"its host agent received {signal.Signals(min(ending)).name}"
            self.give_up(text)

    def _give_early_signals(self) -> None:
        """Give ranks the signals that are held for them, now and again and again until they have handlers."""
        early = {number for rank in self.ranks.values() if rank.give_early_signals() for number in rank.early_signals}
        if early:
            from ezpz.launch.host import early_signals

            for number in early:
                self._note_once(early_signals.note(number))
            self._loop.after("early signals", early_signals.AGAIN, self._give_early_signals)

    def _note_once(self, text: str) -> None:
        """Tell the launcher what many ranks may say in the same words."""
        if text not in self._noted:
            self._noted.add(text)
            self.connection.report(messages.Note(text=text))

    def _obey(self) -> None:
        assert isinstance(self.connection, Connection)
        for order in self.connection.orders():
            if isinstance(order, messages.Begin):
                self._begin()
            elif isinstance(order, messages.Signal):
                self._pass_on(order.number)
            elif isinstance(order, messages.OutputTaken | messages.ConnectOutput):
                self.connection.obey(order)
            elif isinstance(order, messages.Hold):
                self._hold_terms(order)
            elif isinstance(order, messages.AreYouAlive):
                self.connection.report(messages.Alive())
            elif isinstance(order, messages.Kill):
                self._kill()
            elif isinstance(order, messages.Release):
                self._release(codes=order.codes)
            elif isinstance(order, messages.Lost) and self._done and self._turns_away:
                self._over = True  # nothing is left here; what runs now is another start's of the same launch
            elif isinstance(order, messages.Lost):
                self._loop.forget(self.connection.control)
                self._launcher_lost(self.connection.settings.parting)
            else:
                self._watch.obey(order)

    def _pass_on(self, number: int) -> None:
        """Give the ranks a signal that the launcher has sent."""
        reached = self._heard.pop(number, -_TWICE) > time.monotonic() - _TWICE
        self._ordered[number] = time.monotonic()
        if number == signal.SIGTERM and self._holds_terms:
            self._let_term_go()
            reached = False  # a rank that it has reached has kept it back
        for rank in self._alive():
            asked = rank.passed.get(number, -_ASKED) > time.monotonic() - _ASKED
            if number not in _ENDING or not asked:  # twice would mean now
                rank.signal(number, group=self.own_session, reached=reached)
        self._note_held_term()
        self._give_early_signals()
        self._watch.all("signalled", number)

    def _hold_terms(self, order: messages.Hold) -> None:
        """Keep the SIGTERMs back that others send to ranks, until the launcher sends one, or no longer."""
        self._holds_terms = order.how > 0
        self._watch.terms_wait(order)
        for rank in self._alive():
            if rank.shim:
                rank.order(order)

    def _hold_back(self, number: int) -> bool:
        """Tell whether a signal that a rank is to get from elsewhere is held; the launcher decides then."""
        if number != signal.SIGTERM or not self._holds_terms:
            return False
        self._term_is_held = True
        self.connection.report(messages.TermHeld())
        return True

    def _let_term_go(self) -> None:
        """Let ranks know that the SIGTERM comes now, and hold none any more."""
        if self._holds_terms:
            self._holds_terms = False
            self._watch.all("term_comes")

    def _note_held_term(self) -> None:
        """Note that ranks have got what others sent them, if the SIGTERM of now was held: so a second one is none."""
        if self._term_is_held and not self._holds_terms:
            self._term_is_held = False
            for rank in self._alive():
                rank.passed[signal.SIGTERM] = time.monotonic()

    def _launcher_lost(self, patience: float) -> None:
        """End this host's ranks: at once, unless it may be their scheduler that has killed the launcher.

        At the end of a job Slurm sends SIGTERM to the batch script and to the other steps. A script that ends of it
        takes the launcher along, which Slurm kills at once; the steps have until KillWait is over, and may use it.
        """
        if not (patience and self._begun and self._alive()):
            self._end_lost()
            return
        self._lost = True
        self._let_term_go()
        for rank in self._alive():
            rank.signal(signal.SIGTERM, group=self.own_session)  # a shim passes it on once, whoever else sends it
        self._note_held_term()
        self._loop.after("lost", _LOST_GRACE, lambda: self._still_there(patience - _LOST_GRACE))

    def _still_there(self, left: float) -> None:
        """Let ranks go on for so many seconds if their scheduler has sent them SIGTERM itself."""
        if any(signal.SIGTERM in rank.passed for rank in self.ranks.values()):
            self._loop.after("lost", left, self._end_lost)
        else:
            self._end_lost()

    def _end_lost(self) -> None:
        self._kill()
        process_tree.kill_all(self.launch, everything=True)
        for servant in self._servants:
            _kill(servant)
        self._over = True

    # Who has come up, who has ended, and whether all is over.

    def _settle(self) -> None:
        """Report who came up and who has ended, and see whether all is over."""
        ready = sum(rank.ready and rank.rank >= 0 and (rank.alive or self._begun) for rank in self.ranks.values())
        if not self._up and ready >= self.expected:
            self._report_up(ready)
        for rank in self._by_end():
            if rank.drained and not rank.reported:
                self._report_end(rank)
        if self._stayers or (self._input and not self._input.over):
            return
        if self._stuck is not None:
            self._finish()
            return
        if self.ranks and len(self.ranks) >= self.expected and all(rank.reported for rank in self.ranks.values()):
            self._finish()

    def _report_up(self, ranks: int) -> None:
        self._up = True
        self._loop.cancel("partial")
        if not self._holders:
            self.connection.report(messages.Up(ranks=ranks))

    def _report_partial(self) -> None:
        if self._up:
            return
        have = sorted(rank.rank for rank in self.ranks.values() if rank.ready)
        if have != self._partial:
            self.connection.report(messages.Partial(have=len(have)))
        self._partial = have
        self._loop.after("partial", _PARTIAL, self._report_partial)

    def _report_mismatch(self) -> None:
        """Tell the launcher of a wrong world, now that its other ranks on this host have come."""
        self.connection.report(messages.Mismatch(host=os.uname().nodename, worlds=self._strangers))

    def _report_end(self, rank: RankProcess) -> None:
        rank.reported = True
        self._watch.ended(rank)
        self._pipes.close(rank)
        if rank.stdin is not None:
            os.close(rank.stdin)
        if self._input and not rank.rank:
            self._input.close()
        failed = bool(rank.code)
        output = rank.output
        if output:
            for stream, data in output.end(failed, time.monotonic(), code=rank.code or 0):
                self.connection.show(rank.rank, stream, data)
        if rank.ended_of_asking:
            text = f"rank {rank.rank} (pid {rank.pid}) ended of the signal that asks for stacks; it was about to end"
            self.connection.report(messages.Note(text=text))
        if not failed:
            if not self._finished:
                at = rank.ended_at + self.connection.clock
                self.connection.report(messages.Finished(rank=rank.rank, pid=rank.pid, at=at, step=rank.step))
            self._finished = True
            return
        if rank.by_us:
            return
        from ezpz.launch.host.end_facts import room_on_disks

        words = output.words if output else ""
        end = messages.RankFailed(
            rank=rank.rank,
            pid=rank.pid,
            code=rank.code or 0,
            at=rank.ended_at + self.connection.clock,
            why=rank.why,
            words=words,
            shown=output.words_shown if output else True,
            step=rank.step,
            memory=self._counters.at_end(rank.rank, rank.ended_at) if self._counters else messages.NOTHING_COUNTED,
            room=room_on_disks(words, (self._speakers.run_folder, os.environ.get("TMPDIR") or "/tmp", ".")),  # noqa: S108
        )
        self.connection.report(end)
        if not isinstance(self.connection, Connection) and not self._loop.waits_for("kill"):
            for other in self._alive():
                other.by_us = True
                other.signal(signal.SIGTERM, group=self.own_session)
            self._loop.after("kill", _FAILURE_GRACE, self._kill)

    def _finish(self) -> None:
        """Report that all is over here, once the launcher has all output, however long the screen takes; shims whose
        rank failed wait until the launcher has stopped the other hosts.

        Nothing is left to report when shims end: Slurm may kill this process then.
        """
        if self._done:
            return
        if self._lost:
            self._end_lost()
            return
        if self._stuck is None:
            self._stuck = self._tidy_up()
        if not self.connection.delivered:
            return  # it comes back here
        self._done = True
        self.connection.report(
            messages.Done(stuck=self._stuck, step=max((rank.step for rank in self.ranks.values()), default=-1))
        )
        if not isinstance(self.connection, Connection):
            self._release(codes=True)
        elif self.waits or any(rank.shim and rank.code for rank in self.ranks.values()):
            self._loop.after("release", _RELEASE, lambda: self._release(codes=True))
        else:
            self._release(codes=False)

    def _tidy_up(self) -> list[int]:
        """Kill what the ranks have left, and say all that is to be said before the end; return who survives."""
        self._watch.all("finish")
        # What a killed shim had adopted has no parent that waits for it.
        lost = any(rank.shim_pid and not rank.shim for rank in self.ranks.values())
        stuck = process_tree.kill_all(self.launch) if lost or not process_tree.childless() else []
        for message in self._speakers.stages(self.expected, final=True):
            self.connection.report(message)
        rank_start.clear_folders(self.connection.settings)
        self.connection.end_output()
        return stuck

    def _release(self, *, codes: bool) -> None:
        """Let the shims end, all together: Hydra (MPICH 5.0.2) uses a whole core from the end of its first process
        on.
        """
        self._tells_code = codes
        for rank in self.ranks.values():
            rank.release(codes=codes and not (rank.by_us or rank.ended_of_asking))
        self._over = not self._turns_away  # else it stays until the launcher hangs up

    def _kill(self) -> None:
        """Kill all that was started here: orphans of whatever session become children of their shim, or of this
        process.
        """
        self._turns_away = not self._begun and self.has_shims and isinstance(self.connection, Connection)
        for rank in self._alive():
            rank.signal(signal.SIGKILL, group=self.own_session)
        shims = {rank.shim_pid for rank in self.ranks.values() if rank.shim}
        stuck = process_tree.kill_all(self.launch, spare=shims, below=shims)
        for rank in self._alive():
            rank.by_us = True
            rank.end(-signal.SIGKILL)
        self.expected = min(self.expected, len(self.ranks))
        if stuck:
            text = f"processes {', '.join(map(str, stuck))} on {os.uname().nodename} survive SIGKILL"
            self.connection.report(messages.Note(text=text))
        if not self.ranks:
            self._finish()

    def _dues(self) -> list[float | None]:
        dues: list[float | None] = []
        for rank in self.ranks.values():
            if not rank.reported:
                dues += [rank.drain_by, rank.output.due() if rank.output else None]
        return dues

    def _alive(self) -> list[RankProcess]:
        return [rank for rank in self.ranks.values() if rank.alive]

    def _by_end(self) -> list[RankProcess]:
        return sorted((rank for rank in self.ranks.values() if not rank.alive), key=lambda rank: rank.ended_at)


def _answer(connection: socket.socket, message: Message) -> None:
    """Send the process of a rank a message."""
    try:
        send(connection, messages.TO_RANKS.encode(message))
    except OSError:
        pass  # it ends, or has read nothing for long: it does not answer, which whoever asks notices


def _kill(pid: int) -> None:
    """Send SIGKILL to a process, or to a process group when the number is negative."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # nothing is left of it
