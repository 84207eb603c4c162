"""Own the ranks of one world on this host: start them when all can begin, read what they write, and report their ends.

A world is the ranks of one program on some hosts. The one that comes with its agent (number 0) is of today's launches,
and is the host as a whole as well; an agent that stays holds several others (`ezpz.launch.agent_messages.Start`), each
with a socket, signals, timers and an end of its own. What is the host's and not a world's is `ezpz.launch.host.agent`.
"""

from __future__ import annotations

import os
import signal
import time

from ezpz import proc
from ezpz.errors import EzpzError
from ezpz.fields import Malformed
from ezpz.launch import agent_messages
from ezpz.launch.backlog import enlarge
from ezpz.launch.event_loop import NO_ROOM
from ezpz.launch.host import process_tree, rank_start
from ezpz.launch.host.connection import Connection
from ezpz.launch.host.rank_process import LARGE_PIPE, READ, RankProcess
from ezpz.launch.host.rank_stdin import RankInput
from ezpz.launch.host.speakers import Speakers
from ezpz.launch.limits import shortage
from ezpz.launch.watchers import HostHandle, Watchers
from ezpz.local_socket import is_own, receive, send, will_pass

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.event_loop import Loop
    from ezpz.launch.host.connection import NoConnection
    from ezpz.launch.host.end_facts import Counters
    from ezpz.launch.host.mpi_trap import MpiTrap
    from ezpz.launch.host.rank_output import RankOutput

__all__ = ["ENDING", "LocalConnections", "LocalWorld", "RankPipes", "handle_of"]

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TWICE = 2.0  # seconds in which a signal to all processes of the job, and the launcher's order to pass it on, are one
_ASKED = 60.0  # seconds in which a rank that a scheduler has asked to end is not asked again
_FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL, where no launcher decides
_PARTIAL = 2.0  # seconds after which the launcher gets to know that not all ranks have come
_MISMATCH = 0.3  # seconds for the other ranks of a wrong world
_LET_IN = 256  # shims and ranks at once: whoever else calls shall not keep this process busy
_READS = 4  # of one pipe in a turn
# Pipes of a host that are made larger: 8 MiB of the 64 that a user of Linux may have before all new ones are small.
_MOST_LARGE = 32
_PASSED = "its launcher sent it that signal"
_COUNTED = 0.05  # seconds until the kernel's counters are read


