"""Meet on one host: the Unix sockets where shims and ranks find their agent, and verbs a launch, for this user alone.

    EZPZ_SOCKET=@ezpz-5f3a…      an abstract socket (unix(7)): no file, no limit by TMPDIR, gone with its process
    EZPZ_SOCKET=/tmp/ezpz-501/5f3a….sock      where there are none (macOS)

The first shim that binds the name starts the agent, so that no rank needs to know which one that is.
"""

from __future__ import annotations

import _socket  # `socket` without the enums that would cost every shim 5 ms and 1 MB
import errno
import os
import sys
import time

_BACKLOG = 4096
_SO_PEERCRED = 17  # asm-generic/socket.h: struct ucred {pid, uid, gid}
_RETRY = 0.002  # seconds until the winner of the name listens
_PATIENCE = 5.0  # seconds for a kernel that lacks memory for a moment
_PASSING = {errno.EINTR, errno.ENOMEM, errno.ENOBUFS}


def address(run_id: str, folder: str) -> str:
    """Return the address for one start of a launch; the same on every host."""
    return f"@ezpz-{run_id}" if sys.platform == "linux" else os.path.join(folder, f"{run_id}.sock")


def control_address(port: int) -> str:
    """Return where a launch that listens at this port also awaits the agents of its own host (Linux)."""
    return f"@ezpz-control-{port}"


def claim(where: str) -> _socket.socket | None:
    """Return a listening socket, or None when another process of this host was first."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        listener.bind(_name(where))
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    listener.listen(_BACKLOG)
    return listener


def reach(where: str, patience: float = 10.0) -> _socket.socket:
    """Return a connection to the agent.

    Raises:
        OSError: No process of this user listens there within ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while True:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.connect(_name(where))
        except OSError:
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY)
            continue
        if not is_own(connection):
            connection.close()
            raise PermissionError(errno.EPERM, "another user listens there")
        return connection


def is_own(connection: _socket.socket) -> bool:
    """Tell whether the other side belongs to this user; where the kernel does not tell, the folder of the socket
    has.
    """
    if sys.platform != "linux":
        return True
    return credentials(connection)[1] == os.getuid()


def credentials(connection: _socket.socket) -> tuple[int, int]:
    """Return process and user on the other side of a Unix socket (Linux)."""
    packed = connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, 12)
    return int.from_bytes(packed[:4], sys.byteorder), int.from_bytes(packed[4:8], sys.byteorder)


def will_pass(error: OSError) -> bool:
    """Tell whether a call failed for a reason that says nothing of the connection: it can be tried again."""
    return error.errno in _PASSING


def send_all(connection: _socket.socket, data: bytes) -> None:
    """Send all of this, and try again while the kernel lacks memory.

    Raises:
        OSError: The connection has ended, or would block.
    """
    end = time.monotonic() + _PATIENCE
    while data:
        try:
            data = data[connection.send(data) :]
        except OSError as error:
            if not will_pass(error) or time.monotonic() > end:
                raise
            time.sleep(_RETRY)


def send(connection: _socket.socket, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send the line of a message, and open files with it."""
    if descriptors:
        packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
        sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
        data = data[sent:]
    send_all(connection, data)


def receive(connection: _socket.socket, most: int = 65536) -> tuple[bytes, list[int]]:
    """Return what has arrived, empty at the end, and the open files that came with it."""
    data, extra, _, _ = connection.recvmsg(most, _socket.CMSG_SPACE(4 * 8))
    packed = b"".join(
        value for level, kind, value in extra if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
    )
    fds = [int.from_bytes(packed[start : start + 4], sys.byteorder) for start in range(0, len(packed) // 4 * 4, 4)]
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def _name(where: str) -> str:
    return "\0" + where[1:] if where.startswith("@") else where
