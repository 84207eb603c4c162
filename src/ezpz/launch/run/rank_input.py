"""Pass on the launcher's own stdin to rank 0, on the connection of its agent and no faster than the rank reads."""

from __future__ import annotations

import os
import stat

from ezpz.launch.host.rank_input import LONGEST_PIECE

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.frames import FrameWriter
    from ezpz.launch.loop import Loop
    from ezpz.launch.run.control import WayBack


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
    """

    def __init__(self, loop: Loop, note: Callable[[str], None]) -> None:
        self._loop, self._note = loop, note
        self._to = -1  # a descriptor of our own for the connection, which others may close
        self._frames: FrameWriter | None = None
        self._waiting = b""
        self._ended = False
        self._can_be_awaited = True

    def start(self, way: WayBack) -> None:
        """Begin: the rank runs."""
        if self._to >= 0 or self._ended:
            return
        self._to, self._frames = os.dup(way.connection.fileno()), way.writer
        _read_alone()
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
        return self._frames.frame(data)

    def _push(self) -> None:
        try:
            self._waiting = self._waiting[os.write(self._to, self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:  # the agent has gone, which shows elsewhere
            self._waiting, self._ended = b"", True
            leave_stdin()
        self._go_on()


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
