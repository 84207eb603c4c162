r"""Write what all ranks write on the launcher's own stdout and stderr.

A terminal, a pipe and a file are the user's: bytes arrive there as ranks wrote them, in whole lines of one rank each. A
reader that reads slowly lets ranks wait, one that has gone does not end the job, and neither holds the launcher up.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections import deque
from functools import partial
from itertools import groupby

from ezpz.launch.backlog import Backlog, enlarge
from ezpz.launch.run.fold_warnings import Folds

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# Where the launcher's two streams lead, written to without ever waiting for who reads them.
#
# Descriptors 1 and 2 are shared with the user's shell and other programs, so they are never made non-blocking. A pipe
# or terminal is opened a second time instead, and a socket is set with each message. Where that cannot be done, as
# without /proc or on the terminal of another user, every write is so small that it fits wherever the kernel says that
# there is room.

_PIPE_ROOM = 4096  # a pipe that counts as writable has room for a page (pipe(7): PIPE_BUF), a socket for more
_TERMINAL_ROOM = 256  # drivers/tty/n_tty.c: WAKEUP_CHARS
_PIECES = 64  # of one `write`: the caller has ranks to look after
_AT_ONCE = 256 << 10  # bytes of one write that may wait, or that does not where it would have to
_LARGE_PIPE = 1 << 20  # bytes: what Linux allows every user (/proc/sys/fs/pipe-max-size)


class _Second:
    """A second way to what a descriptor leads to, on which no write waits.

    Attributes:
        write: Writes some pieces, and returns how many bytes were taken; raises `BlockingIOError` for none.
        close: Gives it back.
    """

    def __init__(self, write: Callable[[Sequence[memoryview]], int], close: Callable[[], None]) -> None:
        self.write, self.close = write, close

    @classmethod
    def of(cls, fd: int, mode: int) -> _Second | None:
        """Return the one of a pipe, terminal or socket, None where the system has none."""
        if stat.S_ISSOCK(mode):
            import socket

            connection = socket.socket(fileno=os.dup(fd))
            if connection.type != socket.SOCK_STREAM or not hasattr(socket, "MSG_DONTWAIT"):
                connection.close()
                return None
            return cls(lambda pieces: connection.sendmsg(pieces, (), socket.MSG_DONTWAIT), connection.close)
        if sys.platform != "linux":  # elsewhere /dev/fd shares the flags of the descriptor that it names
            return None
        try:
            second = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        return cls(partial(os.writev, second), partial(os.close, second))


class Sink:
    """One file, pipe or terminal, with the bytes that wait for it.

    Attributes:
        fd: Its descriptor.
        lost: Why nothing can be written any more; empty as long as it can.
        last: The last byte that was put, a newline before the first.
        speaker: Whose byte that was.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost = ""
        self.last = ord("\n")
        self.speaker: object = None
        self._backlog = Backlog()
        self._all = 0  # bytes that were ever put
        self._lent: deque[tuple[int, Callable[[], None]]] = deque()  # up to which of them data is lent, and its return
        self._room = 0
        self._waits = self._may_grow = False
        self._second: _Second | None = None
        self._write: Callable[[Sequence[memoryview]], int] = partial(os.writev, fd)
        try:
            mode = os.fstat(fd).st_mode
        except OSError as error:  # the shell closed it: `>&-`
            self._lose(error)
            return
        terminal = os.isatty(fd)
        self._room = _TERMINAL_ROOM if terminal else _PIPE_ROOM
        # Files and /dev/null take everything at once, and epoll refuses them.
        self._waits = terminal or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._may_grow = stat.S_ISFIFO(mode)
        if self._waits:
            self._second = _Second.of(fd, mode)
            self._write = self._second.write if self._second else self._write

    @property
    def queued(self) -> int:
        """Bytes that wait."""
        return self._backlog.size

    def put(self, data: bytes | memoryview, release: Callable[[], None] | None = None) -> None:
        """Write to a file at once; let data wait for a pipe or a terminal.

        Args:
            data: It.
            release: Called when the data has been written, or never will be.
        """
        if self.lost or not data:
            if release:
                release()
            return
        self.last = data[-1]
        self._backlog.put(data)
        self._all += len(data)
        if release:
            self._lent.append((self._all, release))
        if not self._waits:
            self.flush()

    def put_over(self, data: bytes) -> None:
        """Write what is taken away again before anything else is put: it is no line of any speaker."""
        if not self.lost:
            self._backlog.put(data)
            self._all += len(data)

    def push(self) -> None:
        """Write what can be written at once, if the system tells by itself what cannot."""
        if self._second:
            for _ in range(_PIECES):
                if not self.queued or not self._step(_AT_ONCE):
                    return

    def write(self) -> None:
        """Write what cannot block; the descriptor is known to be writable."""
        if self._second:
            self.push()
            return
        for _ in range(_PIECES):
            self._step(self._room)
            if not self.queued or not select.select((), (self.fd,), (), 0)[1]:
                return

    def flush(self) -> None:
        """Write all that waits, and wait for who reads it."""
        while self.queued:
            if not self._step(_AT_ONCE) and self.queued:
                select.select((), (self.fd,), ())

    def close(self) -> None:
        """Write all that waits, and give back what was opened for that; whatever is put later may have to wait."""
        self.flush()
        if self._second:
            self._second.close()
            self._second, self._write = None, partial(os.writev, self.fd)

    def _step(self, most: int) -> bool:
        """Write once, and tell whether all that was tried has been written."""
        try:
            is_taken = self._backlog.write(self._write, most)
        except OSError as error:
            self._lose(error)
            return False
        self._release()
        if not is_taken and self._may_grow:
            self._may_grow = False
            enlarge(self.fd, _LARGE_PIPE)
        return is_taken

    def _lose(self, error: OSError) -> None:
        self.lost = error.strerror or str(error)
        self._backlog.clear()
        self._release()

    def _release(self) -> None:
        """Give back what was lent and has been written."""
        while self._lent and self._lent[0][0] <= self._all - self.queued:
            self._lent.popleft()[1]()


