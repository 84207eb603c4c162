r"""The one process per host that speaks with the launcher: it hears shims and ranks, reads what they write, and kills them.

It is forked off by the first shim of a host (``mpiexec``, ``srun``), or by the launcher itself (local), or run as
``python3 -I -S start_agent.py INDEX`` by ``ssh HOST``; in the last two cases it is the parent of the ranks, and there are no shims. When
the connection to the launcher ends, it kills all ranks of its host: that is how nothing outlives a launcher that was killed.

It says, besides ``hello`` (`ezpz.launch.host.connection`):

    up        all ranks of the host run              partial    only some of them do, ``have`` so many
    mismatch  ``worlds``: who came up instead        port       MASTER_PORT is taken here
    ended     a rank ended badly: ``rank pid code at words shown log why``
    finished  a rank ended with 0 (the first one)    done       all is over here; ``stuck``: pids that no signal ends
    stages    ``stage count low median high``        idle       ``rank`` shows no progress for ``seconds``
    stacks    ``ranks``: what each of them is doing  note, refused    ``text``
"""

from __future__ import annotations

import os
import selectors
import signal
import time

from ezpz.errors import shell_code
from ezpz.launch.host import process_tree
from ezpz.launch.host.connection import Link, Nobody, is_own, receive
from ezpz.launch.host.progress import Progress
from ezpz.launch.host.rank_process import Member

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any


# What shims and ranks of one host say to their leader, on the Unix socket where they meet.


