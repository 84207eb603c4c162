"""Pass on the launcher's own stdin to rank 0, on the connection of its agent and no faster than the rank reads.

A connection that is cut has lost what was on its way, so the last pieces are kept: more than a connection holds.
"""

from __future__ import annotations

import os
import stat
from collections import deque

from ezpz.launch.host.rank_stdin import LONGEST_PIECE
from ezpz.local_socket import will_pass

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.event_loop import Loop
    from ezpz.launch.frames import FrameWriter
    from ezpz.launch.run.control import WayBack


_KEPT = 16 << 20  # bytes of the last input: the buffers of a connection hold fewer


def leave_stdin() -> None:
    """Read stdin no more: whoever writes into it shall notice."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    if nowhere:
        os.close(nowhere)


class InputPump:
    """The way from stdin to the agent of rank 0; of what was read, one piece waits at most.

    Args:
        loop: Where both ends are watched.
        note: Takes a line for the user.
        fail: Takes the words for input that cannot be had again.
    """

    def __init__(self, loop: Loop, note: Callable[[str], None], fail: Callable[[str], None]) -> None:
        self._loop, self._note, self._fail = loop, note, fail
        self._sent = 0  # pieces
        self._kept: deque[bytes] = deque()  # the last of them
        self._size = 0  # bytes of those
        self._to = -1  # a descriptor of our own for the connection, which others may close
        self._frames: FrameWriter | None = None
        self._waiting = b""
        self._ended = False
        self._can_be_awaited = True

    def start(self, way: WayBack, taken: int) -> None:
        """Begin: the rank runs; or go on behind so many pieces, because an earlier connection was cut."""
        is_first = self._frames is None
        if self._sent - taken > len(self._kept):
            self._fail("a part of the input of rank 0 is lost: its connection was cut")
            return
        self.close()
        self._to, self._frames = os.dup(way.connection.fileno()), way.writer
        if is_first:
            _read_alone()
        again = list(self._kept)[len(self._kept) - (self._sent - taken) :]
        self._waiting = b"".join(map(self._frames.frame, again))
        self._go_on()

    def stop(self) -> None:
        """Send no more than the end: the rank reads no more."""
        if self._to >= 0 and not self._ended:
            self._end()
            self._go_on()

    def close(self) -> None:
        """Leave the connection to others; the run is over."""
        if self._to >= 0:
            self._loop.forget(self._to)
            os.close(self._to)
            self._to = -1

    def _go_on(self) -> None:
        """Write what waits, else read on."""
        if self._waiting:
            self._loop.write(self._to, lambda _: self._push())
        elif self._ended:
            self.close()
        else:
            self._loop.forget(self._to)
            self._await()

    def _await(self) -> None:
        if self._can_be_awaited:
            try:
                self._loop.read(0, lambda _: self._read())
            except PermissionError:  # epoll refuses files: they are always ready
                self._can_be_awaited = False
        if not self._can_be_awaited:
            self._loop.at("input", 0.0, self._read)

    def _read(self) -> None:
        try:
            data = os.read(0, LONGEST_PIECE)
        except BlockingIOError:  # another program was faster
            self._go_on()
            return
        except OSError as error:
            self._note(f"stdin cannot be read: {error.strerror}; rank 0 gets the end of its input")
            data = b""
        if data:
            self._waiting = self._frame(data)
            if self._can_be_awaited:
                self._loop.forget(0)
        else:
            self._end()
        self._push()

    def _end(self) -> None:
        self._ended = True
        self._waiting += self._frame(b"")
        self._loop.cancel("input")
        if self._can_be_awaited:
            self._loop.forget(0)
        leave_stdin()

    def _frame(self, data: bytes) -> bytes:
        assert self._frames
        self._sent += 1
        self._kept.append(data)
        self._size += len(data)
        while self._size > _KEPT:
            self._size -= len(self._kept.popleft())
        return self._frames.frame(data)

    def _push(self) -> None:
        try:
            self._waiting = self._waiting[os.write(self._to, self._waiting) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if not will_pass(error):  # the connection was cut, or the agent has gone: both show elsewhere
                self._waiting = b""
                self._pause()
                return
        self._go_on()

    def _pause(self) -> None:
        """Read no more for now."""
        self.close()
        self._loop.cancel("input")
        if self._can_be_awaited and not self._ended:
            self._loop.forget(0)


def _read_alone() -> None:
    """Give this process a pipe's own descriptor, never waited for: other programs may read the same pipe, and take what
    was announced to us.
    """
    try:
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            own = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK)
            os.dup2(own, 0)
            os.close(own)
    except OSError:
        pass  # no /proc, or the pipe is another user's: then it is shared