def same(one: int, other: int) -> bool:
    """Tell whether two descriptors lead to the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


__all__ = ["Screen"]

_MOST_QUEUED = 1 << 20  # bytes: more, and ranks have to wait for who reads
_ENDS = b"\r\n"
_NEWLINE = ord("\n")
_ERASE = b"\r\x1b[K"


class Screen:
    """The two streams of the launcher.

    Args:
        world_size: Ranks of the launch; a single one shares its warnings with no other.
        label: Put the rank in front of every line.
        out: Descriptor that shows stdout of ranks.
        err: Descriptor that shows their stderr and our own lines.
    """

    def __init__(self, world_size: int, *, label: bool = False, out: int = 1, err: int = 2) -> None:
        self._fds = (out, err)
        self._out = Sink(out)
        # One queue for `2>&1` and a terminal, or the halves of two lines could meet there.
        self._err = self._out if same(out, err) else Sink(err)
        self._label = label
        self._folds = Folds(world_size) if world_size > 1 else None
        self._now = 0.0  # the last time that was given
        self._live = b""  # the line below all others, which is drawn whenever nothing else waits
        self._is_drawn = False

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be read from ranks."""
        held = self._folds.held if self._folds else 0
        return held + self._out.queued + (self._err.queued if self._err is not self._out else 0) > _MOST_QUEUED

    @property
    def lost(self) -> dict[int, str]:
        """Descriptors that nothing can be written to any more, with the reason: there is no reader, or the disk is
        full.
        """
        return {fd: sink.lost for fd, sink in zip(self._fds, (self._out, self._err), strict=True) if sink.lost}

    def show(
        self,
        rank: int | None,
        stream: int,
        data: bytes | memoryview,
        now: float,
        release: Callable[[], None] | None = None,
        *,
        world: int = 0,
    ) -> None:
        r"""Show what a rank has written.

        Args:
            rank: Its number, None for the words of mpiexec itself.
            stream: 1 for stdout, 2 for stderr.
            data: Whole lines, or the beginning of one that has waited long enough.
            now: Monotonic time, seconds.
            release: Called when the data is no longer needed.
            world: The world of the rank, where it is not the first of the launch.
        """
        self._now = now
        pieces = None
        if release and self._label:
            data = bytes(data)
        if stream == 2 and rank is not None and self._folds and data and not world:
            pieces = self._folds.add(rank, data, now)
        if release and (isinstance(data, bytes) or (pieces is not None and not any(one is data for _, one in pieces))):
            release()  # all that is shown of it is copied
            release = None
        if pieces is not None:
            self._show_all(pieces, release)
        else:
            label = _label([rank], world) if self._label and rank is not None else b""
            self._show((rank, stream, world) if world else (rank, stream), data, label, release)

    def say(self, text: str) -> None:
        """Show a line of ours, or some, on stderr, behind all that was shown before; the last newline may be
        missing.
        """
        if self._folds:
            self._show_all(self._folds.release(self._now))
        self._ours((text if text.endswith("\n") else text + "\n").encode(errors="surrogateescape"))

    def due(self) -> float | None:
        """Return the monotonic time of the next `tick`, or None."""
        return self._folds.due() if self._folds else None

    def tick(self, now: float) -> None:
        """Show what has waited long enough for other ranks to say the same."""
        self._now = now
        if self._folds:
            self._show_all(self._folds.tick(now))

    def live(self, text: str) -> None:
        """Keep a line below all others on stdout, which must be a terminal; an empty one takes it away.

        It is taken away before anything else is written, and drawn again behind that. Behind a line that has not ended,
        such as a program's own bar of progress, it is not drawn.
        """
        self._hide()
        self._live = text.encode(errors="replace")

    def hide(self) -> None:
        """Take the live line away until the next `push`."""
        self._hide()
        for sink in {self._out, self._err}:
            sink.push()

    def _hide(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._out.put_over(_ERASE)

    def push(self) -> None:
        """Write what can be written at once."""
        if self._live and not self._is_drawn and not self._out.queued and self._out.last == _NEWLINE:
            self._is_drawn = True
            self._out.put_over(self._live)
        for sink in {self._out, self._err}:
            sink.push()

    def wants(self) -> list[int]:
        """Return the descriptors to watch until they are writable."""
        return [sink.fd for sink in {self._out, self._err} if sink.queued]

    def write(self, fd: int) -> None:
        """Write to a descriptor that is writable, without ever waiting for its reader."""
        sink = self._out if fd == self._out.fd else self._err
        if sink.queued:
            sink.write()

    def finish(self) -> None:
        """Queue all that still waits for other ranks, and the counts, without waiting for a reader."""
        self.live("")
        if self._folds:
            self._show_all(self._folds.finish())

    def close(self) -> None:
        """Write everything, and wait until it is read."""
        self.finish()
        self._out.close()
        self._err.close()

    def _show_all(
        self, pieces: Iterable[tuple[tuple[int, ...], bytes | memoryview]], release: Callable[[], None] | None = None
    ) -> None:
        """Show what has been folded; ``release`` is for the only piece that is no bytes."""
        for ranks, data in pieces:
            if isinstance(data, memoryview):
                self._show((ranks[0], 2), data, b"", release)
            elif not ranks:
                self._ours(data)
            elif self._label:
                self._show((ranks[0], 2), data, _label(ranks))
            else:
                self._show((ranks[0], 2), data if len(ranks) == 1 else _counted(data, len(ranks)), b"")

    def _ours(self, data: bytes) -> None:
        self._show((None, 0), data, b"")

    def _show(
        self,
        speaker: tuple[int | None, ...],
        data: bytes | memoryview,
        label: bytes,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Put data on its sink so that a line of one speaker never continues with another's."""
        sink = self._out if speaker[1] == 1 else self._err
        if not data or sink.lost:
            if release:
                release()
            return
        self._hide()
        continues = sink.speaker == speaker and sink.last not in _ENDS
        if sink.last not in _ENDS and not continues:
            sink.put(b"\n")
        if label:
            if sink.speaker == speaker and sink.last == ord("\r") and data[:1] == b"\n":
                continues = True  # the two bytes of one line end came in two pieces
            lines = bytes(data).splitlines(keepends=True)
            data = (b"" if continues else label) + label.join(lines)
        sink.speaker = speaker
        sink.put(data, release)


def _counted(data: bytes, ranks: int) -> bytes:
    """Put the number of ranks at the end of the first line."""
    line, rest = data.splitlines(keepends=True)[0], data[data.index(b"\n") + 1 :]
    text = line.rstrip(_ENDS)
    return text + f" [{ranks} ranks]".encode() + line[len(text) :] + rest


def _label(ranks: Sequence[int | None], world: int = 0) -> bytes:
    """Return the prefix of lines: ``[0-3,7]: ``, and ``[2/0]: `` of another world than the first."""
    parts = []
    for _, group in groupby(enumerate(ranks), key=lambda pair: (pair[1] or 0) - pair[0]):
        run = [rank for _, rank in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return f"[{f'{world}/' * bool(world)}{','.join(parts)}]: ".encode()
