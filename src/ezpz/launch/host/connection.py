"""Connect an agent with the launcher, by two connections that each begin with a proof of the secret.

One is for messages, one for output, so that a screen that is full never delays the report of a failure. How they begin
and `ezpz.launch.frames` describes what protects them; the secret itself does not cross them.

Output is counted in pieces. What the launcher has not taken yet is kept here, so that a connection that is cut can be
made once more and goes on where the launcher is. Without the connection for messages a host is lost.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections import deque

from ezpz import local_socket
from ezpz.errors import LaunchError
from ezpz.fields import Malformed, Record
from ezpz.launch import agent_messages, frames
from ezpz.launch.agent_messages import HELLOS, ORDERS, PIECE, REPORTS, WELCOMES, Piece
from ezpz.launch.backlog import Backlog
from ezpz.launch.frames import CHALLENGE_SIZE, UNSIGNED, FrameReader, FrameWriter, Greeting
from ezpz.launch.shared_slots import Slots

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.frames import Keys

CUT_OFF = "cannot reach the launcher"  # `ezpz doctor` looks for these words in what an agent writes through ssh
_PATIENCE = 10.0  # seconds for one address of the launcher to answer
_PATIENCE_AGAIN = 2.0  # the same for one that was reached before: signals and ranks wait meanwhile
_TRIES = 6  # at one address: a launcher that many strangers call hangs up on the oldest of them
_MOST_QUEUED = 256 * 1024  # bytes of output that wait here; then the ranks' pipes fill, and they wait
_MOST_KEPT = 8 << 20  # bytes of output that the launcher has not taken; what it takes, it says after each MiB
_SENT_AT_ONCE = 1 << 18

# A peer that answers nothing for so long is gone: its host crashed or the network between is cut. Seconds.
_SILENCE, _PROBE_EVERY, _PROBES = 10, 5, 3


def keep_alive(connection: socket.socket, *, may_wait: bool) -> None:
    """Let the kernel end a connection whose other side has fallen silent; nothing is sent by us meanwhile.

    Args:
        connection: It.
        may_wait: Whether bytes may stay unread for long, because a screen is full: a reader that lives is waited for.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPALIVE": _SILENCE,  # macOS's name for the same
        "TCP_KEEPINTVL": _PROBE_EVERY,
        "TCP_KEEPCNT": _PROBES,
    }
    if not may_wait:  # the same for bytes that are not acknowledged, or not read
        options["TCP_USER_TIMEOUT"] = 1000 * (_SILENCE + _PROBE_EVERY * _PROBES)
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class LauncherGoneError(LaunchError):
    """The launcher has ended: on its own host, where no firewall stands between, nothing listens at its port."""


class End(Record):
    """The agent's end of one connection, with what reads and makes its frames."""

    connection: socket.socket
    reader: FrameReader
    writer: FrameWriter

    @classmethod
    def made(cls, connection: socket.socket, keys: Keys = UNSIGNED) -> End:
        """Return the end of a connection with these keys."""
        return cls(connection, FrameReader(keys.from_launcher, ORDERS.longest), FrameWriter(keys.from_agent))


