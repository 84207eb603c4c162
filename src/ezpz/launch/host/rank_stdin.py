"""Give rank 0 its input: what the launcher has read goes into the pipe that the rank reads, no faster than it reads.

The launcher sends it back on the agent's connection for output, a piece in each frame. An empty piece is the end. It
sends nothing before `InputWanted`, and only the end after `InputUnread`.
"""

from __future__ import annotations

import os

from ezpz.fields import Malformed
from ezpz.launch import agent_messages
from ezpz.local_socket import will_pass

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.event_loop import Loop
    from ezpz.launch.host.connection import Connection

LONGEST_PIECE = 1 << 16  # bytes


class RankInput:
    """The way from the launcher to rank 0's stdin.

    Nothing is read from the launcher while the pipe is full: then the connection fills, and the launcher stops reading
    its own stdin. What is kept here is no more than one read and one piece.

    Args:
        loop: Where pipe and connection are watched.
        connection: To the launcher.
        pipe: What the rank's stdin is written into; closed when the input or the rank has ended.
        world: The number of the rank's world.

    Attributes:
        over: Whether the launcher sends no more. Before that this process must not end: with input unread, the kernel
            would throw away output that the launcher has not read either (RFC 1122, 4.2.2.13).
    """

    def __init__(self, loop: Loop, connection: Connection, pipe: int, world: int = 0) -> None:
        self.over = False
        self._loop, self._connection, self._world = loop, connection, world
        self._pipe = pipe  # -1 when it is closed
        self._waiting: list[bytes] = []
        self._taken = 0  # pieces
        self._source = -1  # as long as the connection is cut
        os.set_blocking(pipe, False)
        self.resume()

    def resume(self) -> None:
        """Ask for the input, or for the rest of it on another connection."""
        if self.over:
            return
        # A loop watches a file for reading or for writing, not both.
        self._source = os.dup(self._connection.output.fileno())
        self._connection.report(agent_messages.InputWanted(taken=self._taken), self._world)
        if self._pipe < 0:
            self._connection.report(agent_messages.InputUnread(), self._world)
        if not self._waiting:
            self._listen()

    def _listen(self) -> None:
        if self._source >= 0 and not self.over:
            self._loop.read(self._source, lambda _: self._take())

    def _leave_source(self) -> None:
        if self._source >= 0:
            self._loop.forget(self._source)
            os.close(self._source)
            self._source = -1

    def close(self) -> None:
        """Give up what the rank has not read: it has ended, or has closed its stdin."""
        if self._pipe < 0:
            return
        self._close_pipe()
        if not self.over:
            self._connection.report(agent_messages.InputUnread(), self._world)
            self._listen()  # to the end that the launcher sends

    def _take(self) -> None:
        """Take what has come."""
        try:
            data = os.read(self._source, LONGEST_PIECE)
            for piece in self._connection.input.feed(data):
                self._taken += 1
                self.over |= not piece
                if self._pipe >= 0:
                    self._waiting.append(bytes(piece))
        except OSError as error:
            if isinstance(error, BlockingIOError) or will_pass(error):
                return
            data = b""
        except Malformed:
            data = b""
        if not data and not self.over:  # the rank must not take this for the end of its input
            self._leave_source()
            self._connection.cut()  # where it cannot be made anew, the host is given up
        if self.over:
            self._leave_source()
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
            if self._source >= 0:
                self._loop.forget(self._source)
            self._loop.write(self._pipe, lambda _: self._write())
        except OSError:  # no reader is left
            self.close()
        else:
            self._loop.forget(self._pipe)
            self._listen()

    def _close_pipe(self) -> None:
        self._waiting.clear()
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
