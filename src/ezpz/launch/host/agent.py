"""Run the one process per host that speaks with the launcher: it hears shims and ranks, reads output, and kills.

It is forked off by the first shim of a host (``mpiexec``, ``srun``), or by the launcher itself (local), or run as
``python3 -I -S start_agent.py`` by ``ssh HOST`` or, under ``--mpi no``, by ``mpiexec`` and ``srun``. In all cases but
the first it is the parent of the ranks, and there are no shims. When the connection to the launcher ends, it kills all
ranks of its host: that is how nothing outlives a launcher that was killed. What it reports, and what it is ordered to
do, are the tables of `ezpz.launch.agent_messages`.

It holds worlds (`ezpz.launch.host.local_world`): one that comes with it and with which it ends, or, where it stays
(`Settings.stays`), none of its own and each that the launcher has it start, until it is released.
"""

from __future__ import annotations

import os
import signal
import sys

from ezpz import proc
from ezpz.errors import EzpzError, shell_code
from ezpz.launch import agent_messages
from ezpz.launch.backlog import keep_freed_memory
from ezpz.launch.event_loop import Loop, SignalPipe
from ezpz.launch.host import process_tree
from ezpz.launch.host.connection import Connection
from ezpz.launch.host.local_world import ENDING, LocalWorld, handle_of
from ezpz.launch.host.rank_process import RankProcess
from ezpz.launch.host.rank_start import FOR_RANK_ALONE, TO_ALL
from ezpz.launch.watchers import HostHandle, Watchers
from ezpz.local_socket import credentials, send

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.connection import NoConnection

__all__ = ["UNKNOWN", "Agent"]

UNKNOWN = 10**9  # ranks expected where it is not known which host of the plan this is: it waits for the launcher

_LOST_GRACE = 2.0  # seconds for a scheduler's own SIGTERM to reach the ranks of a launcher that was killed
_CONNECT_AGAIN, _MOST_TRIES = 0.2, 5  # seconds until output that was cut off is connected again; times it is tried
_LOOK_FOR_ABSENT, _ABSENT_LOOKS = 1.0, 3  # seconds between two looks for ranks that cannot come any more
_COMING = 2.0  # seconds for the shims of a launch that has gone
_RELEASE = 30.0  # seconds for the launcher to order how shims shall end