class Connection:
    """Both connections of an agent to the launcher.

    Args:
        messages_: The end of the one for messages.
        output: The end of the one for output.
        settings: See below.
        clock: See below.
        slots: See below.
        again: Makes the connection for output anew, and returns its end and how many pieces the launcher has. Without
            it, as where the launcher has forked this agent, none is kept for that.

    Attributes:
        is_cut: Whether the connection for output has broken off; what is shown meanwhile is kept.
        is_given_up: Whether it stays so.
        clock: What to add to this host's clock to get the launcher's, in seconds.
        settings: What the launcher wants of every agent.
        control: The socket of the messages.
        output: The socket of the output.
        input: Cuts what the launcher sends back on that into pieces of rank 0's input.
        slots: Memory that the launcher shares; None where it is on another host, or has none.
    """

    def __init__(
        self,
        messages_: End,
        output: End,
        settings: agent_messages.Settings,
        clock: float = 0.0,
        slots: Slots | None = None,
        *,
        again: Callable[[], tuple[End, int]] | None = None,
    ) -> None:
        self.control, self._orders, self._reports = messages_
        self.output, self.input, self._pieces = output
        self.settings, self.clock, self.slots = settings, clock, slots
        self.is_cut = self.is_given_up = False
        self._again = again
        self._shown = self._taken = 0  # pieces, the end among them
        self._has_ended = False
        self._kept: deque[tuple[bytes, ...]] = deque()  # the last pieces shown, as far as they are not taken
        self._size = 0  # bytes of those
        self._backlog = Backlog()
        self.output.setblocking(False)

    @property
    def full(self) -> bool:
        """Whether the launcher takes no more for now."""
        return self._backlog.size > _MOST_QUEUED or self._size > (_MOST_QUEUED if self.is_cut else _MOST_KEPT)

    @property
    def delivered(self) -> bool:
        """Whether the launcher has taken all output, its end included, or gets no more of it."""
        return self.is_given_up or (self._has_ended and self._taken == self._shown)

    @property
    def waiting(self) -> bool:
        """Whether output is queued here."""
        return self._backlog.size > 0

    @property
    def shown(self) -> int:
        """How many pieces of output there have been."""
        return self._shown

    def has_sent(self, pieces: int) -> bool:
        """Tell whether the first so many pieces are on their way to the launcher, or get there no more."""
        return self.is_given_up or self._taken >= pieces or not (self.waiting or self.is_cut)

    def report(self, message: Message, world: int = 0) -> None:
        """Send a report of a world to the launcher; that it has gone shows when orders are read."""
        try:
            local_socket.send_all(self.control, self._reports.frame(REPORTS.encode(message, world)))
        except OSError:
            pass

    def show(self, rank: int, stream: int, data: bytes, world: int = 0) -> None:
        """Pass on what a rank of a world wrote."""
        self._write(*Piece(rank, stream, data, world=world).encode())

    def lend(self, rank: int, stream: int, slot: int, size: int, world: int = 0) -> None:
        """Pass on what a rank of a world wrote, which is in the first bytes of a slot."""
        assert self.slots
        self.slots.lend(slot)
        self._write(Piece.encode_lent(rank, stream, slot, size, world))

    def end_output(self) -> None:
        """Say that no more output comes; `delivered` tells when the launcher has all of it."""
        if not self._has_ended:
            self._has_ended = True
            self._write(Piece.encode_end(self._shown))

    def obey(self, order: agent_messages.OutputTaken | agent_messages.ConnectOutput) -> None:
        """Do what the launcher says of the output."""
        if isinstance(order, agent_messages.OutputTaken):
            self._forget(order.pieces)
        else:
            self.cut()

    def _forget(self, pieces: int) -> None:
        """Forget what the launcher has taken: so many pieces from the first on."""
        for _ in range(min(len(self._kept), pieces - self._taken)):
            self._size -= sum(map(len, self._kept.popleft())) + PIECE
        self._taken = max(self._taken, pieces)

    def _write(self, *piece: bytes) -> None:
        self._shown += 1
        if self._again:
            self._kept.append(piece)
            self._size += sum(map(len, piece)) + PIECE
        if not self.is_cut:
            self._send(*piece)

    def _send(self, *piece: bytes) -> None:
        parts = [self._pieces.head(*piece) + piece[0], *piece[1:]]
        try:
            self._backlog.send(self.output.sendmsg, parts, sum(map(len, parts)))
        except OSError as error:
            self._fail(error, parts)

    def push(self) -> None:
        """Write what the launcher takes now."""
        try:
            while self._backlog.size and self._backlog.write(self.output.sendmsg, _SENT_AT_ONCE):
                pass
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError, parts: Sequence[bytes] = ()) -> None:
        """Take note that output cannot be sent: not now, or not any more on this connection."""
        if local_socket.will_pass(error):
            for part in parts:
                self._backlog.put(part)
        else:
            self.cut()

    def cut(self) -> None:
        """Give the connection for output up; if the launcher has gone, that shows on the other one."""
        self.is_cut = True
        self._backlog.clear()

    def give_up_output(self) -> None:
        """Keep nothing more of it: the connection cannot be made anew."""
        self.is_given_up = True
        self._again = None
        self._kept.clear()
        self._size = 0

    @property
    def can_connect_again(self) -> bool:
        """Whether it can: not where it was inherited."""
        return self._again is not None

    def connect_again(self) -> None:
        """Make the connection for output anew, and send what the launcher has not taken.

        Raises:
            OSError: The launcher cannot be reached.
            ValueError: Another program answers.
        """
        assert self._again
        self.output.close()
        (self.output, self.input, self._pieces), taken = self._again()
        self.output.setblocking(False)
        self.is_cut = False
        self._forget(taken)
        for piece in tuple(self._kept):
            self._send(*piece)

    def orders(self) -> Iterator[tuple[int, Message]]:
        """Yield the launcher's orders, each behind the number of its world; `Lost` when it has gone, or what comes is
        no order of its.

        Each is understood only when it is asked for: the one before may have told what its kind means.
        """
        try:
            data = self.control.recv(65536)
            for content in self._orders.feed(data):
                yield ORDERS.addressed(bytes(content))
        except OSError as error:
            if local_socket.will_pass(error):
                return
            data = b""
        except Malformed:
            data = b""
        if not data:
            yield 0, agent_messages.Lost()