class Shims:
    """The connections of one host's shims and ranks; the lines of a shim are those of `ezpz.launch.host.shim`.

    Attributes:
        servants: What mpiexec has started on this host to start shims.
        strangers: World, family and words of the ranks that are none of the plan.
    """

    def __init__(self, leader: Leader) -> None:
        self.strangers: list[list[str]] = []
        self.servants: set[int] = set()
        self._leader = leader
        self._unread: dict[socket.socket, bytes] = {}

    def listen(self, listener: socket.socket) -> None:
        """Let shims and ranks in."""
        listener.setblocking(False)
        self._leader.watch(listener, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it went away again
            return
        if not is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._unread[connection] = b""
        self._leader.watch(connection, self._hear)

    def _hear(self, connection: socket.socket) -> None:
        """Read what a shim or a rank says."""
        try:
            data, fds = receive(connection)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        *lines, self._unread[connection] = (self._unread[connection] + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "shim":
                self._shim_came(connection, rest.split(), tuple(fds))
            elif self._leader.progress.heard(connection, word, rest):
                continue
            else:
                member = next((member for member in self._leader.members.values() if member.shim is connection), None)
                self._shim_said(member, word, rest)
        if not data:
            self._hung_up(connection)

    def _shim_came(self, connection: socket.socket, words: list[str], pipes: tuple[int, ...]) -> None:
        rank, world, _, _, _, family, pid, when = words
        # A second rank 0 is none of the plan's, and will say so.
        known = int(rank) < 0 or int(rank) in self._leader.members
        member = Member(
            -len(self._leader.members) - 1 if known else int(rank),
            pipes=pipes,
            log_dir=self._leader.settings.get("log_dir", ""),
        )
        member.world, member.family = world, family
        member.shim, member.shim_pid = connection, int(pid)
        member.reach("shim", float(when))
        self.servants |= {process_tree.servant_of(int(pid))} - {0}
        self._leader.add(member)

    def _shim_said(self, member: Member | None, word: str, rest: str) -> None:
        if member is None:
            return
        if word == "up":
            member.pid = int(rest)
            for late in self._leader.late_signals:
                member.signal(late, group=True)
        elif word == "passed":
            member.passed.add(int(rest))
        elif word == "ended":
            passed = -int(rest) in member.passed
            member.end(int(rest), "its launcher sent it that signal" if passed else "")
        elif word == "cannot":
            from ezpz.launch.host.rank_start import cannot_run

            number, _, program = rest.partition(" ")
            member.end(cannot_run(int(number)), f"cannot run {program}: {os.strerror(int(number))}")
        elif word == "port":
            self._leader.link.say("port")
        elif word == "note":
            self._leader.link.say("note", text=rest)
        elif word == "mismatch":
            self.strangers.append([member.world, member.family, rest])
            self._leader.stranger_came()

    def _hung_up(self, connection: socket.socket) -> None:
        self._leader.selector.unregister(connection)
        connection.close()
        del self._unread[connection]
        self._leader.progress.hung_up(connection)
        for member in self._leader.members.values():
            if member.shim is connection:
                member.shim = None
                member.end(-signal.SIGKILL, f"its shim (pid {member.shim_pid}) was killed")


# What the ranks of one host write: read from their pipes as fast as the launcher takes it.


class Pipes:
    """The pipes of one host's ranks, in the selector of its leader."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def add(self, member: Member) -> None:
        """Read what a rank writes."""
        for fd in member.pipes:
            self._watch(member, fd)

    def close(self, member: Member) -> None:
        """Read no more of a rank that has ended: a grandchild may hold its pipes for ever."""
        keys = self._leader.selector.get_map()
        for fd in list(member.pipes):
            if fd in keys:
                self._leader.selector.unregister(fd)
            member.close(fd)

    def keep_pace(self) -> None:
        """Read only while the launcher takes more; else the pipes fill, and the ranks wait."""
        link, selector = self._leader.link, self._leader.selector
        keys = selector.get_map()
        for member in self._leader.members.values():
            for fd in member.pipes:
                if link.full and fd in keys and member.alive:
                    selector.unregister(fd)
                elif not link.full and fd not in keys:
                    self._watch(member, fd)
        if link.output is not None:
            if link.waiting and link.output not in keys:
                selector.register(link.output, selectors.EVENT_WRITE, lambda _: link.push())
            elif not link.waiting and link.output in keys:
                selector.unregister(link.output)

    def show(self) -> None:
        """Pass on all that may be shown now."""
        now, link = time.monotonic(), self._leader.link
        for member in self._leader.members.values():
            if member.output and not member.told:
                for stream, data in member.output.take(now):
                    link.show(member.rank, stream, data)
                if member.output.problem and not member.log_ended:
                    member.log_ended = True
                    link.say("note", text=f"rank {member.rank}: {member.output.problem}")
        link.push()

    def _watch(self, member: Member, fd: int) -> None:
        self._leader.watch(fd, lambda fd: self._read(member, fd))

    def _read(self, member: Member, fd: int) -> None:
        if not member.read(fd):
            self._leader.selector.unregister(fd)


__all__ = ["Leader"]

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL, where no launcher decides
_PARTIAL = 2.0  # seconds after which the launcher is told that not all ranks have come
_MISMATCH = 0.3  # seconds for the other ranks of a wrong world
_RELEASE = 30.0  # seconds for the launcher to say how shims shall end


class Leader:
    """The ranks of one host.

    Args:
        link: The line to the launcher.
        launch: Id of the launch.
        expected: How many ranks this host shall have.
        settings: ``log_dir`` and ``idle`` of the launch.
        own_session: Whether the ranks that it starts itself leave its session.
    """

    def __init__(
        self, link: Link | Nobody, launch: str, expected: int, settings: dict[str, Any], *, own_session: bool = True
    ) -> None:
        self.link = link
        self.launch = launch
        self.expected = expected
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.selector = selectors.DefaultSelector()
        self.progress = Progress(self)
        self.shims = Shims(self)
        self.pipes = Pipes(self)
        self.own_session = own_session
        self.late_signals: list[int] = []  # for ranks that have not come up
        self._timers: dict[str, float] = {}
        self._partial: list[int] = []
        self._over = False
        self._up = False
        self._finished = False
        if isinstance(link, Link):
            self.watch(link.control, self._obey)

    def stand_guard(self, *, obeys_signals: bool) -> None:
        """Adopt orphans, and be told of the end of children; other signals count only where this is a host's own process."""
        read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (*_OURS, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, (lambda *_: None) if obeys_signals and number in _OURS else signal.SIG_IGN)
        process_tree.adopt()
        self.watch(read, self._signalled)

    def stranger_came(self) -> None:
        """Tell the launcher of a wrong world, as soon as its other ranks on this host have come."""
        self._timers.setdefault("mismatch", time.monotonic() + _MISMATCH)

    def add(self, member: Member) -> None:
        """Take charge of a rank."""
        self.members[member.rank] = member
        self.pipes.add(member)
        self._timers.setdefault("partial", time.monotonic() + _PARTIAL)

    def run(self) -> int:
        """Return the exit code of the first rank that failed here, when nothing of this host's ranks is left."""
        while not self._over:
            self.pipes.keep_pace()
            due = self._due()
            for key, _ in self.selector.select(None if due is None else min(3600.0, max(0.0, due - time.monotonic()))):
                if key.fd in self.selector.get_map():  # not closed by what was just done
                    key.data(key.fileobj)
            self.pipes.show()
            self._settle()
            self._overdue(time.monotonic())
        code = next((member.code for member in self._by_end() if member.code), 0)
        return shell_code(code)

    def _signalled(self, fd: int) -> None:
        numbers = os.read(fd, 4096)
        for pid, status in process_tree.reap():
            member = next(
                (member for member in self.members.values() if member.pid == pid and not member.shim_pid), None
            )
            if member:
                code = os.waitstatus_to_exitcode(status)
                if self.own_session:
                    _kill(-pid)  # what it left behind
                member.end(code)
        if set(numbers) & set(_OURS):  # sshd has gone, or somebody means this leader
            self.link.say("refused", text=f"its leader received {signal.Signals(min(set(numbers) & set(_OURS))).name}")
            self._kill()

    def _obey(self, _: object) -> None:
        for order in self.link.orders():
            what = order["do"]
            if what == "signal":
                number = int(order["number"])
                if not self._up:
                    self.late_signals.append(number)
                for member in self._alive():
                    member.signal(number, group=self.own_session)
            elif what == "stacks":
                self.progress.collect(fatal=bool(order["fatal"]), number=order["id"])
            elif what == "kill":
                self._kill()
            elif what == "release":
                self._release("true" if order.get("codes") else "")
            elif what == "lost":
                self.selector.unregister(self.link.control)  # type: ignore[arg-type]  # Nobody has no orders
                self._kill()
                process_tree.kill_all(self.launch, everything=True)
                for servant in self.shims.servants:
                    _kill(servant)
                self._over = True

    def _settle(self) -> None:
        """Report who came up and who has ended, and see whether all is over."""
        came = [member for member in self.members.values() if member.rank >= 0 and (member.pid or not member.alive)]
        if not self._up and len(came) >= self.expected:
            self._up = True
            self._timers.pop("partial", None)
            self.link.say("up", ranks=len(came))
        for member in self._by_end():
            if member.drained and not member.told:
                self._report(member)
        if self.progress.busy:
            return
        if self.members and len(self.members) >= self.expected and all(member.told for member in self.members.values()):
            self._finish()

    def _report(self, member: Member) -> None:
        member.told = True
        self.pipes.close(member)
        failed = bool(member.code)
        output = member.output
        if output:
            for stream, data in output.end(failed, time.monotonic()):
                self.link.show(member.rank, stream, data)
        if not failed:
            if not self._finished:
                self.link.say("finished", rank=member.rank)
            self._finished = True
            return
        if member.by_us:
            return
        self.link.say(
            "ended",
            rank=member.rank,
            pid=member.pid,
            code=member.code,
            at=member.ended_at + self.link.clock,
            why=member.why,
            words=output.words if output else "",
            shown=output.words_shown if output else True,
        )
        if isinstance(self.link, Nobody) and "kill" not in self._timers:
            for other in self._alive():
                other.by_us = True
                other.signal(signal.SIGTERM, group=self.own_session)
            self._timers["kill"] = time.monotonic() + _FAILURE_GRACE

    def _finish(self) -> None:
        """Say that all is over here; shims whose rank failed wait until the launcher has stopped the other hosts.

        Nothing is left to say when shims end: Slurm may kill this process then.
        """
        if "release" in self._timers:
            return
        # What a killed shim had adopted is nobody's now.
        lost = any(member.shim_pid and not member.shim for member in self.members.values())
        stuck = process_tree.kill_all(self.launch) if lost or not process_tree.childless() else []
        self.progress.report(final=True)
        self.progress.clear()
        self.link.flush()
        self.link.say("done", stuck=stuck)
        if isinstance(self.link, Nobody):
            self._release("true")
        elif any(member.shim and member.code for member in self.members.values()):
            self._timers["release"] = time.monotonic() + _RELEASE
        else:
            self._release("")

    def _release(self, how: str) -> None:
        """Let the shims end, all together: Hydra (MPICH 5.0.2) uses a whole core from the end of its first process on."""
        for member in self.members.values():
            member.order(f"release {'' if member.by_us else how}")
        self._over = True

    def _kill(self) -> None:
        """Kill all that was started here: orphans of whatever session become children of their shim, or of this process."""
        for member in self._alive():
            member.signal(signal.SIGKILL, group=self.own_session)
        shims = {member.shim_pid for member in self.members.values() if member.shim}
        stuck = process_tree.kill_all(self.launch, spare=shims, below=shims)
        for member in self._alive():
            member.by_us = True
            member.end(-signal.SIGKILL)
        self.expected = min(self.expected, len(self.members))
        if stuck:
            self.link.say(
                "note", text=f"processes {', '.join(map(str, stuck))} on {os.uname().nodename} do not end of SIGKILL"
            )
        if not self.members:
            self._finish()

    def _due(self) -> float | None:
        dues = [*self._timers.values(), *filter(None, [self.progress.due()])]
        for member in self.members.values():
            if not member.told:
                dues += filter(None, [member.drain_by, member.output.due() if member.output else None])
        return min(dues, default=None)

    def _overdue(self, now: float) -> None:
        for name in [name for name, due in self._timers.items() if now >= due]:
            del self._timers[name]
            if name == "partial" and not self._up:
                have = sorted(member.rank for member in self.members.values() if member.pid)
                if have != self._partial:
                    self.link.say("partial", have=len(have))
                self._partial = have
                self._timers["partial"] = now + _PARTIAL
            elif name == "mismatch":
                self.link.say("mismatch", host=os.uname().nodename, worlds=self.shims.strangers)
            elif name == "kill":
                self._kill()
            elif name == "release":
                self._release("true")
        self.progress.tick(now)

    def watch(self, file: Any, action: Callable[[Any], None]) -> None:
        """Do something whenever a file can be read."""
        self.selector.register(file, selectors.EVENT_READ, action)

    def _alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def _by_end(self) -> list[Member]:
        return sorted(
            (member for member in self.members.values() if not member.alive), key=lambda member: member.ended_at
        )


def _kill(pid: int) -> None:
    """Send SIGKILL to a process, or to a process group when the number is negative."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # nothing is left of it
