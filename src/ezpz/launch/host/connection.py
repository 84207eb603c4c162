"""Connect an agent with the launcher.

An agent has two connections to the launcher, so that a screen that is full never delays the report of a failure: one
for messages (`ezpz.launch.messages`) in both directions, which begins with a challenge, an introduction and a welcome,
and one for output, which begins in the same way. Each side shows that it can sign the other's nonce (HMAC, RFC 2104,
SHA-256); the secret itself never crosses the network.
"""

from __future__ import annotations

import os
import time

from ezpz.errors import LaunchError
from ezpz.launch import messages
from ezpz.launch.messages import CHALLENGES, INTRODUCTIONS, ORDERS, REPORTS, WELCOMES, MalformedMessage, Piece

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ezpz.launch.messages import Direction, Message

__all__ = [
    "Connection",
    "NoConnection",
    "connect",
    "keep_alive",
    "pair",
    "sign",
]

_CONNECT = 10.0  # seconds for one address of the launcher
_MOST_QUEUED = 256 * 1024  # bytes of output that wait here; then the ranks' pipes fill, and they wait

# A peer that answers nothing for so long is gone: its host crashed or the network between is cut. Seconds.
_SILENCE, _PROBE_EVERY, _PROBES = 10, 5, 3


def sign(secret: str, nonce: str, purpose: str) -> str:
    """Return the proof of knowing the secret."""
    import hmac

    return hmac.new(secret.encode(), f"{nonce} {purpose}".encode(), "sha256").hexdigest()


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other side has fallen silent; nothing is sent by us meanwhile."""
    import socket

    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPALIVE": _SILENCE,  # macOS's name for the same
        "TCP_KEEPINTVL": _PROBE_EVERY,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": 1000 * (_SILENCE + _PROBE_EVERY * _PROBES),  # the same for bytes that are not acknowledged
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection:
    """Both connections of an agent to the launcher.

    Attributes:
        clock: What to add to this host's clock to get the launcher's, in seconds.
        settings: What the launcher wants of every agent.
    """

    def __init__(
        self, control: socket.socket, output: socket.socket, settings: messages.Settings, clock: float = 0.0
    ) -> None:
        self.control, self.output, self.settings, self.clock = control, output, settings, clock
        self._queue = bytearray()
        self._inbox = messages.Inbox(ORDERS)
        self.output.setblocking(False)

    @property
    def full(self) -> bool:
        """Whether the launcher takes no more for now."""
        return len(self._queue) > _MOST_QUEUED

    @property
    def waiting(self) -> bool:
        """Whether output is queued here."""
        return bool(self._queue)

    def report(self, message: Message) -> None:
        """Send a report to the launcher; that it has gone shows when orders are read."""
        try:
            self.control.sendall(REPORTS.encode(message))
        except OSError:
            pass

    def show(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on what a rank wrote."""
        self._queue += Piece(rank, stream, data).encode()
        self.push()

    def push(self) -> None:
        """Write what the launcher takes now."""
        try:
            while self._queue:
                del self._queue[: self.output.send(self._queue[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:  # the launcher has gone, which shows on the control connection
            self._queue.clear()

    def flush(self) -> None:
        """Write all that is left, however long the screen takes; a connection that is dead ends by itself."""
        import socket

        self.output.settimeout(None)
        try:
            self.output.sendall(self._queue)
            self.output.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def orders(self) -> Iterator[Message]:
        """Yield the launcher's orders; `Lost` when it has gone, or sends what is no order."""
        try:
            data = self.control.recv(65536)
            yield from self._inbox.feed(data)
        except (OSError, MalformedMessage):
            data = b""
        if not data:
            yield messages.Lost()


class NoConnection:
    """In place of a connection, where the launcher cannot be reached or a line was pasted by hand: all is written
    here.
    """

    clock = 0.0
    full = waiting = False
    settings = messages.Settings(log_dir="", idle=None, input=False, recorder="")

    def report(self, message: Message) -> None:
        """Write what a person should know."""
        if isinstance(message, messages.RankFailed):
            from ezpz.launch.run.failures import how

            end = f"rank {message.rank} on host {os.uname().nodename} (pid {message.pid}) {how(message.code)}"
            self.show(message.rank, 2, f"ezpz: {end}\n".encode())
            if message.words and not message.shown:
                self.show(message.rank, 2, f"{message.words}\n".encode())
        elif isinstance(message, messages.Note | messages.Refused):
            self.show(-1, 2, f"ezpz: {message.text}\n".encode(errors="surrogateescape"))
        elif isinstance(message, messages.Mismatch):
            for _, _, text in message.worlds:
                self.show(-1, 2, f"ezpz: {text}\n".encode(errors="surrogateescape"))

    def show(self, rank: int, stream: int, data: bytes) -> None:
        """Write what a rank wrote."""
        del rank
        try:
            while data:
                data = data[os.write(stream, data) :]
        except OSError:
            pass  # no reader is left

    def push(self) -> None:
        """Do nothing: nothing is queued."""

    def flush(self) -> None:
        """Do nothing: nothing is queued."""


def pair() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    """Return the launcher's and the agent's ends of both connections, where the launcher starts its agent by fork."""
    import socket

    control, output = socket.socketpair(), socket.socketpair()
    return (control[0], output[0]), (control[1], output[1])


def connect(variable: str, index: int) -> Connection:
    """Reach the launcher.

    Args:
        variable: ``EZPZ_CONTROL``: secret@port@address,address.
        index: Which host of the plan this is, -1 where that is not known.

    Raises:
        LaunchError: It cannot be reached, or is another.
    """
    import socket

    secret, port, addresses = variable.split("@")
    reasons = []
    for address in addresses.split(","):
        try:
            ends = [socket.create_connection((address, int(port)), timeout=_CONNECT) for _ in range(2)]
            settings, clock = _introduce(ends, secret, index)
        except (OSError, ValueError) as error:  # ValueError: what answers is no launcher
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
            continue
        return Connection(ends[0], ends[1], settings, clock)
    raise LaunchError(
        f"{os.uname().nodename} cannot reach the launcher at port {port} ({'; '.join(reasons)}); expected an open way "
        "back. Does a "
        "firewall stand between them? Start `launch` on one of the hosts."
    )


def _introduce(ends: list[socket.socket], secret: str, index: int) -> tuple[messages.Settings, float]:
    """Prove on both connections, at the same time, that this is an agent; return the launcher's settings and clock."""
    nonces = [os.urandom(16).hex() for _ in ends]
    clock = 0.0
    for end, kind, nonce in zip(ends, (messages.Hello, messages.OutputHello), nonces, strict=True):
        challenge = _read(end, CHALLENGES)
        assert isinstance(challenge, messages.Challenge)
        clock = challenge.time - time.time()
        mac = sign(secret, challenge.nonce, f"{kind.kind} {index}")
        hello = kind(host=os.uname().nodename, index=index, pid=os.getpid(), nonce=nonce, mac=mac)
        end.sendall(INTRODUCTIONS.encode(hello))
    welcomes = [_read(end, WELCOMES) for end in ends]
    for end, nonce, welcome in zip(ends, nonces, welcomes, strict=True):
        if not isinstance(welcome, messages.Welcome) or welcome.proof != sign(secret, nonce, f"launcher {index}"):
            raise ValueError("another program answers")
        end.settimeout(None)
        keep_alive(end)
    assert isinstance(welcomes[0], messages.Welcome)
    return welcomes[0].settings, clock


def _read(connection: socket.socket, direction: Direction) -> Message:
    """Return one message, read byte by byte: what follows is for another reader."""
    inbox = messages.Inbox(direction)
    while True:
        byte = connection.recv(1)
        if not byte:
            raise ValueError("it hung up")
        message = inbox.first(byte)
        if message:
            return message