class NoConnection:
    """In place of a connection, where the launcher cannot be reached or a line was pasted by hand: all is written
    here.
    """

    clock = 0.0
    full = waiting = False
    delivered = True
    shown = 0
    slots = None
    settings = agent_messages.Settings(
        log_dir="",
        idle=None,
        input=False,
        recorder="",
        collectives="",
        parting=0.0,
        by_rank=False,
        live=False,
        stays=False,
        watchers=[],
    )

    def report(self, message: Message, world: int = 0) -> None:
        """Write what a person should know."""
        del world
        if isinstance(message, agent_messages.RankFailed):
            from ezpz.launch.run.failures import rank_failed

            self._say(rank_failed(os.uname().nodename, message).text)
            if message.words and not message.shown:
                self.show(message.rank, 2, f"{message.words}\n".encode())
        elif isinstance(message, agent_messages.Note | agent_messages.Refused):
            self._say(message.text)
        elif isinstance(message, agent_messages.Mismatch):
            for _, _, text in message.worlds:
                self._say(text)

    def _say(self, text: str) -> None:
        from ezpz.visible import LINES, visible  # where the launcher hears nothing

        self.show(-1, 2, f"ezpz: {visible(text, LINES)}\n".encode())

    def show(self, rank: int, stream: int, data: bytes, world: int = 0) -> None:
        """Write what a rank wrote."""
        del rank, world
        try:
            while data:
                data = data[os.write(stream, data) :]
        except OSError:
            pass  # no reader is left

    def has_sent(self, pieces: int) -> bool:
        """Tell that all is written."""
        del pieces
        return True

    def lend(self, rank: int, stream: int, slot: int, size: int, world: int = 0) -> None:
        """Do nothing: there are no slots."""

    def push(self) -> None:
        """Do nothing: nothing is queued."""

    def end_output(self) -> None:
        """Do nothing: nothing is queued."""


def pair() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    """Return the launcher's and the agent's ends of both connections, where the launcher starts its agent by fork."""
    control, output = socket.socketpair(), socket.socketpair()
    return (control[0], output[0]), (control[1], output[1])


def connect(variable: str, index: int) -> Connection:
    """Reach the launcher.

    Args:
        variable: ``EZPZ_CONTROL``: secret@port@address,address.
        index: Which host of the plan this is, -1 where that is not known.

    Raises:
        LauncherGoneError: It has ended.
        LaunchError: It cannot be reached, or is another.
    """
    secret, port, addresses = variable.split("@")
    agent = os.urandom(16).hex()
    reasons = []
    for address in addresses.split(","):
        ends: list[End] = []
        try:
            place = address, int(port)
            for kind in (frames.REPORTS, frames.OUTPUTS):
                end, welcome, clock, slots = _enter(place, secret, Greeting(kind, index, agent))
                ends.append(end)
            ends[0].connection.sendall(
                ends[0].writer.frame(HELLOS.encode(agent_messages.Hello(host=os.uname().nodename)))
            )
        except (OSError, ValueError) as error:  # ValueError: what answers is no launcher
            if isinstance(error, ConnectionRefusedError) and _is_own(address):
                raise LauncherGoneError(f"the launcher of {os.uname().nodename} has ended") from None
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
            for end in ends:
                end.connection.close()
            continue
        again = _again(place, secret, Greeting(frames.OUTPUTS, index, agent))
        return Connection(ends[0], ends[1], welcome.settings, clock, slots, again=again)
    raise LaunchError(
        f"{os.uname().nodename} {CUT_OFF} at port {port} ({'; '.join(reasons)}); expected an open way back. Does a "
        "firewall stand between them? Open the ports between the hosts of a job, and start `launch` on one of them."
    )


