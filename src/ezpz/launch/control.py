r"""The thin channel between ranks and the launcher: lines of text over TCP, in both cases a host or rank that connects.

A shim makes one short connection when the first rank of its host is up and one when its rank fails. Where ssh starts the
ranks, shims speak with the leader of their host, whose one connection lasts as long as its ranks (`ezpz.launch.leader`). Lines:

    TOKEN EVENT HOST RANK PID CODE\n        CODE is minus the signal for a signal

    up, ended, mismatch, port        from shims
    leader, refused, done            from leaders, whose RANK is the index of their host
    lost                             made here, when a leader's connection ends before it is done

The launcher answers a leader with single bytes, each the number of a signal for its ranks. The token keeps strangers on a
shared network from ending the job.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import namedtuple
from operator import ne

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Control", "Event", "send", "watch"]

_PATIENCE = 5.0  # seconds: a shim that cannot reach the launcher must still end with its rank's exit code
_LONGEST = 4096  # bytes of a line; whoever says more is no shim

# A peer that answers nothing for so long is gone: its host crashed or the network between is cut. Seconds.
_SILENCE, _PROBE_EVERY, _PROBES = 10, 5, 3


class Event(namedtuple("Event", "kind host rank pid code")):  # noqa: PYI024  # typing.NamedTuple needs typing
    """What a shim or a leader said."""

    __slots__ = ()

    if TYPE_CHECKING:
        kind: str
        host: str
        rank: str
        pid: int
        code: int


class Control:
    """The launcher's end, and the leader's towards its shims: one descriptor to select on.

    Attributes:
        leaders: Open connections of leaders by the index of their host.
        heard: Hosts whose leader has ever connected.
        done: Hosts whose leader has said that all is over there.
    """

    def __init__(self, addresses: list[str]) -> None:
        self._token = os.urandom(8).hex()
        self._socket = socket.create_server(("127.0.0.1" if addresses == ["127.0.0.1"] else "", 0), backlog=512)
        self._socket.setblocking(False)
        self._addresses = addresses
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._unfinished: dict[socket.socket, bytes] = {}  # what a connection has said since its last whole line
        self.leaders: dict[int, socket.socket] = {}
        self.heard: set[int] = set()
        self.done: set[int] = set()

    @property
    def variable(self) -> str:
        """Value of ``EZPZ_CONTROL`` for the ranks."""
        return f"{self._token}@{self._socket.getsockname()[1]}@{','.join(self._addresses)}"

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when somebody speaks: a selector can be selected on."""
        return self._selector.fileno()

    def events(self, patience: float = 0.0) -> Iterator[Event]:
        """Yield what has been said since the last call; does not block, or with ``patience`` until every connection ended."""
        end = time.monotonic() + patience
        while True:
            wait = max(0.0, end - time.monotonic()) if self._unfinished else 0.0
            ready = self._selector.select(wait)
            if not ready:
                return
            for key, _ in ready:
                if key.fileobj is self._socket:
                    self._accept()
                else:
                    yield from self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def tell(self, number: int, hosts: set[int] | None = None) -> set[int]:
        """Send a signal's number to the leaders of some hosts, or of all, and return the hosts that it was sent to."""
        told = set()
        for index, connection in self.leaders.items():
            if hosts is not None and index not in hosts:
                continue
            try:
                connection.send(bytes([number]))
                told.add(index)
            except OSError:
                pass  # the end of the connection is told by events()
        return told

    def close(self) -> None:
        """Stop listening, and hang up."""
        for connection in (*self._unfinished, self._socket):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it went away again
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._unfinished[connection] = b""

    def _read(self, connection: socket.socket) -> Iterator[Event]:
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:  # reset, or silent for too long
            data = b""
        *lines, rest = (self._unfinished[connection] + data).split(b"\n")
        self._unfinished[connection] = rest
        for line in lines:
            event = self._parsed(line)
            if event:
                self._note(event, connection)
                yield event
        if not data or len(rest) > _LONGEST:
            yield from self._hang_up(connection)

    def _parsed(self, line: bytes) -> Event | None:
        words = line.decode(errors="replace").split()
        if len(words) != 6 or len(words[0]) != len(self._token) or sum(map(ne, words[0], self._token)):
            return None
        return Event(words[1], words[2], words[3], int(words[4]), int(words[5]))

    def _note(self, event: Event, connection: socket.socket) -> None:
        if event.kind == "leader":
            watch(connection)
            self.leaders[int(event.rank)] = connection
            self.heard.add(int(event.rank))
        elif event.kind == "done":
            self.done.add(int(event.rank))

    def _hang_up(self, connection: socket.socket) -> Iterator[Event]:
        self._selector.unregister(connection)
        connection.close()
        del self._unfinished[connection]
        for index in [index for index, leader in self.leaders.items() if leader is connection]:
            del self.leaders[index]
            if index not in self.done:
                yield Event("lost", "?", str(index), 0, 125)


def watch(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other side has fallen silent; nothing is sent by us meanwhile."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPALIVE": _SILENCE,  # macOS's name for the same
        "TCP_KEEPINTVL": _PROBE_EVERY,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": 1000 * (_SILENCE + _PROBE_EVERY * _PROBES),  # the same for bytes that nobody acknowledges
    }
    for name, value in wanted.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send(variable: str, event: str, rank: int | str, pid: int, code: int) -> bool:
    """Tell the launcher, and return whether it could be reached: when not, the rank ends as it would have."""
    token, port, addresses = variable.split("@")
    line = f"{token} {event} {os.uname().nodename} {rank} {pid} {code}\n".encode()
    for address in addresses.split(","):
        try:
            with socket.create_connection((address, int(port)), timeout=_PATIENCE) as connection:
                connection.sendall(line)
                return True
        except OSError:
            continue
    return False
