r"""The leader's line to the launcher: what it says goes out at once, what its ranks wrote as fast as the launcher takes it.

Two connections, so that a screen that is full never delays the news of a failure. Lines of JSON on the first one:

    launcher  {"nonce": "8f…", "time": 1795287600.1}              the challenge; its clock, by which all times are told
    leader    {"say": "hello", "host": "n01", "index": 0, "pid": 7, "nonce": "51…", "mac": "…"}
    launcher  {"proof": "…", "settings": {"log_dir": "", "idle": null}}    it knows the secret too: now it is obeyed
    leader    {"say": "up", …} {"say": "ended", …} …  {"say": "done", …}        ezpz.launch.host.agent
    launcher  {"do": "signal", "number": 15} {"do": "kill"} {"do": "stacks", …} {"do": "release"}

and on the second, after the same hello with ``"say": "output"``, pieces of output: ``3 1 12\n`` (rank, stream, bytes) and the bytes.
The secret itself never crosses the network: each side shows that it can sign the other's nonce (HMAC, RFC 2104, SHA-256).
"""

from __future__ import annotations

import _socket
import errno
import json
import os
import socket
import sys
import time

from ezpz.errors import LaunchError

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


# Where the shims and ranks of one host meet their leader: a Unix socket that only this user's processes are let in to.
#
# EZPZ_SOCKET=@ezpz-5f3a…      an abstract socket (unix(7)): no file, no limit by TMPDIR, gone with its process
# EZPZ_SOCKET=/tmp/ezpz-501/5f3a….sock      where there are none (macOS)
#
# Whoever binds the name first becomes the leader, so that no rank has to be told who leads. `_socket` is `socket` without the
# enums that would cost every shim 5 ms and 1 MB.

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


__all__ = ["Link", "Nobody", "claim", "connect", "lines", "pair", "reach", "send", "sign", "watch"]

_CONNECT = 10.0  # seconds for one address of the launcher
_MOST_QUEUED = 256 * 1024  # bytes of output that wait here; then the ranks' pipes fill, and they wait

# A peer that answers nothing for so long is gone: its host crashed or the network between is cut. Seconds.
_SILENCE, _PROBE_EVERY, _PROBES = 10, 5, 3


def sign(secret: str, nonce: str, purpose: str) -> str:
    """Return the proof that somebody knows the secret."""
    import hmac

    return hmac.new(secret.encode(), f"{nonce} {purpose}".encode(), "sha256").hexdigest()


