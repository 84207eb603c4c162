"""Let ``ezpz stacks`` ask a running launch through a Unix socket (`ezpz.launch.record` knows it): it sends a line
``stacks`` and gets one object in JSON.
"""

from __future__ import annotations

import socket
import time

from ezpz.launch.host.local_socket import claim, is_own
from ezpz.launch.loop import NO_ROOM

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ezpz.launch.loop import Loop

__all__ = ["Askers"]

_LAST_ANSWERS = 1.0  # seconds, when the launch ends


class Askers:
    """The connections of ``ezpz stacks``. None of them is waited for, but at the end of the launch."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._silent: set[socket.socket] = set()
        self._asked: list[socket.socket] = []  # have sent `stacks`, and wait for the answer
        self._answers: dict[socket.socket, bytes] = {}  # what of it has not been sent
        self._loop: Loop | None = None

    def __bool__(self) -> bool:
        return bool(self._asked)

    def listen(self, address: str, loop: Loop, asked: Callable[[], None]) -> None:
        """Let ``ezpz stacks`` ask; without a socket the run continues unasked."""
        self._loop = loop
        listener = claim(address) if address else None
        if listener:
            self._listener = socket.socket(fileno=listener.detach())
            self._listener.setblocking(False)
            loop.read(self._listener, lambda listener: self._accept(listener, asked))

    def answer(self, result: dict[str, Any]) -> None:
        """Send all that have asked the result, and hang up on each that has it."""
        import json

        assert self._loop
        for connection in self._asked:
            self._answers[connection] = json.dumps(result).encode() + b"\n"
            self._loop.write(connection, self._send)
            self._send(connection)
        self._asked = []

    def close(self) -> None:
        """Hang up, when those that read have read; all of them together get a second."""
        end = time.monotonic() + _LAST_ANSWERS
        for connection, rest in self._answers.items():
            try:
                connection.settimeout(max(0.001, end - time.monotonic()))
                connection.sendall(rest)
            except OSError:
                pass  # the asker has gone, or does not read
            connection.close()
        for connection in (*self._silent, *self._asked, *([self._listener] if self._listener else [])):
            connection.close()

    def _accept(self, listener: socket.socket, asked: Callable[[], None]) -> None:
        assert self._loop
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._loop.rest(listener)
            return  # or it went away again
        if not is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._silent.add(connection)
        self._loop.read(connection, lambda connection: self._hear(connection, asked))

    def _hear(self, connection: socket.socket, asked: Callable[[], None]) -> None:
        assert self._loop
        try:
            word = connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        self._loop.forget(connection)
        self._silent.discard(connection)
        if not word:
            connection.close()
            return
        self._asked.append(connection)
        asked()

    def _send(self, connection: socket.socket) -> None:
        assert self._loop
        rest = self._answers[connection]
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            pass
        except OSError:
            rest = b""  # the asker has gone
        self._answers[connection] = rest
        if not rest:
            del self._answers[connection]
            self._loop.forget(connection)
            connection.close()
