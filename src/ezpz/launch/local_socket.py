"""Where the shims and ranks of one host meet their leader: a Unix socket that only this user's processes are let in to.

    EZPZ_SOCKET=@ezpz-5f3a…      an abstract socket (unix(7)): no file, no limit by TMPDIR, gone with its process
    EZPZ_SOCKET=/tmp/ezpz-501/5f3a….sock      where there are none (macOS)

Whoever binds the name first becomes the leader, so that no rank has to be told who leads. `_socket` is `socket` without the
enums that would cost every shim 5 ms and 1 MB.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys
import time

__all__ = ["address", "claim", "is_own", "reach", "receive", "send"]

_BACKLOG = 4096
_SO_PEERCRED = 17  # asm-generic/socket.h: struct ucred {pid, uid, gid}
_RETRY = 0.002  # seconds until the winner of the name listens


def address(run_id: str, folder: str) -> str:
    """Return the address for one start of a launch; the same on every host."""
    return f"@ezpz-{run_id}" if sys.platform == "linux" else os.path.join(folder, f"{run_id}.sock")


def claim(where: str) -> _socket.socket | None:
    """Return a listening socket, or None when another process of this host was first."""
    found = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        found.bind(_name(where))
    except OSError as error:
        found.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    found.listen(_BACKLOG)
    return found


def reach(where: str, patience: float = 10.0) -> _socket.socket:
    """Return a connection to the leader.

    Raises:
        OSError: Nobody of this user listens there within ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while True:
        found = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            found.connect(_name(where))
        except OSError:
            found.close()
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY)
            continue
        if not is_own(found):
            found.close()
            raise PermissionError(errno.EPERM, "another user listens there")
        return found


def is_own(connection: _socket.socket) -> bool:
    """Tell whether the other side belongs to this user; where the kernel does not tell, the folder of the socket has."""
    if sys.platform != "linux":
        return True
    told = connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, 12)
    return int.from_bytes(told[4:8], sys.byteorder) == os.getuid()


def send(connection: _socket.socket, line: str, descriptors: tuple[int, ...] = ()) -> None:
    """Send one line, and open files with it."""
    data = line.encode() + b"\n"
    if descriptors:
        packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
        sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
        data = data[sent:]
    connection.sendall(data)


def receive(connection: _socket.socket) -> tuple[bytes, list[int]]:
    """Return what has arrived, empty at the end, and the open files that came with it."""
    data, told, _, _ = connection.recvmsg(65536, _socket.CMSG_SPACE(4 * 8))
    packed = b"".join(value for level, kind, value in told if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS))
    fds = [int.from_bytes(packed[start : start + 4], sys.byteorder) for start in range(0, len(packed) // 4 * 4, 4)]
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def _name(where: str) -> str:
    return "\0" + where[1:] if where.startswith("@") else where