def is_launcher_gone(variable: str) -> bool:
    """Tell whether the launcher that is named so has ended; False where that cannot be told from here.

    Args:
        variable: ``EZPZ_CONTROL``, as for `connect`.
    """
    try:
        _, port, addresses = variable.split("@")
        own = next(filter(_is_own, addresses.split(",")), "")
        if own:  # else its host is another, and its silence proves nothing
            _reach((own, int(port))).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):  # another program's variable
        pass
    return False


def _is_own(address: str) -> bool:
    """Tell whether an address is one of this host."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def _again(place: tuple[str, int], secret: str, greeting: Greeting) -> Callable[[], tuple[End, int]]:
    """Return what makes a connection for output once more: its end, and how many pieces the launcher has."""

    def enter() -> tuple[End, int]:
        end, welcome, _, _ = _greet(_reach(place, _PATIENCE_AGAIN), secret, greeting, _PATIENCE_AGAIN)
        return end, welcome.taken

    return enter


def _reach(address: tuple[str, int], patience: float = _PATIENCE) -> socket.socket:
    """Return a connection to the launcher: through its Unix socket where it is on this host, else through TCP.

    Raises:
        OSError: It cannot be reached.
    """
    _, port = address
    if sys.platform == "linux":
        try:
            return socket.socket(fileno=local_socket.reach(local_socket.control_address(port), 0.0).detach())
        except OSError:
            pass  # it runs elsewhere, or is another user's
    return socket.create_connection(address, timeout=patience)


def _enter(
    address: tuple[str, int], secret: str, greeting: Greeting
) -> tuple[End, agent_messages.Welcome, float, Slots | None]:
    """Return a connection on which both sides have shown that they know the secret, the launcher's first words, its
    clock less this host's, and the memory that it shares.

    Raises:
        OSError: The launcher cannot be reached, or hangs up.
        ValueError: Another program answers.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(0.05 * 2**attempt * (0.5 + os.urandom(1)[0] / 256))
        connection = _reach(address)
        try:
            return _greet(connection, secret, greeting)
        except ConnectionError as error:
            connection.close()
            hung_up = error
        except BaseException:  # it is raised again, and no connection stays open
            connection.close()
            raise
    raise hung_up


def _greet(
    connection: socket.socket, secret: str, greeting: Greeting, patience: float = _PATIENCE
) -> tuple[End, agent_messages.Welcome, float, Slots | None]:
    deadline = time.monotonic() + patience
    line, keys = frames.greet(secret, _read(connection, CHALLENGE_SIZE, deadline), greeting)
    connection.sendall(line)
    is_local = connection.family == socket.AF_UNIX
    end = End.made(connection, UNSIGNED if is_local else keys)
    came: list[memoryview] = []
    files: list[int] = []
    while not came:  # not a byte more than the first frame: what follows is for `Connection.orders`
        came = list(end.reader.feed(_read(connection, end.reader.missing, deadline, files)))
    welcome = WELCOMES.decode(bytes(came[0]))
    assert isinstance(welcome, agent_messages.Welcome)
    clock = welcome.time - time.time()
    connection.settimeout(None)
    if not is_local:
        keep_alive(connection, may_wait=greeting.kind == frames.OUTPUTS)
    return end, welcome, clock, Slots.of_file(files[0]) if files else None


def _read(connection: socket.socket, size: int, deadline: float, files: list[int] | None = None) -> bytes:
    """Return exactly so many bytes, and add the open files that came with them to ``files``.

    Raises:
        OSError: They have not come in time, or the other side has hung up.
    """
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if files is None or connection.family != socket.AF_UNIX:
            more = connection.recv(size - len(data))
        else:
            more, came = local_socket.receive(connection, size - len(data))
            files += came
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        data += more
    return data
