"""Pass much output on at little cost: keep bytes that wait, and hand them out in few large writes."""

from __future__ import annotations

from collections import deque
from itertools import islice

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

    @property
    def pieces(self) -> int:
        """How many they are."""
        return len(self._pieces)

    def put(self, data: bytes | memoryview) -> None:
        """Let data wait behind all that was put before."""
        if data:
            self._pieces.append(memoryview(data))
            self.size += len(data)

    def send(self, write: Callable[[list[bytes]], int], parts: list[bytes], size: int) -> None:
        """Write some parts at once if nothing waits before them, and let wait what is not taken.

        Args:
            write: As for `write`.
            parts: None of them empty.
            size: Bytes of all of them.

        Raises:
            OSError: What ``write`` raises, but for `BlockingIOError`.
        """
        written = 0
        if not self.size:
            try:
                written = write(parts)
            except BlockingIOError:
                pass
            if written == size:
                return
        for part in parts:
            if written >= len(part):
                written -= len(part)
            else:
                self._pieces.append(memoryview(part)[written:])
                self.size += len(part) - written
                written = 0

    def write(self, write: Callable[[list[memoryview]], int], most: int) -> bool:
        """Write once, and tell whether all that was tried has been taken.

        Args:
            write: Takes some pieces and returns how many bytes of them it took, as `os.writev` does.
            most: Bytes to try.

        Raises:
            OSError: What ``write`` raises, but for `BlockingIOError`.
        """
        if not self.size:
            return True
        pieces, tried = list(islice(self._pieces, _MOST_PARTS)), self.size
        if tried > most or len(pieces) < len(self._pieces):
            pieces, tried = _first(pieces, most)
        try:
            left = written = write(pieces)
        except BlockingIOError:
            return False
        if written == self.size:
            self.clear()
            return True
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


def _first(pieces: list[memoryview], most: int) -> tuple[list[memoryview], int]:
    """Return the first so many bytes of all pieces, and how many they are."""
    first, size = [], 0
    for piece in pieces:
        first.append(piece[: most - size])
        size += len(first[-1])
        if size == most:
            break
    return first, size


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
    try:
        bytearray(_KEPT_FREE)
    except MemoryError:
        pass  # little may be kept, then
