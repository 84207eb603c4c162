"""Pass much output on at little cost: keep bytes that wait, and hand them out in few large writes."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False  # `typing` costs 5 ms in every agent; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Backlog", "enlarge", "keep_freed_memory"]

_MOST_PARTS = 512  # of one write: IOV_MAX is 1024 on Linux and macOS
_KEPT_FREE = 4 << 20  # bytes


class Backlog:
    """Pieces of bytes that wait.

    Attributes:
        size: Bytes of all of them.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[memoryview] = deque()

    def put(self, data: bytes) -> None:
        """Let data wait behind all that was put before."""
        if data:
            self._pieces.append(memoryview(data))
            self.size += len(data)

    def write(self, write: Callable[[list[memoryview]], int], most: int) -> bool:
        """Write once, and tell whether all that was tried has been taken.

        Args:
            write: Takes some pieces and returns how many bytes of them it took, as `os.writev` does.
            most: Bytes to try.

        Raises:
            OSError: What ``write`` raises, but for `BlockingIOError`.
        """
        pieces, tried = [], 0
        for piece in self._pieces:
            pieces.append(piece[: most - tried])
            tried += len(pieces[-1])
            if tried == most or len(pieces) == _MOST_PARTS:
                break
        if not pieces:
            return True
        try:
            left = written = write(pieces)
        except BlockingIOError:
            return False
        while left and left >= len(self._pieces[0]):
            left -= len(self._pieces.popleft())
        if left:
            self._pieces[0] = self._pieces[0][left:]
        self.size -= written
        return written == tried

    def clear(self) -> None:
        """Forget all that waits."""
        self._pieces.clear()
        self.size = 0


def enlarge(pipe: int, size: int) -> None:
    """Let a pipe hold more, where the system can and allows it, so that its two ends wake each other less often."""
    import fcntl

    try:
        if fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) < size:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
    except (AttributeError, OSError):
        pass  # no Linux, or this user has too much in pipes already


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next piece of output, instead of giving it back and getting it anew.

    It does so from the first large block on that is given back (mallopt(3): M_MMAP_THRESHOLD); nothing of that is used.
    """
    bytearray(_KEPT_FREE)