def watch(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other side has fallen silent; nothing is sent by us meanwhile."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPALIVE": _SILENCE,  # macOS's name for the same
        "TCP_KEEPINTVL": _PROBE_EVERY,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": 1000 * (_SILENCE + _PROBE_EVERY * _PROBES),  # the same for bytes that nobody acknowledges
    }
    for name, value in wanted.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def lines(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Return the whole lines of JSON in ``data``, and what is left.

    Raises:
        ValueError: A line is no object in JSON.
    """
    *whole, rest = data.split(b"\n")
    found = [json.loads(line) for line in whole if line]
    if not all(isinstance(item, dict) for item in found):
        raise ValueError("not an object")
    return found, rest


class Link:
    """Both connections of a leader.

    Attributes:
        clock: What to add to this host's clock to get the launcher's, in seconds.
        settings: What the launcher wants of every leader.
    """

    def __init__(self, control: socket.socket, output: socket.socket, clock: float = 0.0, settings: Any = None) -> None:
        self.control, self.output, self.clock = control, output, clock
        self.settings: dict[str, Any] = settings or {}
        self._queue = bytearray()
        self._unread = b""
        self.output.setblocking(False)

    @property
    def full(self) -> bool:
        """Whether the launcher takes no more for now."""
        return len(self._queue) > _MOST_QUEUED

    @property
    def waiting(self) -> bool:
        """Whether output is queued here."""
        return bool(self._queue)

    def say(self, kind: str, **told: object) -> None:
        """Tell the launcher; when it has gone, reading tells that."""
        try:
            self.control.sendall(json.dumps({"say": kind, **told}).encode() + b"\n")
        except OSError:
            pass

    def show(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on what a rank wrote."""
        self._queue += b"%d %d %d\n" % (rank, stream, len(data))
        self._queue += data
        self.push()

    def push(self) -> None:
        """Write what the launcher takes now."""
        try:
            while self._queue:
                del self._queue[: self.output.send(self._queue[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:  # the launcher has gone: the control connection tells it
            self._queue.clear()

    def flush(self) -> None:
        """Write all that is left, however long the screen takes; a connection that is dead ends by itself."""
        self.output.settimeout(None)
        try:
            self.output.sendall(self._queue)
            self.output.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def orders(self) -> Iterator[dict[str, Any]]:
        """Yield what the launcher wants; ``{"do": "lost"}`` when it has gone."""
        try:
            data = self.control.recv(65536)
            found, self._unread = lines(self._unread + data)
        except (OSError, ValueError):
            data, found = b"", []
        yield from found
        if not data:
            yield {"do": "lost"}


class Nobody:
    """The line of a leader whose launcher cannot be reached, or that was pasted by hand: output goes where its own would."""

    clock = 0.0
    full = waiting = False
    control = output = None

    def say(self, kind: str, **told: object) -> None:
        """Say what a person should know."""
        if kind == "ended":
            from ezpz.launch.run.failures import how

            rank, pid, code = (int(str(told[name])) for name in ("rank", "pid", "code"))
            self.show(rank, 2, f"ezpz: rank {rank} on host {os.uname().nodename} (pid {pid}) {how(code)}\n".encode())
            if told.get("words") and not told.get("shown"):
                self.show(rank, 2, f"{told['words']}\n".encode())
        if kind in {"note", "mismatch", "refused"}:
            self.show(-1, 2, f"ezpz: {told.get('text')}\n".encode())

    def show(self, rank: int, stream: int, data: bytes) -> None:
        """Write what a rank wrote."""
        del rank
        try:
            while data:
                data = data[os.write(stream, data) :]
        except OSError:
            pass  # nobody reads it any more

    def push(self) -> None:
        """Do nothing: nothing is queued."""

    def flush(self) -> None:
        """Do nothing: nothing is queued."""

    def orders(self) -> Iterator[dict[str, Any]]:
        """Yield nothing."""
        yield from ()


def pair() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    """Return the launcher's and the leader's ends of both connections, where the launcher starts its leader by fork."""
    control, output = socket.socketpair(), socket.socketpair()
    return (control[0], output[0]), (control[1], output[1])


def connect(variable: str, index: int) -> Link:
    """Reach the launcher.

    Args:
        variable: ``EZPZ_CONTROL``: secret@port@address,address.
        index: Which host of the plan this is.

    Raises:
        LaunchError: It cannot be reached, or is another.
    """
    secret, port, addresses = variable.split("@")
    reasons = []
    for address in addresses.split(","):
        try:
            ends = [socket.create_connection((address, int(port)), timeout=_CONNECT) for _ in range(2)]
            settings, clock = _introduce(ends, secret, index)
        except (OSError, ValueError, KeyError) as error:  # KeyError: what answers is no launcher
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
            continue
        return Link(ends[0], ends[1], clock, settings)
    raise LaunchError(
        f"{os.uname().nodename} cannot reach the launcher at port {port} ({'; '.join(reasons)}); expected an open way back. Does a "
        "firewall stand between them? Start `launch` on one of the hosts."
    )


def _introduce(ends: list[socket.socket], secret: str, index: int) -> tuple[dict[str, Any], float]:
    """Prove on both connections, at the same time, that this is a leader; return the launcher's settings and clock."""
    nonces = [os.urandom(16).hex() for _ in ends]
    clock = 0.0
    for end, kind, nonce in zip(ends, ("hello", "output"), nonces, strict=True):
        challenge = _answer(end)
        clock = float(challenge["time"]) - time.time()
        told = {"say": kind, "host": os.uname().nodename, "index": index, "pid": os.getpid(), "nonce": nonce}
        told["mac"] = sign(secret, challenge["nonce"], f"{kind} {index}")
        end.sendall(json.dumps(told).encode() + b"\n")
    answers = [_answer(end) for end in ends]
    for end, nonce, answer in zip(ends, nonces, answers, strict=True):
        if answer["proof"] != sign(secret, nonce, f"launcher {index}"):
            raise ValueError("another program answers")
        end.settimeout(None)
        watch(end)
    return answers[0]["settings"], clock


def _answer(connection: socket.socket) -> dict[str, Any]:
    """Return one line, read byte by byte: what follows is for somebody else."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > 4096:
            raise ValueError("it hung up")
        line += byte
    found, _ = lines(line)
    return found[0]
