"""Answer what processes of this user ask a running launch through its Unix socket (`ezpz.launch.ask_launch`).

Who asks sends a line, ``stacks login1``: a word, and the host where it was typed. It gets one JSON object in a line.
``end`` and ``kill`` are the supervisor's; the other words are those of the watchers (`Watcher.answers`). Nobody is
waited for: who says nothing, too much, or does not read what it asked for holds nothing up.
"""

from __future__ import annotations

import socket
import time

from ezpz.launch.event_loop import NO_ROOM
from ezpz.local_socket import claim, is_own

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ezpz.launch.event_loop import Loop

__all__ = ["ENDING", "Askers"]

ENDING = ("end", "kill")  # words of the supervisor
_LONGEST = 512  # bytes of a question
_DRAINED = 1 << 16  # bytes of it that are thrown away
_SILENCE = 10.0  # seconds in which it must have come
_MOST = 64  # connections at a time
_LAST_ANSWERS = 1.0  # seconds, when the launch ends


class Askers:
    """The connections of those who ask.

    Args:
        loop: In which they have their turns.
        asked: Takes a word, and the host that asks. It returns the answer; None where that comes later, by `answer`.
    """

    def __init__(self, loop: Loop, asked: Callable[[str, str], dict[str, Any] | None]) -> None:
        self._loop, self._asked = loop, asked
        self._listener: socket.socket | None = None
        self._questions: dict[socket.socket, bytes] = {}  # as far as they have come
        self._waiting: dict[socket.socket, str] = {}  # for the answer to this word
        self._answers: dict[socket.socket, bytes] = {}  # what of it has not been sent

    def listen(self, address: str) -> None:
        """Let others ask; without a socket the run continues unasked."""
        try:
            listener = claim(address) if address else None
        except OSError:  # the id of a launch deep inside others is too long for one
            return
        if listener:
            self._listener = socket.socket(fileno=listener.detach())
            self._listener.setblocking(False)
            self._loop.read(self._listener, self._accept)

    @property
    def words(self) -> set[str]:
        """The words to which somebody waits for the answer."""
        return set(self._waiting.values())

    def answer(self, word: str, result: dict[str, Any]) -> None:
        """Send all that have asked this the result, and hang up on each that has it."""
        data = _line(result)
        for connection in [each for each, asked in self._waiting.items() if asked == word]:
            self._reply(connection, data)

    def close(self) -> None:
        """Hang up, when those that read have read; all of them together get a second."""
        for connection in list(self._waiting):
            self._reply(connection, _line({"ended": True}))
        end = time.monotonic() + _LAST_ANSWERS
        for connection, rest in self._answers.items():
            try:
                connection.settimeout(max(0.001, end - time.monotonic()))
                connection.sendall(rest)
            except OSError:
                pass  # the asker has gone, or does not read
            connection.close()
        for connection in (*self._questions, *([self._listener] if self._listener else [])):
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._loop.rest(listener)
            return  # or it went away again
        connection.setblocking(False)
        if not is_own(connection):
            self._refuse(connection, "this launch is another user's")
        elif len(self._questions) + len(self._waiting) + len(self._answers) >= _MOST:
            self._refuse(connection, f"{_MOST} others ask already")
        else:
            self._questions[connection] = b""
            self._loop.read(connection, self._hear)
            self._loop.after(f"asker {connection.fileno()}", _SILENCE, lambda: self._drop(connection))

    def _refuse(self, connection: socket.socket, why: str) -> None:
        """Say why nothing is answered, as far as that is read at once."""
        try:
            connection.send(_line({"refused": why}))
            connection.recv(_DRAINED)  # what stays unread at the end would take the line with it
        except OSError:
            pass  # it has gone, or said no more
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._loop.forget(connection)
        self._loop.cancel(f"asker {connection.fileno()}")
        self._questions.pop(connection, None)
        self._waiting.pop(connection, None)
        self._answers.pop(connection, None)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _hear(self, connection: socket.socket) -> None:
        try:
            part = connection.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(connection)
            return
        text = self._questions[connection] + part
        line, end, _ = text.partition(b"\n")
        if not end and len(text) < _LONGEST:
            self._questions[connection] = text
            return
        words = line.decode(errors="replace").split()
        if not end or len(line) >= _LONGEST or not 1 <= len(words) <= 2:
            self._refuse(connection, f"a question is a word and a host in a line of less than {_LONGEST} bytes")
            return
        word, host = words[0], "".join(words[1:])
        self._forget(connection)
        self._waiting[connection] = word
        self._loop.read(connection, self._drained)
        answer = self._asked(word, host)
        if answer is not None and connection in self._waiting:
            self._reply(connection, _line(answer))

    def _drained(self, connection: socket.socket) -> None:
        """Forget who goes away while it waits; what it says besides is not read on."""
        try:
            gone = not connection.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            self._drop(connection)

    def _reply(self, connection: socket.socket, answer: bytes) -> None:
        self._forget(connection)
        self._answers[connection] = answer
        self._loop.write(connection, self._send)
        self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        rest = self._answers[connection]
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            pass
        except OSError:
            rest = b""  # the asker has gone
        if rest:
            self._answers[connection] = rest
        else:
            self._drop(connection)


def _line(answer: dict[str, Any]) -> bytes:
    import json  # 3 ms that most launches, which nobody asks, need not pay for

    return json.dumps(answer).encode() + b"\n"
