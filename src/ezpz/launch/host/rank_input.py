"""Give rank 0 its input: what the launcher has read goes into the pipe that the rank reads, no faster than it reads.

The launcher sends it back on the agent's connection for output, a piece in each frame. An empty piece is the end. It
sends nothing before `InputWanted`, and only the end after `InputUnread`.
"""

from __future__ import annotations

import os

from ezpz.launch import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.host.connection import Connection
    from ezpz.launch.loop import Loop

LONGEST_PIECE = 1 << 16  # bytes


class RankInput:
    """The way from the launcher to rank 0's stdin.

    Nothing is read from the launcher while the pipe is full: then the connection fills, and the launcher stops reading
    its own stdin. What is kept here is no more than one read and one piece.

    Args:
        loop: Where pipe and connection are watched.
        connection: To the launcher.
        pipe: What the rank's stdin is written into; closed when the input or the rank has ended.

    Attributes:
        over: Whether the launcher sends no more. Before that this process must not end: with input unread, the kernel
            would throw away output that the launcher has not read either (RFC 1122, 4.2.2.13).
    """

    def __init__(self, loop: Loop, connection: Connection, pipe: int) -> None:
        self.over = False
        self._loop, self._connection = loop, connection
        self._pipe = pipe  # -1 when it is closed
        self._waiting: list[bytes] = []
        self._source = os.dup(connection.output.fileno())  # a loop watches a file for reading or for writing, not both
        os.set_blocking(pipe, False)
        connection.report(messages.InputWanted())
        loop.read(self._source, lambda _: self._take())

    def close(self) -> None:
        """Give up what the rank has not read: it has ended, or has closed its stdin."""
        if self._pipe < 0:
            return
        self._close_pipe()
        if not self.over:
            self._connection.report(messages.InputUnread())
            self._loop.read(self._source, lambda _: self._take())  # to the end that the launcher sends

    def _take(self) -> None:
        """Take what has come."""
        try:
            data = os.read(self._source, LONGEST_PIECE)
            for piece in self._connection.input.feed(data):
                self.over |= not piece
                if self._pipe >= 0:
                    self._waiting.append(bytes(piece))
        except BlockingIOError:
            return
        except (OSError, messages.MalformedMessage):
            data = b""
        if not data and not self.over:  # the rank must not take this for the end of its input
            self.over = True
            self._connection.report(messages.Refused(text="the input of rank 0 has broken off", cannot=False))
        if self.over:
            self._loop.forget(self._source)
            os.close(self._source)
        if self._pipe >= 0:
            self._write()

    def _write(self) -> None:
        """Write what the rank takes now."""
        try:
            while self._waiting:
                piece = self._waiting[0]
                if not piece:
                    self._close_pipe()
                    return
                written = os.write(self._pipe, piece)
                self._waiting[:1] = [piece[written:]] if written < len(piece) else []
        except BlockingIOError:
            if not self.over:
                self._loop.forget(self._source)
            self._loop.write(self._pipe, lambda _: self._write())
        except OSError:  # no reader is left
            self.close()
        else:
            self._loop.forget(self._pipe)
            if not self.over:
                self._loop.read(self._source, lambda _: self._take())

    def _close_pipe(self) -> None:
        self._waiting.clear()
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
