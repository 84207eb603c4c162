"""Connect the launcher with its host agents: let in those that know the secret, read reports, and send orders.

An agent that has gone without reporting `Done` is lost, and its host with it.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import namedtuple

from ezpz.launch.host.connection import keep_alive, sign
from ezpz.launch.messages import (
    CHALLENGES,
    INTRODUCTIONS,
    ORDERS,
    REPORTS,
    WELCOMES,
    Challenge,
    Done,
    Hello,
    Inbox,
    Lost,
    MalformedMessage,
    Piece,
    Welcome,
)

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.launch.messages import Message, Settings

__all__ = ["Control", "Report"]

_STRANGER = 15.0  # seconds for a connection to show that it knows the secret
_READ = 1 << 18


class Report(namedtuple("Report", "host message")):  # noqa: PYI024  # typing.NamedTuple needs typing
    """What the agent of the host with this index reports: `Hello` when it has come, `Lost` when it has gone."""

    __slots__ = ()

    if TYPE_CHECKING:
        host: int
        message: Message


class _Peer:
    """One connection, and what is known of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = os.urandom(16).hex()
        self.came = time.monotonic()
        self.inbox = Inbox(INTRODUCTIONS)
        self.kind = ""  # until it has shown that it knows the secret
        self.index = -1


class Control:
    """All agents of a launch; a selector can watch it by `fileno`.

    Attributes:
        heard: Hosts whose agent has come, by index.
        done: Hosts whose agent has reported that all is over there, or is lost.
        settings: What every agent gets to know when it comes.
    """

    def __init__(self, settings: Settings, addresses: list[str] | None = None) -> None:
        """Listen for agents on ``addresses``; without, they are handed over by `adopt`."""
        self.heard: dict[int, str] = {}
        self.done: set[int] = set()
        self.settings = settings
        self._secret = os.urandom(16).hex()
        self._addresses = addresses or []
        self._selector = selectors.DefaultSelector()
        self._agents: dict[int, list[_Peer]] = {}
        self._outputs: dict[socket.socket, _Peer] = {}
        self._strangers: set[_Peer] = set()
        self._paused = False
        self._listener: socket.socket | None = None
        if addresses:
            self._listener = socket.create_server(("127.0.0.1" if addresses == ["127.0.0.1"] else "", 0), backlog=4096)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    @property
    def variable(self) -> str:
        """Value of ``EZPZ_CONTROL`` for the shims; empty where no agent connects by itself."""
        if self._listener is None:
            return ""
        return f"{self._secret}@{self._listener.getsockname()[1]}@{','.join(self._addresses)}"

    @property
    def open_outputs(self) -> bool:
        """Whether output may still come."""
        return bool(self._outputs)

    @property
    def all_done(self) -> bool:
        """Whether all is over on every host whose agent has come."""
        return set(self.heard) <= self.done

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when an agent sends something: a selector can be selected on."""
        return self._selector.fileno()

    @staticmethod
    def get_ready() -> None:
        """Import what the first agent needs, in the time that the ranks take to start."""
        import hmac  # noqa: F401  # for `sign`
        import json  # noqa: F401  # for the messages and run.json

    def adopt(self, index: int, host: str, control: socket.socket, output: socket.socket) -> None:
        """Take the connections of an agent that was started by fork: it needs to prove nothing."""
        for kind, connection in (("hello", control), ("output", output)):
            connection.setblocking(False)
            peer = _Peer(connection)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._admit(peer, kind, index, host)

    def read(self) -> Iterator[Report | Piece]:
        """Yield what has come since the last call; does not block."""
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept()
            elif key.fd in self._selector.get_map():
                yield from self._read(key.data)
        now = time.monotonic()
        for peer in [peer for peer in self._strangers if now - peer.came > _STRANGER]:
            self._close(peer)

    def pause(self, full: bool) -> None:
        """Stop reading output while the screen is full; reports are read all the same."""
        if full == self._paused:
            return
        self._paused = full
        for connection, peer in self._outputs.items():
            if full:
                self._selector.unregister(connection)
            else:
                self._selector.register(connection, selectors.EVENT_READ, peer)

    def order(self, order: Message, hosts: set[int] | None = None) -> set[int]:
        """Send an order to the agents of some hosts, or of all; return the hosts that it was sent to."""
        line = ORDERS.encode(order)
        reached = set()
        for index, peers in self._agents.items():
            if hosts is not None and index not in hosts:
                continue
            for peer in peers:
                try:
                    peer.connection.sendall(line)
                    reached.add(index)
                except OSError:
                    pass  # read() sees the end of the connection
        return reached

    def way_back(self, index: int) -> socket.socket | None:
        """Return the connection on which a host's agent expects input for rank 0: that of its output."""
        return next((connection for connection, peer in self._outputs.items() if peer.index == index), None)

    def close(self) -> None:
        """Stop listening, and hang up."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        for connection in self._outputs:
            connection.close()
        self._selector.close()

    def give_up(self) -> None:
        """Wait for no more output."""
        for peer in list(self._outputs.values()):
            self._close(peer)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it went away again
            return
        connection.setblocking(False)
        peer = _Peer(connection)
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        try:
            connection.send(CHALLENGES.encode(Challenge(nonce=peer.nonce, time=time.time())))
        except OSError:
            self._close(peer)

    def _read(self, peer: _Peer) -> Iterator[Report | Piece]:
        try:
            data = peer.connection.recv(_READ)
        except BlockingIOError:
            return
        except OSError:  # reset, or silent for too long
            data = b""
        try:
            if not peer.kind:
                yield from self._greet(peer, data)
            elif peer.kind == "output":
                yield from peer.inbox.pieces(data)
            else:
                yield from self._reports(peer, data)
        except MalformedMessage:  # nothing more of this peer can be understood
            data = b""
            if peer.kind == "output":
                self._hang_up(peer.index)
        if not data and peer.connection.fileno() >= 0:
            self._close(peer)
            if peer.kind == "hello" and peer.index not in self.done:
                self.done.add(peer.index)
                yield Report(peer.index, Lost())

    def _greet(self, peer: _Peer, data: bytes) -> Iterator[Report | Piece]:
        """Let an agent in when its answer to the challenge is right; what follows its introduction is read as well."""
        import hmac

        hello = peer.inbox.first(data)
        if hello is None:
            return
        assert isinstance(hello, Hello)
        expected = sign(self._secret, peer.nonce, f"{hello.kind} {hello.index}")
        if not hmac.compare_digest(expected, hello.mac):
            raise MalformedMessage("a stranger")
        self._admit(peer, hello.kind, hello.index, hello.host)
        keep_alive(peer.connection)
        proof = sign(self._secret, hello.nonce, f"launcher {hello.index}")
        try:
            peer.connection.send(WELCOMES.encode(Welcome(proof=proof, settings=self.settings)))
        except OSError:
            pass  # read() sees its end
        if peer.kind == "output":
            yield from peer.inbox.pieces(b"")
        else:
            yield Report(peer.index, hello)
            yield from self._reports(peer, b"")

    def _reports(self, peer: _Peer, data: bytes) -> Iterator[Report]:
        for message in peer.inbox.feed(data):
            if isinstance(message, Done):
                self.done.add(peer.index)
            yield Report(peer.index, message)

    def _hang_up(self, index: int) -> None:
        """End the conversation with a host; it is lost, and kills its ranks."""
        for peer in self._agents.get(index, []):
            try:
                peer.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has hung up itself

    def _admit(self, peer: _Peer, kind: str, index: int, host: str) -> None:
        self._strangers.discard(peer)
        peer.kind, peer.index = kind, index
        peer.inbox.direction = REPORTS
        if kind == "output":
            self._outputs[peer.connection] = peer
            if self._paused:
                self._selector.unregister(peer.connection)
        else:
            self._agents.setdefault(index, []).append(peer)
            self.heard[index] = host

    def _close(self, peer: _Peer) -> None:
        if peer.connection in self._selector.get_map():
            self._selector.unregister(peer.connection)
        self._strangers.discard(peer)
        self._outputs.pop(peer.connection, None)
        if peer in self._agents.get(peer.index, []):
            self._agents[peer.index].remove(peer)
        peer.connection.close()
