"""What shims and ranks of one host say to their leader, on the Unix socket where they meet."""

from __future__ import annotations

import os
import signal

from ezpz.launch import local_socket
from ezpz.launch.host import process_tree
from ezpz.launch.host.rank_process import Member

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.host.agent import Leader

__all__ = ["Shims"]


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
        if not local_socket.is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._unread[connection] = b""
        self._leader.watch(connection, self._hear)

    def _hear(self, connection: socket.socket) -> None:
        """Read what a shim or a rank says."""
        try:
            data, fds = local_socket.receive(connection)
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