class LocalConnections:
    """The connections of one world's shims and ranks on this host, on the Unix socket where they meet.

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
        self._inboxes: dict[socket.socket, agent_messages.LineReader] = {}
        self._listener: socket.socket | None = None

    def listen(self, listener: socket.socket) -> None:
        """Let shims and ranks in."""
        listener.setblocking(False)
        self._listener = listener
        self._loop.read(listener, self._accept)

    def close(self) -> None:
        """Let nobody in any more, and hang up."""
        for each in (self._listener, *self._inboxes):
            if each:
                self._loop.forget(each)
                each.close()
        self._inboxes.clear()

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
            self._inboxes[connection] = agent_messages.LineReader(agent_messages.FROM_RANKS)
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
        except Malformed:
            data = b""
        if not data:
            self._loop.forget(connection)
            connection.close()
            del self._inboxes[connection]
            self._hung_up(connection)


class RankPipes:
    """The pipes of one world's ranks on this host, read as fast as the launcher takes what they write.

    Args:
        loop: Where they are watched.
        ranks: The ranks; others come and go in it.
        connection: Takes what they write.
        world: The number of their world.
        large: Pipes of this host that were found full.
    """

    def __init__(
        self,
        loop: Loop,
        ranks: dict[int, RankProcess],
        connection: Connection | NoConnection,
        world: int = 0,
        large: set[int] | None = None,
    ) -> None:
        self._loop, self._ranks, self._connection, self._world = loop, ranks, connection, world
        self._large = set() if large is None else large

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
        is_full = self._connection.full
        for rank in self._ranks.values():
            is_held = is_full and rank.may_wait
            if is_held != rank.is_held:
                rank.is_held = is_held
                for fd in rank.pipes:
                    if is_held:
                        self._loop.forget(fd)
                    else:
                        self._watch(rank, fd)

    def show(self) -> None:
        """Pass on all that may be shown now."""
        now = time.monotonic()
        for rank in self._ranks.values():
            if rank.output and not rank.reported:
                self._show(rank, rank.output, now)
                if rank.output.problem and not rank.log_ended:
                    rank.log_ended = True
                    self._connection.report(
                        agent_messages.Note(text=f"rank {rank.rank}: {rank.output.problem}"), self._world
                    )
        self._connection.push()

    def _show(self, rank: RankProcess, output: RankOutput, now: float) -> None:
        for stream, data in output.take(now):
            self._connection.show(rank.rank, stream, data, self._world)

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
                    self._connection.lend(rank.rank, rank.pipes[fd], slot, lent, self._world)
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


class LocalWorld:
    """The ranks of one world on this host.

    Args:
        loop: Where its files and timers are watched: its own part of the agent's, which ends with it.
        connection: To the launcher.
        launch: Id of the launch.
        ended: Takes this world when it was killed before it had any rank, so that no end of one tells.
        expected: How many ranks it shall have here.
        number: See below.
        settings: What the launcher wants of it; what it wants of every agent, unless it is another.
        own_session: Whether the ranks that this process starts itself leave its session.
        has_shims: Whether others start the ranks, with shims in front of them.
        shim_came: Takes the first words of a shim; without it none is expected.
        host: The agent's own watchers, where it has some besides those of its worlds.
        holders: Those of them for which all worlds wait.
        on_host: The ranks of all its worlds, by pid.
        large: Pipes of this host that were found full.

    Attributes:
        number: By which the launcher addresses it: 0 for the one that comes with its agent.
        launch: Id of the launch; in front of that of a later world, by which alone its processes are known.
        ranks: The rank processes; those that are none of the plan below zero.
        folder: Where its ranks start; empty for where this process is.
        up: Whether all are ready.
        begun: Whether they may run.
        stayers: Watchers for which it does not end.
        stuck: What survives at the end of all ranks; None before that.
        turns_away: Whether shims that still come are sent away, because no rank of this launch is to begin.
    """

    def __init__(
        self,
        loop: Loop,
        connection: Connection | NoConnection,
        launch: str,
        ended: Callable[[LocalWorld], None],
        *,
        expected: int = 0,
        number: int = 0,
        settings: agent_messages.Settings | None = None,
        own_session: bool = True,
        has_shims: bool = False,
        shim_came: Callable[[socket.socket, agent_messages.ShimStarted, tuple[int, ...]], None] | None = None,
        host: Watchers | None = None,
        holders: set[str] | None = None,
        on_host: dict[int, RankProcess] | None = None,
        large: set[int] | None = None,
    ) -> None:
        self.loop, self.connection, self.number = loop, connection, number
        self.launch = f"{launch}/{number:08x}" if number else launch
        self.settings = settings or connection.settings
        self.expected, self.own_session, self.has_shims = expected, own_session, has_shims
        self.ranks: dict[int, RankProcess] = {}
        self.folder = ""
        self.up, self.begun = False, not has_shims
        self.stayers: set[str] = set()
        self.stuck: list[int] | None = None
        self.turns_away = False
        self._ended, self._shim_came = ended, shim_came
        self._holders: set[str] = set()  # watchers for which its ranks wait
        self._holders_of_host: set[str] = set() if holders is None else holders
        self._on_host = on_host
        self._start: Callable[[], None] | None = None  # starts the ranks where there are no shims
        self._ports: list[int] = []  # sockets that hold a port for rank 0
        self._counters: Counters | None = None
        self._trap: MpiTrap | None = None
        self._input: RankInput | None = None
        self._heard: dict[int, float] = {}  # signal: when it came to this process, and so to every process of the job
        self._ordered: dict[int, float] = {}  # signal: when the launcher has last had it passed on
        self._holds_terms = False  # because ranks do something before they get a SIGTERM from outside
        self._term_is_held = False
        self._noted: set[str] = set()
        # World, family and words of the ranks that are none of the plan.
        self._strangers: list[tuple[str, str, str]] = []
        self._partial: list[int] = []
        self._finished = False
        self._speakers = Speakers(self.ranks, self.settings, connection.clock)
        self._local = LocalConnections(loop, self._hear, self._hung_up)
        self.pipes = RankPipes(loop, self.ranks, connection, number, large)
        scope = "" if host is None else "world"
        self.watch = Watchers(self.settings.watchers, "host", self._handle, self.note_once, self._drop, scope=scope)
        self._watches = (self.watch,) if host is None else (self.watch, host)

    def report(self, message: Message) -> None:
        """Send the launcher a report of this world."""
        self.connection.report(message, self.number)

    def note_once(self, text: str) -> None:
        """Tell the launcher what many ranks may say in the same words."""
        if text not in self._noted:
            self._noted.add(text)
            self.report(agent_messages.Note(text=text))

    # Watchers.

    def _handle(self, name: str, config: str, guarded: Callable[..., Any]) -> HostHandle:
        handle = handle_of(self, name, config, guarded)
        handle.is_running = lambda: self.is_running
        handle.hold = lambda holds: self._hold_start(name, holds=holds)
        return handle

    def _drop(self, name: str) -> None:
        """Wait for a watcher no more, because it has failed."""
        self.stayers.discard(name)
        self._hold_start(name, holds=False)

    def _hold_start(self, name: str, *, holds: bool) -> None:
        """Keep the ranks of all hosts from beginning, by not being up, or let them."""
        if holds:
            self._holders.add(name)
        elif name in self._holders:
            self._holders.discard(name)
            if self.up:
                self._report_up(self.expected)

    def let_go(self) -> None:
        """Take note that the host's own watchers hold no world back any more."""
        if self.up and not self.begun:
            self._report_up(self.expected)

    # Its start.

    def listen(self, listener: socket.socket) -> None:
        """Let shims and ranks in."""
        self._local.listen(listener)

    def refuse_mpi(self, asked: str) -> None:
        """End each rank that starts an MPI; `variables` of the ranks see to it that none goes unnoticed.

        Args:
            asked: The option or variable by which none does.

        Raises:
            LaunchError: An MPI would go unnoticed.
        """
        from ezpz.launch.host.mpi_trap import MpiTrap

        self._trap = MpiTrap(self.loop, lambda number: self._mpi_started(number, asked))

    def hold_port(self, port: int) -> bool:
        """Keep a port for rank 0 as long as this world is there; tell whether it was free."""
        held = rank_start.hold_port(port)
        if held is not None:
            self._ports.append(held)
        return held is not None

    def variables(self, rank: int) -> dict[str, str]:
        """Return what a rank has among its variables besides those of the plan."""
        return self._trap.variables(rank) if self._trap else {}

    def add(self, rank: RankProcess) -> None:
        """Take charge of a rank."""
        self.ranks[rank.rank] = rank
        if self._on_host is not None:
            self._on_host[rank.pid] = rank
        if self._counters:
            self._count(rank)
        else:
            self.loop.after("counters", _COUNTED, self._count_all)
        self.pipes.add(rank)
        self._give_input(rank)
        self.loop.after("partial", _PARTIAL, self._report_partial)

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
        self.watch.before_begin(environ, first=first)

    def wait_for_all(self, start: Callable[[], None]) -> None:
        """Call ``start``, which adds this host's ranks, when those of all hosts can begin; without a launcher at
        once.
        """
        self._start, self.begun = start, False
        if isinstance(self.connection, Connection):
            self._report_up(self.expected)
        else:
            self.begin()

    def begin(self) -> None:
        """Let the ranks begin: those of all hosts are ready, or there is no launcher that could tell."""
        if self.begun or self.stuck is not None:
            return
        self.begun = True
        self._speakers.begin()
        if self._start:
            try:
                self._start()
            except (EzpzError, OSError) as error:
                self.cannot_start(error)
        for rank in self.alive():
            if rank.ready:
                rank.begin()

    def cannot_start(self, error: EzpzError | OSError) -> None:
        """Give up, because something that its ranks need is not here."""
        why = str(error)
        if isinstance(error, OSError):
            why = f"its ranks cannot be started: {why}; {shortage(error, starting=True) or 'expected to succeed'}."
        self.give_up(why, cannot=True)

    def give_up(self, why: str, *, cannot: bool = False) -> None:
        """Tell the launcher that this host's part of the world cannot continue, and kill its ranks.

        Args:
            why: What has happened.
            cannot: Whether the host lacks what ranks need.
        """
        self.report(agent_messages.Refused(text=why, cannot=cannot))
        self.kill()

    # Messages of shims and ranks.

    def _hear(self, connection: socket.socket, message: Message, files: tuple[int, ...]) -> None:
        if isinstance(message, agent_messages.ShimStarted):
            if self._shim_came:
                self._shim_came(connection, message, files)
            else:
                _close(files)
        elif self._speakers.hear(connection, message):
            speaker = self._speakers.speaker(connection)
            if speaker:
                for watch in self._watches:
                    watch.hear(message, connection, speaker)
        else:
            rank = next((rank for rank in self.ranks.values() if rank.shim is connection), None)
            if rank:
                self._hear_shim(rank, message)

    def _hear_shim(self, rank: RankProcess, message: Message) -> None:
        if isinstance(message, agent_messages.RankReady):
            self._rank_ready(rank)
        elif isinstance(message, agent_messages.RankStarted):
            rank.pid = message.pid
            rank.reach("process", time.time())
            self._give_input(rank)
        elif isinstance(message, agent_messages.SignalPassed):
            if not self._hold_back(message.number):
                rank.passed[message.number] = time.monotonic()
        elif isinstance(message, agent_messages.RankEnded):
            self.end(rank, message.code)
        elif isinstance(message, agent_messages.ShimCrashed):
            rank.shim_crash = message.text.rpartition(": ")[2]
        elif isinstance(message, agent_messages.CannotRun):
            why = f"cannot run {message.program}: {os.strerror(message.number)}"
            rank.end(rank_start.cannot_run(message.number), why)
        elif isinstance(message, agent_messages.PortTaken):
            self.report(message)
        elif isinstance(message, agent_messages.Note):
            self.note_once(message.text)
        elif isinstance(message, agent_messages.WrongWorld):
            self._strangers.append((str(rank.world), rank.family, message.text))
            self.loop.after("mismatch", _MISMATCH, self._report_mismatch)

    def _rank_ready(self, rank: RankProcess) -> None:
        if rank.rank < 0:
            text = f"a rank came up that is there already (from {rank.family}); expected each once (from the plan)"
            self._strangers.append((str(rank.world), rank.family, text))
            self.loop.after("mismatch", _MISMATCH, self._report_mismatch)
            return
        rank.ready = True
        if self.begun or not isinstance(self.connection, Connection):
            rank.begin()

    def _give_input(self, rank: RankProcess) -> None:
        """Let the input of rank 0 come when it runs: no start that fails shall have read of it."""
        if rank.stdin is None or not rank.pid or rank.rank:
            return
        if isinstance(self.connection, Connection):
            self._input = RankInput(self.loop, self.connection, rank.stdin, self.number)
        else:
            os.close(rank.stdin)
            self.report(agent_messages.Note(text="rank 0 gets no input: the launcher cannot be reached"))
        rank.stdin = None

    def resume_input(self) -> None:
        """Ask for the input once more, on another connection."""
        if self._input:
            self._input.resume()

    def _hung_up(self, connection: socket.socket) -> None:
        speaker, pid = self._speakers.hung_up(connection)
        if speaker:
            for watch in self._watches:
                watch.all("hung_up", connection, speaker, pid)
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

    # Signals.

    def child_ended(self, pid: int, code: int) -> bool:
        """Take the end of a child of this process; tell whether it was a rank of this world."""
        # The number of one that has ended before may be that of another world's by now.
        rank = next((rank for rank in self.alive() if rank.pid == pid and not rank.shim_pid), None)
        if rank:
            if self.own_session:
                process_tree.kill(-pid)  # what it left behind
            self.end(rank, code)
        return rank is not None

    @staticmethod
    def end(rank: RankProcess, code: int) -> None:
        """Take the end of a rank, whose launcher may have sent it what it ended of."""
        rank.end(code, _PASSED if -code in rank.passed else "")

    def heard(self, numbers: bytes) -> None:
        """Take note of signals that have come to every process of the job."""
        self._heard.update(dict.fromkeys(numbers, time.monotonic()))

    def starter_sent(self, number: int, *, reached: bool) -> None:
        """Pass on a signal that mpiexec or srun has sent to the process in front of the agent; ``reached`` tells
        whether to the ranks as well.
        """
        if self._hold_back(number):
            return
        now = time.monotonic()
        reached = reached or self._ordered.get(number, -_TWICE) > now - _TWICE
        self._heard[number] = now
        for rank in self.alive():
            rank.passed[number] = now
            rank.signal(number, group=self.own_session, reached=reached)
        self._give_early_signals()

    def pass_on(self, number: int) -> None:
        """Give the ranks a signal that the launcher has sent."""
        reached = self._heard.pop(number, -_TWICE) > time.monotonic() - _TWICE
        self._ordered[number] = time.monotonic()
        if number == signal.SIGTERM and self._holds_terms:
            self.let_term_go()
            reached = False  # a rank that it has reached has kept it back
        for rank in self.alive():
            asked = rank.passed.get(number, -_ASKED) > time.monotonic() - _ASKED
            if number not in ENDING or not asked:  # twice would mean now
                rank.signal(number, group=self.own_session, reached=reached)
        self._note_held_term()
        self._give_early_signals()
        self.watch.all("signalled", number)

    def _give_early_signals(self) -> None:
        """Give ranks the signals that are held for them, now and again and again until they have handlers."""
        early = {number for rank in self.ranks.values() if rank.give_early_signals() for number in rank.early_signals}
        if early:
            from ezpz.launch.host import early_signals

            for number in early:
                self.note_once(early_signals.note(number))
            self.loop.after("early signals", early_signals.AGAIN, self._give_early_signals)

    def hold_terms(self, order: agent_messages.Hold) -> None:
        """Keep the SIGTERMs back that others send to ranks, until the launcher sends one, or no longer."""
        self._holds_terms = order.how > 0
        self.watch.terms_wait(order)
        for rank in self.alive():
            if rank.shim:
                rank.order(order)

    def _hold_back(self, number: int) -> bool:
        """Tell whether a signal that a rank is to get from elsewhere is held; the launcher decides then."""
        if number != signal.SIGTERM or not self._holds_terms:
            return False
        self._term_is_held = True
        self.report(agent_messages.TermHeld())
        return True

    def let_term_go(self) -> None:
        """Let ranks know that the SIGTERM comes now, and hold none any more."""
        if self._holds_terms:
            self._holds_terms = False
            self.watch.all("term_comes")

    def _note_held_term(self) -> None:
        """Note that ranks have got what others sent them, if the SIGTERM of now was held: so a second one is none."""
        if self._term_is_held and not self._holds_terms:
            self._term_is_held = False
            for rank in self.alive():
                rank.passed[signal.SIGTERM] = time.monotonic()

    def ask_to_end(self) -> None:
        """Send the ranks SIGTERM, because the launcher is lost."""
        self.let_term_go()
        for rank in self.alive():
            rank.signal(signal.SIGTERM, group=self.own_session)  # a shim passes it on once, whoever else sends it
        self._note_held_term()

    # Who has come up, who has ended, and whether all is over.

    def settle(self) -> None:
        """Report who came up and who has ended."""
        ready = sum(rank.ready and rank.rank >= 0 and (rank.alive or self.begun) for rank in self.ranks.values())
        if not self.up and ready >= self.expected:
            self._report_up(ready)
        for rank in self.by_end():
            if rank.drained and not rank.reported:
                self._report_end(rank)

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended, and nothing is waited for."""
        if self.stayers or (self._input and not self._input.over):
            return False
        if self.stuck is not None:
            return True
        return bool(self.ranks) and self.is_complete and all(rank.reported for rank in self.ranks.values())

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have come."""
        return len(self.ranks) >= self.expected

    @property
    def is_running(self) -> bool:
        """Whether all ranks have come, and may run."""
        return self.begun and self.is_complete

    @property
    def step(self) -> int:
        """The furthest step that a rank has reported, -1 if none."""
        return max((rank.step for rank in self.ranks.values()), default=-1)

    def _report_up(self, ranks: int) -> None:
        self.up = True
        self.loop.cancel("partial")
        if not (self._holders or self._holders_of_host):
            self.report(agent_messages.Up(ranks=ranks))

    def _report_partial(self) -> None:
        if self.up:
            return
        have = sorted(rank.rank for rank in self.ranks.values() if rank.ready)
        if have != self._partial:
            self.report(agent_messages.Partial(have=len(have)))
        self._partial = have
        self.loop.after("partial", _PARTIAL, self._report_partial)

    def _report_mismatch(self) -> None:
        """Tell the launcher of a wrong world, now that its other ranks on this host have come."""
        self.report(agent_messages.Mismatch(host=os.uname().nodename, worlds=self._strangers))

    def _report_end(self, rank: RankProcess) -> None:
        rank.reported = True
        for watch in self._watches:
            watch.ended(rank)
        self.pipes.close(rank)
        if rank.stdin is not None:
            os.close(rank.stdin)
        if self._input and not rank.rank:
            self._input.close()
        failed = bool(rank.code)
        output = rank.output
        if output:
            for stream, data in output.end(failed, time.monotonic(), code=rank.code or 0):
                self.connection.show(rank.rank, stream, data, self.number)
        if not failed:
            self._report_good_end(rank)
            return
        if rank.by_us:
            return
        from ezpz.launch.host.end_facts import room_on_disks

        words = output.words if output else ""
        places = self._speakers.run_folder, os.environ.get("TMPDIR") or "/tmp", self.folder or "."  # noqa: S108
        end = agent_messages.RankFailed(
            rank=rank.rank,
            pid=rank.pid,
            code=rank.code or 0,
            at=rank.ended_at + self.connection.clock,
            why=rank.why,
            words=words,
            shown=output.words_shown if output else True,
            step=rank.step,
            memory=self._counters.at_end(rank.rank, rank.ended_at)
            if self._counters
            else agent_messages.NOTHING_COUNTED,
            room=room_on_disks(words, places),
            reason=output.reason if output else "",
        )
        self.report(end)
        if not isinstance(self.connection, Connection) and not self.loop.waits_for("kill"):
            for other in self.alive():
                other.by_us = True
                other.signal(signal.SIGTERM, group=self.own_session)
            self.loop.after("kill", _FAILURE_GRACE, self.kill)

    def _report_good_end(self, rank: RankProcess) -> None:
        """Report the first rank that ended with 0; one that was asked in a way that ends it does not count."""
        if rank.ended_of_asking and rank.by_us:
            return
        if rank.ended_of_asking:
            text = f"rank {rank.rank} (pid {rank.pid}) ended of the signal that asks for stacks; it was about to end"
            self.report(agent_messages.Note(text=text))
        if not self._finished:
            at = rank.ended_at + self.connection.clock
            self.report(agent_messages.Finished(rank=rank.rank, pid=rank.pid, at=at, step=rank.step))
        self._finished = True

    def tell(self, now: float) -> None:
        """Report the stages that ranks have reached."""
        for message in self._speakers.tick(now, self.expected):
            self.report(message)

    def tidy_up(self) -> None:
        """Kill what the ranks have left, and say all that is to be said before the end."""
        self.watch.all("finish")
        self.stuck = self._kill_left()
        for message in self._speakers.stages(self.expected, final=True):
            self.report(message)
        rank_start.clear_folders(self.settings)

    def _kill_left(self) -> list[int]:
        if self._on_host is not None:  # what else descends from this process may be another world's
            others = {pid for pid, rank in self._on_host.items() if rank.alive}
            orphans = proc.children(os.getpid())
            nothing = orphans is not None and others.issuperset(orphans)
            return [] if nothing else process_tree.kill_all(self.launch, own=False)
        # What a killed shim had adopted has no parent that waits for it.
        lost = any(rank.shim_pid and not rank.shim for rank in self.ranks.values())
        return process_tree.kill_all(self.launch) if lost or not process_tree.childless() else []

    def kill(self) -> None:
        """Kill all that was started here: orphans of whatever session become children of their shim, or of this
        process.
        """
        self.turns_away = not self.begun and self.has_shims and isinstance(self.connection, Connection)
        for rank in self.alive():
            rank.signal(signal.SIGKILL, group=self.own_session)
        shims = {rank.shim_pid for rank in self.ranks.values() if rank.shim}
        stuck = []
        if self.ranks or not self.number:
            stuck = process_tree.kill_all(self.launch, spare=shims, below=shims, own=not self.number)
        for rank in self.alive():
            rank.by_us = True
            rank.end(-signal.SIGKILL)
        self.expected = min(self.expected, len(self.ranks))
        if stuck:
            text = f"processes {', '.join(map(str, stuck))} on {os.uname().nodename} survive SIGKILL"
            self.report(agent_messages.Note(text=text))
        if not self.ranks:
            self._ended(self)

    def close(self) -> None:
        """Give back what belongs to this world alone: its socket, its ports, its files and timers."""
        self._local.close()
        if self._trap:
            self._trap.close()
        for port in self._ports:
            os.close(port)
        self.loop.close()

    def dues(self) -> list[float | None]:
        """Return when there is something to do."""
        dues: list[float | None] = [self._speakers.due()]
        for rank in self.ranks.values():
            if not rank.reported:
                dues += [rank.drain_by, rank.output.due() if rank.output else None]
        return dues

    def alive(self) -> list[RankProcess]:
        """Return the ranks that have not ended."""
        return [rank for rank in self.ranks.values() if rank.alive]

    def by_end(self) -> list[RankProcess]:
        """Return the ranks that have, the first of them first."""
        return sorted((rank for rank in self.ranks.values() if not rank.alive), key=lambda rank: rank.ended_at)


