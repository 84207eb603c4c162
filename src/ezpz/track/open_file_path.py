"""Find the file that a process holds open, after somebody has renamed or removed the folder around it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 100  # folders that are tried
_PIECE = 1 << 20  # bytes that are copied at a time


def is_at(descriptor: int, path: str) -> bool:
    """Tell whether an open file is the one at a path; also where that cannot be known."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116  # a string is all there is
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # no permission any more, or a server that does not answer
        return True


def path_of(descriptor: int) -> str:
    """Return the path that an open file has now; empty where it has none, or none that can be found."""
    path = ""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # a string is all there is
    except OSError:  # no /proc
        import fcntl

        if hasattr(fcntl, "F_GETPATH"):  # macOS
            path = os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    try:
        return path if path and os.path.samestat(os.stat(path), os.fstat(descriptor)) else ""  # noqa: PTH116
    except OSError:  # "/a/run/metrics.jsonl (deleted)"
        return ""


def free_folders(folder: str) -> Iterator[str]:
    """Yield a folder ``run``, and then ``run-2``, ``run-3``, …, which may stand in for it."""
    yield folder
    for number in range(2, _MOST):
        yield f"{folder}-{number}"


def copy_whole(source: int, target: int) -> None:
    """Copy an open file from its first byte on, with what is added to it meanwhile.

    Raises:
        OSError: It cannot be read, or there is no room.
    """
    done = 0
    while piece := os.pread(source, _PIECE, done):
        start = done
        done += len(piece)
        while start < done:
            start += os.write(target, piece[len(piece) - (done - start) :])