class Agent:
    """The launcher's hand on one host, and the worlds that it holds there.

    Args:
        connection: To the launcher.
        launch: Id of the launch.
        expected: How many ranks this host shall have.
        own_session: Whether the ranks that it starts itself leave its session.
        has_shims: Whether others start the ranks, with shims in front of them.
        waits: Whether it ends only when the launcher lets it: an mpiexec would judge the end of this process by rules
            of its own.
        start: Starts a world as an order says; without it this agent cannot stay.

    Attributes:
        worlds: Those that have not ended, by number.
        stays: Whether it holds worlds that it was ordered to start, in place of one of its own.
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
        start: Callable[[LocalWorld, agent_messages.Start], None] | None = None,
    ) -> None:
        self.connection = connection
        self.launch = launch
        self.expected, self.has_shims = expected, has_shims
        self.waits = waits
        self.stays = connection.settings.stays and start is not None
        self.loop = Loop()
        self.worlds: dict[int, LocalWorld] = {}
        self.ranks: dict[int, RankProcess] = {}  # of all worlds that it was ordered to start, by pid
        self.stayers: set[str] = set()  # its own watchers for which it stays
        self._holders: set[str] = set()  # those for which all worlds wait
        self._start = start
        self._numbers: set[int] = set()  # of all worlds that were to be started
        # Worlds that have ended, and pieces of output that go before their end; others may write all the time.
        self._leaving: list[tuple[LocalWorld, int]] = []
        self._large: set[int] = set()
        self._is_signalled_alone = False
        self._tells_code = True
        self._noted: set[str] = set()
        self._servants: set[int] = set()  # what mpiexec has started on this host to start shims
        self._tries = 0  # in turn that could not connect the output again
        self._absent = 0  # looks in turn that found ranks missing and nothing that could become one
        self._over = False
        self._lost = False
        self._done = False
        self._is_up = False  # where it stays
        self._is_closed = False  # to further worlds
        self._is_released = False
        self._stuck: list[int] | None = None  # what survives at the end of all worlds; None before that
        self._watch: Watchers | None = None  # its own, besides those of its worlds
        if self.stays:
            rows = connection.settings.watchers
            self._watch = Watchers(rows, "host", self._handle, self.note_once, self._drop, scope="host")
        else:
            self.worlds[0] = LocalWorld(
                self.loop,
                connection,
                launch,
                self._world_over,
                expected=expected,
                own_session=own_session,
                has_shims=has_shims,
                shim_came=self._shim_started,
            )
        if isinstance(connection, Connection):
            self.loop.read(connection.control, lambda _: self._obey())

    @property
    def world(self) -> LocalWorld:
        """The world that comes with this agent, which ends with it."""
        return self.worlds[0]

    @property
    def settings(self) -> agent_messages.Settings:
        """What the launcher wants of every agent."""
        return self.connection.settings

    def report(self, message: Message) -> None:
        """Send the launcher a report of this host."""
        self.connection.report(message)

    def note_once(self, text: str) -> None:
        """Tell the launcher what is the same of all worlds."""
        if text not in self._noted:
            self._noted.add(text)
            self.report(agent_messages.Note(text=text))

    def _handle(self, name: str, config: str, guarded: Callable[..., Any]) -> HostHandle:
        """Return what a watcher of the whole host may do."""
        handle = handle_of(self, name, config, guarded)
        handle.is_running = lambda: any(world.is_running for world in self.worlds.values())
        handle.hold = lambda holds: self._hold_starts(name, holds=holds)
        return handle

    def _drop(self, name: str) -> None:
        """Wait for a watcher no more, because it has failed."""
        self.stayers.discard(name)
        self._hold_starts(name, holds=False)

    def _hold_starts(self, name: str, *, holds: bool) -> None:
        """Keep the ranks of all worlds that are not up from beginning, or let them."""
        if holds:
            self._holders.add(name)
        elif name in self._holders:
            self._holders.discard(name)
            self._report_up()
            for world in self._now():
                world.let_go()

    def _report_up(self) -> None:
        """Tell the launcher that worlds can begin here, where this agent stays for them."""
        if self.stays and not (self._holders or self._is_up):
            self._is_up = True
            self.report(agent_messages.Up(ranks=0))

    def stand_guard(self, *, obeys_signals: bool, is_signalled_alone: bool = False) -> None:
        """Adopt orphans, and notice the end of children; other signals end only what is a host's own process.

        Elsewhere they tell what need not be passed on: like a rank this process has a session of its own, so a
        scheduler that reaches it (Slurm, by parents or cgroup) has reached the ranks too. PBS signals the sessions that
        it has started: this process ``is_signalled_alone``, and the launcher, which decides.
        """
        self._is_signalled_alone = is_signalled_alone
        signals = SignalPipe((signal.SIGCHLD, *ENDING, *FOR_RANK_ALONE))
        signals.__enter__()
        process_tree.adopt()
        self.loop.read(signals, lambda _: self._signalled(signals.take(), obeys_signals))

    def hear_starter(self, pipe: int) -> None:
        """Read which signals mpiexec or srun sends to the process in front of this one, and notice that one's end."""
        self._servants |= {process_tree.servant_of(os.getppid())} - {0}
        self.loop.read(pipe, self._on_starter_signals)

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Let the watchers of the whole host do what they do before any world begins.

        Args:
            environ: What ranks get.
            first: Whether this is the first host.
        """
        if self._watch:
            self._watch.before_begin(environ, first=first)

    def give_up(self, why: str, *, cannot: bool = False) -> None:
        """Tell the launcher that this host cannot continue, and kill its ranks.

        Args:
            why: What has happened.
            cannot: Whether the host lacks what ranks need.
        """
        self.report(agent_messages.Refused(text=why, cannot=cannot))
        self._kill()

    def turn_away(self) -> None:
        """End the shims of a launch that has gone before any rank began; what comes later finds an agent of its own."""
        self.world.turns_away = True
        self.loop.after("turned away", _COMING, self._leave)

    def _leave(self) -> None:
        self._over = True

    def run(self) -> int:
        """Return the exit code of the first rank of its own world that failed here, when nothing of this host's ranks
        is left.
        """
        keep_freed_memory()
        watch = self._watch or self.world.watch
        watch.start(self.loop)
        self._report_up()
        while not self._over:
            for world in self.worlds.values():
                world.pipes.keep_pace()
            self._push_output()
            self._mend_output()
            now = self.loop.turn(*(due for world in self.worlds.values() for due in world.dues()))
            for world in self._now():
                world.pipes.show()
            self._settle()
            for world in self._now():
                world.tell(now)
        if self.stays or not self._tells_code:
            return 0
        ended = self.world.by_end()
        return shell_code(next((rank.code for rank in ended if rank.code and not (rank.by_us and self.waits)), 0))

    def _now(self) -> tuple[LocalWorld, ...]:
        """Return the worlds of this moment, which may end while something is done with each."""
        return tuple(self.worlds.values())

    def _push_output(self) -> None:
        """Write what waits as soon as the launcher takes it."""
        connection = self.connection
        if isinstance(connection, Connection) and not connection.is_cut:
            if connection.waiting:
                self.loop.write(connection.output, lambda _: connection.push())
            else:
                self.loop.forget(connection.output)

    def _mend_output(self) -> None:
        """See to it that a connection for output that was cut is made once more."""
        connection = self.connection
        if not isinstance(connection, Connection) or self._lost or connection.is_given_up:
            return
        if connection.is_cut and not self.loop.waits_for("output"):
            self.loop.forget(connection.output)
            self.loop.after("output", _CONNECT_AGAIN, self._connect_output)

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
                for world in self._now():
                    world.resume_input()
                return
        self._tries += 1
        if connection.can_connect_again and self._tries < _MOST_TRIES:
            self.loop.after("output", self._tries, self._connect_output)
        else:
            connection.give_up_output()
            self.give_up(f"its connection for output was cut and cannot be made again: {why}")

    # Shims, which have ranks of this agent's own world behind them.

    def _shim_started(
        self, connection: socket.socket, shim: agent_messages.ShimStarted, pipes: tuple[int, ...]
    ) -> None:
        world = self.world
        if world.turns_away:
            for fd in pipes:
                os.close(fd)
            try:
                send(connection, agent_messages.TO_SHIMS.encode(agent_messages.Release(codes=False)))
            except OSError:
                pass  # it has gone by itself
            return
        # A second rank 0 is none of the plan's, and will say so.
        known = shim.rank < 0 or shim.rank in world.ranks
        number = -len(world.ranks) - 1 if known else shim.rank
        rank = RankProcess(
            number,
            pipes=pipes[:2],
            stdin=pipes[2] if len(pipes) > 2 else None,
            log_dir=world.settings.log_dir,
        )
        rank.world, rank.family = shim.world, shim.family
        rank.shim, rank.shim_pid = connection, shim.pid
        rank.is_near = sys.platform == "linux" and credentials(connection)[0] == shim.pid
        rank.reach("shim", shim.time)
        self._servants |= {process_tree.servant_of(shim.pid)} - {0}
        world.add(rank)
        self.loop.after("absent", _LOOK_FOR_ABSENT, self._look_for_absent)

    def _look_for_absent(self) -> None:
        """Give this host up when some of its ranks can no longer come: Intel MPI's mpiexec says nothing of a shim that
        was killed before it had connected, and waits.
        """
        world = self.world
        if world.begun or world.turns_away or not len(world.ranks) < world.expected < UNKNOWN:
            return
        shims = {rank.shim_pid for rank in world.ranks.values() if rank.is_near}
        servants = self._servants
        running = {pid for servant in servants for pid in proc.children(servant) or () if not process_tree.is_gone(pid)}
        # An mpiexec's servant starts all of a host at once: nothing is left that could still come.
        self._absent = self._absent + 1 if shims == running and len(shims) == len(world.ranks) else 0
        if self._absent < _ABSENT_LOOKS:
            self.loop.after("absent", _LOOK_FOR_ABSENT, self._look_for_absent)
            return
        gone = world.expected - len(world.ranks)
        text = f"{gone} of its {world.expected} ranks ended before they came up, and its launcher has not said why"
        self.give_up(text, cannot=True)

    # Signals, and orders of the launcher.

    def _on_starter_signals(self, pipe: int) -> None:
        """Pass on a signal that mpiexec or srun has sent; without them this host's ranks end."""
        numbers = os.read(pipe, 4096)
        if not numbers:
            self.loop.forget(pipe)
            if not self._done:
                self.give_up("its launcher has ended what it had started there")
            return
        for byte in numbers:
            number, reached = byte & ~TO_ALL, bool(byte & TO_ALL)
            begun = [world for world in self._now() if world.begun]
            if not begun and number in ENDING:
                when = "while no rank ran there" if self.stays else "before its ranks began"
                self.give_up(f"its launcher sent it {signal.Signals(number).name} {when}")
                self._over = True  # srun waits for this end, and tells then what it ended all for
            for world in begun:
                world.starter_sent(number, reached=reached)

    def _signalled(self, numbers: bytes, obeys: bool) -> None:
        for pid, status in process_tree.reap():
            for world in self._now():
                if world.child_ended(pid, os.waitstatus_to_exitcode(status)):
                    break
        if not self._is_signalled_alone:
            for world in self._now():
                world.heard(numbers)
        ending = set(numbers) & set(ENDING)
        if ending and obeys:  # sshd has gone, or somebody means this agent
            text = f"its host agent received {signal.Signals(min(ending)).name}"
            self.give_up(text)

    def _obey(self) -> None:
        assert isinstance(self.connection, Connection)
        for number, order in self.connection.orders():
            if isinstance(order, agent_messages.OutputTaken | agent_messages.ConnectOutput):
                self.connection.obey(order)
            elif isinstance(order, agent_messages.AreYouAlive):
                self.report(agent_messages.Alive())
            elif isinstance(order, agent_messages.Start):
                self._start_world(number, order)
            elif isinstance(order, agent_messages.Release):
                self._is_closed = self._is_released = True
                if not self.stays or self._done:
                    self._release(codes=order.codes)
            elif isinstance(order, agent_messages.Lost):
                self._hear_of_end()
            elif number in self.worlds:
                self._obey_in(self.worlds[number], order)
            elif not number:
                self._obey_in_all(order)

    def _obey_in_all(self, order: Message) -> None:
        """Do in all worlds of an agent that stays what is ordered of the host."""
        assert self._watch
        if isinstance(order, agent_messages.Kill):
            self._kill()
        elif isinstance(order, agent_messages.Signal | agent_messages.Hold):
            for world in self._now():
                self._obey_in(world, order)
            if isinstance(order, agent_messages.Hold):
                self._watch.terms_wait(order)
            else:
                self._watch.all("signalled", order.number)
        else:
            self._watch.obey(order)

    def _obey_in(self, world: LocalWorld, order: Message) -> None:
        if isinstance(order, agent_messages.Begin):
            if not self._over:
                world.begin()
        elif isinstance(order, agent_messages.Signal):
            world.pass_on(order.number)
        elif isinstance(order, agent_messages.Hold):
            world.hold_terms(order)
        elif isinstance(order, agent_messages.Kill):
            world.kill()
        else:
            world.watch.obey(order)

    def _start_world(self, number: int, order: agent_messages.Start) -> None:
        """Start a world as the launcher orders, or tell it why not."""
        refusal = self._refusal(number)
        if refusal:
            self.connection.report(agent_messages.Refused(text=refusal, cannot=True), number)
            if number and number not in self.worlds:  # else its end is still to come
                self.connection.report(agent_messages.Done(stuck=[], step=-1), number)
            return
        assert self._start
        self._numbers.add(number)
        world = self.worlds[number] = LocalWorld(
            self.loop.part(),
            self.connection,
            self.launch,
            self._world_over,
            number=number,
            settings=order.settings,
            host=self._watch,
            holders=self._holders,
            on_host=self.ranks,
            large=self._large,
        )
        try:
            self._start(world, order)
        except (EzpzError, OSError) as error:
            world.cannot_start(error)
        else:
            world.watch.start(world.loop)

    def _refusal(self, number: int) -> str:
        """Return why no world of this number can be started here; empty where it can."""
        here = f"world {number} cannot be started on {os.uname().nodename}"
        if not self.stays:
            return f"{here}: its agent ends with the ranks that came with it; expected one that stays"
        if self._is_closed:
            return f"{here}: its agent is about to end; expected an order to start it before that to end"
        if not number or number in self._numbers:
            return f"{here}: there has been one of this number; expected a new number"
        return ""

    def _hear_of_end(self) -> None:
        """Take note that the launcher has gone."""
        assert isinstance(self.connection, Connection)
        if not self.stays and self._done and self.world.turns_away:
            self._over = True  # nothing is left here; what runs now is another start's of the same launch
            return
        self.loop.forget(self.connection.control)
        self._launcher_lost(self.settings.parting)

    def _launcher_lost(self, patience: float) -> None:
        """End this host's ranks: at once, unless it may be their scheduler that has killed the launcher.

        At the end of a job Slurm sends SIGTERM to the batch script and to the other steps. A script that ends of it
        takes the launcher along, which Slurm kills at once; the steps have until KillWait is over, and may use it.
        """
        self._is_closed = True
        begun = [world for world in self._now() if world.begun and world.alive()]
        if not (patience and begun):
            self._end_lost()
            return
        self._lost = True
        for world in self._now():
            if world.begun:
                world.ask_to_end()
            else:
                world.kill()
        self.loop.after("lost", _LOST_GRACE, lambda: self._still_there(patience - _LOST_GRACE))

    def _still_there(self, left: float) -> None:
        """Let ranks go on for so many seconds if their scheduler has sent them SIGTERM itself."""
        if any(signal.SIGTERM in rank.passed for world in self._now() for rank in world.ranks.values()):
            self.loop.after("lost", left, self._end_lost)
        else:
            self._end_lost()

    def _end_lost(self) -> None:
        self._kill()
        process_tree.kill_all(self.launch, everything=True)
        for servant in self._servants:
            process_tree.kill(servant)
        self._over = True

    # The end.

    def _settle(self) -> None:
        """Report who came up and who has ended, and see whether all is over."""
        for world in self._now():
            world.settle()
            if world.is_over:
                self._world_over(world)
        while self._leaving and self.connection.has_sent(self._leaving[0][1]):
            world, _ = self._leaving.pop(0)
            world.report(agent_messages.Done(stuck=world.stuck or [], step=world.step))
        if self.stays and self._is_closed and not (self.worlds or self._leaving or self.stayers):
            self._finish()

    def _world_over(self, world: LocalWorld) -> None:
        """Take the end of all ranks of a world: the agent's own ends with it."""
        if not world.number:
            self._finish()
        elif self.worlds.pop(world.number, None):
            world.tidy_up()
            for rank in world.ranks.values():
                if self.ranks.get(rank.pid) is rank:
                    del self.ranks[rank.pid]
            world.close()
            self._leaving.append((world, self.connection.shown))

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
            self.connection.end_output()
        if not self.connection.delivered:
            return  # it comes back here
        self._done = True
        ranks = [rank for world in self._now() for rank in world.ranks.values()]
        self.report(agent_messages.Done(stuck=self._stuck, step=max((rank.step for rank in ranks), default=-1)))
        if not isinstance(self.connection, Connection):
            self._release(codes=True)
        elif (self.waits and not self._is_released) or any(rank.shim and rank.code for rank in ranks):
            self.loop.after("release", _RELEASE, lambda: self._release(codes=True))
        else:
            self._release(codes=False)

    def _tidy_up(self) -> list[int]:
        """Kill what is left on this host, and say all that is to be said before the end; return who survives."""
        if not self._watch:
            self.world.tidy_up()
            return self.world.stuck or []
        self._watch.all("finish")
        return [] if process_tree.childless() else process_tree.kill_all(self.launch)

    def _release(self, *, codes: bool) -> None:
        """Let the shims end, all together: Hydra (MPICH 5.0.2) uses a whole core from the end of its first process
        on.
        """
        self._tells_code = codes
        for world in self._now():
            for rank in world.ranks.values():
                rank.release(codes=codes and not (rank.by_us or rank.ended_of_asking))
        self._over = self.stays or not self.world.turns_away  # else it stays until the launcher hangs up

    def _kill(self) -> None:
        """Kill all that was started here, and start nothing more."""
        self._is_closed = True
        for world in self._now():
            world.kill()