def _close(files: tuple[int, ...]) -> None:
    for file in files:
        os.close(file)


if TYPE_CHECKING:
    from typing import Protocol

    class Watched(Protocol):
        """What watchers look at on a host: one world, or all of the agent that holds several."""

        @property
        def ranks(self) -> dict[int, RankProcess]: ...
        @property
        def settings(self) -> agent_messages.Settings: ...
        @property
        def connection(self) -> Connection | NoConnection: ...

        loop: Loop
        launch: str
        expected: int
        has_shims: bool
        stayers: set[str]

        def note_once(self, text: str) -> None: ...
        def report(self, message: Message) -> None: ...
        def give_up(self, why: str) -> None: ...


def handle_of(watched: Watched, name: str, config: str, guarded: Callable[..., Any]) -> HostHandle:
    """Return what a watcher may do, but for `is_running` and `hold`."""
    handle = HostHandle(name, config, watched.loop, watched.note_once, guarded)
    handle.ranks, handle.clock, handle.launch = watched.ranks, watched.connection.clock, watched.launch
    handle.expected, handle.has_shims = watched.expected, watched.has_shims
    handle.report, handle.fail = watched.report, watched.give_up
    handle.stay = lambda stays: (watched.stayers.add if stays else watched.stayers.discard)(name)
    handle.settings, handle.answer = watched.settings, _answer
    return handle


def _answer(connection: socket.socket, message: Message) -> None:
    """Send the process of a rank a message."""
    try:
        send(connection, agent_messages.TO_RANKS.encode(message))
    except OSError:
        pass  # it ends, or has read nothing for long: it does not answer, which whoever asks notices
