"""The launcher's end of the lines to its leaders: it lets in who knows the secret, reads what they say, and gives orders.

The protocol is that of `ezpz.launch.host.connection`. A leader that has gone without saying ``done`` is lost, and its host with it.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.launch.host.connection import lines, sign, watch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Control", "Event", "Piece"]

_LONGEST = 1 << 20  # bytes of a line; a leader's longest holds the stacks of its ranks
_LONGEST_HELLO = 4096
_STRANGER = 15.0  # seconds for a connection to show that it knows the secret
_READ = 1 << 18


class Event(NamedTuple):
    """What a leader said: ``kind`` is its ``say``, ``host`` the index of its host, or ``lost`` when it has gone; ``told`` holds the rest."""

    kind: str
    host: int
    told: dict[str, Any]


class Piece(NamedTuple):
    """What a rank wrote on stream 1 or 2."""

    rank: int
    stream: int
    data: bytes


class _Peer:
    """One connection, and what is known of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = os.urandom(16).hex()
        self.came = time.monotonic()
        self.unread = b""
        self.kind = ""  # until it has shown that it knows the secret
        self.index = -1


class Control:
    """All leaders of a launch; a selector can watch it by `fileno`.

    Attributes:
        heard: Hosts whose leader has come, by index.
        done: Hosts whose leader has said that all is over there, or is lost.
        settings: What every leader is told when it comes.
    """

    def __init__(self, settings: dict[str, Any], addresses: list[str] | None = None) -> None:
        """Listen for leaders on ``addresses``; without, they are handed over by `adopt`."""
        self.heard: dict[int, str] = {}
        self.done: set[int] = set()
        self.settings = settings
        self._secret = os.urandom(16).hex()
        self._addresses = addresses or []
        self._selector = selectors.DefaultSelector()
        self._leaders: dict[int, list[_Peer]] = {}
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

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when somebody speaks: a selector can be selected on."""
        return self._selector.fileno()

    @staticmethod
    def get_ready() -> None:
        """Import what the first leader needs, in the time that the ranks take to start."""
        import hmac  # noqa: F401  # for `sign`
        import json  # noqa: F401  # for `order` and run.json

    def adopt(self, index: int, host: str, control: socket.socket, output: socket.socket) -> None:
        """Take the connections of a leader that was started by fork: it needs to prove nothing."""
        for kind, connection in (("hello", control), ("output", output)):
            connection.setblocking(False)
            peer = _Peer(connection)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._admit(peer, kind, index, host)

    def read(self) -> Iterator[Event | Piece]:
        """Yield what has been said since the last call; does not block."""
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept()
            elif key.fd in self._selector.get_map():
                yield from self._read(key.data)
        now = time.monotonic()
        for peer in [peer for peer in self._strangers if now - peer.came > _STRANGER]:
            self._close(peer)

    def pause(self, full: bool) -> None:
        """Stop reading output while the screen is full; news are read on."""
        if full == self._paused:
            return
        self._paused = full
        for connection, peer in self._outputs.items():
            if full:
                self._selector.unregister(connection)
            else:
                self._selector.register(connection, selectors.EVENT_READ, peer)

    def order(self, do: str, hosts: set[int] | None = None, **more: object) -> set[int]:
        """Tell the leaders of some hosts, or of all, to do something; return those that were told."""
        import json

        line = json.dumps({"do": do, **more}).encode() + b"\n"
        told = set()
        for index, peers in self._leaders.items():
            if hosts is not None and index not in hosts:
                continue
            for peer in peers:
                try:
                    peer.connection.sendall(line)
                    told.add(index)
                except OSError:
                    pass  # the end of the connection is told by read()
        return told

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
        import json

        connection.setblocking(False)
        peer = _Peer(connection)
        self._strangers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        try:
            connection.send(json.dumps({"nonce": peer.nonce, "time": time.time()}).encode() + b"\n")
        except OSError:
            self._close(peer)

    def _read(self, peer: _Peer) -> Iterator[Event | Piece]:
        try:
            data = peer.connection.recv(_READ)
        except BlockingIOError:
            return
        except OSError:  # reset, or silent for too long
            data = b""
        peer.unread += data
        if peer.kind == "output":
            yield from self._pieces(peer)
        else:
            yield from self._events(peer)
        if not data and peer.connection.fileno() >= 0:
            self._close(peer)
            if peer.kind == "hello" and peer.index not in self.done:
                self.done.add(peer.index)
                yield Event("lost", peer.index, {})

    def _events(self, peer: _Peer) -> Iterator[Event]:
        try:
            found, peer.unread = lines(peer.unread)
        except ValueError:
            self._close(peer)
            return
        for told in found:
            if not peer.kind:
                if (
                    self._greet(peer, told) != "hello"
                ):  # a stranger, or the other connection, on which no more JSON comes
                    return
                yield Event("hello", peer.index, told)
                continue
            kind = told.pop("say", "")
            if kind == "done":
                self.done.add(peer.index)
            yield Event(kind, peer.index, told)
        if len(peer.unread) > (_LONGEST if peer.kind else _LONGEST_HELLO):
            self._close(peer)

    def _greet(self, peer: _Peer, told: dict[str, Any]) -> str:
        """Let a leader in when its answer to the challenge is right, and return what the connection is for."""
        import hmac
        import json

        kind, index = told.get("say"), told.get("index")
        wanted = sign(self._secret, peer.nonce, f"{kind} {index}")
        right = kind in {"hello", "output"} and isinstance(index, int)
        if not right or not hmac.compare_digest(wanted, str(told.get("mac"))):
            self._close(peer)
            return ""
        self._admit(peer, str(kind), int(str(index)), str(told.get("host")))
        watch(peer.connection)
        proof = {"proof": sign(self._secret, str(told.get("nonce")), f"launcher {index}"), "settings": self.settings}
        try:
            peer.connection.send(json.dumps(proof).encode() + b"\n")
        except OSError:
            pass  # its end is told by read()
        return str(kind)

    def _admit(self, peer: _Peer, kind: str, index: int, host: str) -> None:
        self._strangers.discard(peer)
        peer.kind, peer.index = kind, index
        if kind == "output":
            self._outputs[peer.connection] = peer
            if self._paused:
                self._selector.unregister(peer.connection)
        else:
            self._leaders.setdefault(index, []).append(peer)
            self.heard[index] = host

    def _pieces(self, peer: _Peer) -> Iterator[Piece]:
        data, start = peer.unread, 0
        while True:
            end = data.find(b"\n", start)
            if end < 0:
                break
            rank, stream, size = map(int, data[start:end].split())
            if len(data) < end + 1 + size:
                break
            yield Piece(rank, stream, data[end + 1 : end + 1 + size])
            start = end + 1 + size
        peer.unread = data[start:]

    def _close(self, peer: _Peer) -> None:
        if peer.connection in self._selector.get_map():
            self._selector.unregister(peer.connection)
        self._strangers.discard(peer)
        self._outputs.pop(peer.connection, None)
        if peer in self._leaders.get(peer.index, []):
            self._leaders[peer.index].remove(peer)
        peer.connection.close()
