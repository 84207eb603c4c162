"""Where the launcher's two streams lead, written to without ever waiting for who reads them.

Descriptors 1 and 2 are shared with the user's shell and other programs, so they are never made non-blocking. Instead every write
is so small that it fits wherever the kernel says that there is room.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque

__all__ = ["Sink", "same"]

_PIPE_ROOM = 4096  # a pipe that counts as writable has room for a page (pipe(7): PIPE_BUF), a socket for more
_TERMINAL_ROOM = 256  # drivers/tty/n_tty.c: WAKEUP_CHARS
_PIECES = 64  # of one `write`: the caller has ranks to look after
_ENOUGH = 64 << 10  # bytes of one write that may wait


class Sink:
    """One file, pipe or terminal, with the bytes that wait for it.

    Attributes:
        fd: Its descriptor.
        lost: Why nothing can be written any more; empty as long as it can.
        queued: Bytes that wait.
        last: The last byte that was put, a newline before the first.
        speaker: Whose byte that was.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost = ""
        self.queued = 0
        self.last = ord("\n")
        self.speaker: object = None
        self._queue: deque[bytes] = deque()
        self._written = 0  # bytes of the first of the queue
        self._room = self._waits = 0
        try:
            mode = os.fstat(fd).st_mode
        except OSError as error:  # the shell closed it: `>&-`
            self._lose(error)
            return
        terminal = os.isatty(fd)
        self._room = _TERMINAL_ROOM if terminal else _PIPE_ROOM
        # Files and /dev/null take everything at once, and epoll refuses them.
        self._waits = terminal or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    def put(self, data: bytes) -> None:
        """Write to a file at once; let data wait for a pipe or a terminal."""
        if self.lost or not data:
            return
        self.last = data[-1]
        self._queue.append(data)
        self.queued += len(data)
        if not self._waits:
            self.flush()

    def write(self) -> None:
        """Write what cannot block; the descriptor is known to be writable."""
        for _ in range(_PIECES):
            if not self._step(self._room) or not select.select((), (self.fd,), (), 0)[1]:
                return

    def flush(self) -> None:
        """Write all that waits, and wait for who reads it."""
        while self.queued:
            if not self._step(_ENOUGH):
                select.select((), (self.fd,), ())  # somebody else made it non-blocking

    def _step(self, most: int) -> bool:
        """Write one piece; return whether more could follow at once."""
        try:
            written = os.write(self.fd, self._piece(most))
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(error)
            return False
        self.queued -= written
        self._written += written
        if self._written == len(self._queue[0]):
            self._queue.popleft()
            self._written = 0
        return self.queued > 0

    def _piece(self, most: int) -> memoryview:
        """Return the next bytes to write; many short ones together."""
        first = self._queue[0]
        if len(first) - self._written < most and len(self._queue) > 1 and len(self._queue[1]) < most:
            pieces, size = [self._queue.popleft()[self._written :]], 0
            while self._queue and size < most and len(self._queue[0]) < most:
                pieces.append(self._queue.popleft())
                size += len(pieces[-1])
            first, self._written = b"".join(pieces), 0
            self._queue.appendleft(first)
        return memoryview(first)[self._written : self._written + most]

    def _lose(self, error: OSError) -> None:
        self.lost = error.strerror or str(error)
        self._queue.clear()
        self.queued = 0


def same(one: int, other: int) -> bool:
    """Tell whether two descriptors lead to the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
