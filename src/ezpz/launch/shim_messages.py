"""Define what a message is, and the messages between shims, ranks and the agent of their host.

A message is one line. Each kind is a record whose fields say what they may hold (`ezpz.fields`), and each way that
messages travel is a table of the kinds that travel it. A shim writes words, because `json` would cost it 5 ms:

    FROM_SHIMS    shim to agent   up 4711
    TO_SHIMS      agent to shim   signal 15

Whatever else arrives is a `Malformed`, on which the reader closes the connection. What agents and the launcher
say to each other is in `ezpz.launch.agent_messages`, which no shim imports: the classes alone would cost it half a
millisecond.
"""

from __future__ import annotations

from ezpz.fields import (
    RANKS,
    Malformed,
    Record,
    flag_field,
    number_field,
    rank_field,
    seconds_field,
    text_field,
    to_fields,
)

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_ORDER = 1 << 16  # bytes of a line


class Message(Record):
    """One message, which has all of its fields.

    Attributes:
        kind: What its line is called.
    """

    kind = ""


# What shims and their agent say to each other.


class ShimStarted(Message):
    """A shim of this host has started, for this rank of the launcher's world; its rank's stdout and stderr come with
    it.
    """

    kind = "shim"
    rank: int = rank_field()
    world: int = number_field(0, RANKS)
    local_rank: int = rank_field()
    local_world: int = number_field(0, RANKS)
    host: int = number_field(-1, RANKS)
    family: str = text_field(40)
    pid: int = number_field(0)
    time: float = seconds_field()


class RankReady(Message):
    """The rank of a shim can begin, and waits for `Begin`."""

    kind = "ready"


class RankStarted(Message):
    """The rank of a shim runs."""

    kind = "up"
    pid: int = number_field(0)


class SignalPassed(Message):
    """Somebody, often mpiexec, has sent a signal to the shim, and the rank gets it."""

    kind = "passed"
    number: int = number_field(1, 64)


class RankEnded(Message):
    """The rank of a shim has ended: with this code, or minus the signal."""

    kind = "ended"
    code: int = number_field(-256, 256)


class ShimCrashed(Message):
    """A signal such as SIGABRT or SIGSEGV ends the shim. It is the first line of what faulthandler writes then, ``Fatal
    Python error: Aborted``; the lines that follow are no messages.
    """

    kind = "Fatal"
    text: str = text_field()


class CannotRun(Message):
    """The program of a shim cannot be run, for a reason of `errno`."""

    kind = "cannot"
    number: int = number_field(0, 4096)
    program: str = text_field()


class WrongWorld(Message):
    """A shim is not in the world that was planned."""

    kind = "mismatch"
    text: str = text_field()


class PortTaken(Message):
    """MASTER_PORT is taken on rank 0's host."""

    kind = "port"


class Note(Message):
    """Something that the user should know and that ends nothing."""

    kind = "note"
    text: str = text_field()


class Begin(Message):
    """The ranks of all hosts are ready: let yours begin."""

    kind = "begin"


class Signal(Message):
    """Send this signal to the ranks."""

    kind = "signal"
    number: int = number_field(1, 64)


class Hold(Message):
    """A SIGTERM from outside is kept back from now on (1), because ranks do something first, or no longer (0); where
    the scheduler signals ranks itself (2), these keep it back, too.
    """

    kind = "hold"
    how: int = number_field(0, 2)


class Kill(Message):
    """Kill the ranks, with all that they started."""

    kind = "kill"


class Release(Message):
    """Let the shims end: with the codes of their ranks, or with 0."""

    kind = "release"
    codes: bool = flag_field()


class Unheard(Message):
    """A message of a watcher that cannot be imported on this side."""


class Direction:
    """All messages that travel one way.

    Attributes:
        longest: Bytes that a line may have.
        kinds: The messages by the name of their kind.
        later: What returns the class of a kind that is imported only when it first comes.
    """

    __slots__ = ("kinds", "later", "longest")

    def __init__(self, longest: int, *messages: type[Message]) -> None:
        self.longest = longest
        self.kinds = {message.kind: message for message in messages}
        self.later: dict[str, Callable[[], type[Message]]] = {}

    def find(self, kind: str) -> type[Message] | None:
        """Return the class of a kind; None where none of this kind travels this way."""
        if kind in self.later:
            self.kinds[kind] = self.later.pop(kind)()
        return self.kinds.get(kind)

    def encode(self, message: Message) -> bytes:
        """Return the bytes of a message; a line of words has its newline."""
        raise NotImplementedError

    def decode(self, line: bytes) -> Message:
        """Return the message of a line without its newline.

        Raises:
            Malformed: It is none that travels this way.
        """
        raise NotImplementedError


class Words(Direction):
    """Lines of words: the kind, and the fields in their order; the last may have spaces."""

    __slots__ = ()

    def encode(self, message: Message) -> bytes:
        values = to_fields(message).values()
        words = [message.kind, *("true" * value if type(value) is bool else str(value) for value in values)]
        return " ".join(" ".join(words).split("\n")).encode("utf-8", "surrogateescape") + b"\n"

    def decode(self, line: bytes) -> Message:
        if len(line) > self.longest:
            raise Malformed(f"a line of {len(line)} bytes; expected at most {self.longest}")
        name, _, rest = line.decode("utf-8", "surrogateescape").partition(" ")
        kind = self.find(name)
        if kind is None:
            raise Malformed(f"no message: {line[:60]!r}")
        if kind is Unheard:
            return Unheard()
        words = rest.split(" ", len(kind.CHECKS) - 1) if kind.CHECKS else []
        if len(words) != len(kind.CHECKS):
            raise Malformed(f"{kind.__name__} has {len(kind.CHECKS)} fields; {len(words)} came")
        try:
            read = [field.read(word) for field, word in zip(kind.CHECKS.values(), words)]  # noqa: B905  # of one length
            return kind(*read)
        except Malformed as error:
            raise Malformed(f"{kind.__name__}: {error}") from None


FROM_SHIMS = Words(
    LONGEST_ORDER,
    *(ShimStarted, RankReady, RankStarted, SignalPassed, RankEnded, ShimCrashed, CannotRun),
    *(WrongWorld, PortTaken, Note),
)
TO_SHIMS = Words(LONGEST_ORDER, Begin, Signal, Hold, Kill, Release)


class LineReader:
    """Cut what arrives on a connection into messages.

    Attributes:
        direction: Which messages they are.
        rest: What has arrived of the next line.
    """

    __slots__ = ("direction", "rest")

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are whole now.

        Raises:
            Malformed: The next line is none, or longer than it may be.
        """
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            if line:
                yield self.direction.decode(line)
        if len(self.rest) > self.direction.longest:
            raise Malformed(f"a line of more than {self.direction.longest} bytes")
