"""Define what a message is, and the messages between shims, ranks and the agent of their host.

A message is one line. Each kind is a class whose fields say what they may hold, and each way that messages travel is a
table of the kinds that travel it. A shim writes words, because `json` would cost each of them 5 ms:

    FROM_SHIMS    shim to agent   up 4711
    TO_SHIMS      agent to shim   signal 15

Whatever else arrives is a `MalformedMessage`, on which the reader closes the connection. What agents and the launcher
say to each other is in `ezpz.launch.messages`, which no shim imports: the classes alone would cost it half a
millisecond.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ClassVar

    from typing_extensions import dataclass_transform

LONGEST_ORDER = 1 << 16  # bytes of a line
_FAR = 1 << 53  # numbers that every JSON reader keeps exact
RANKS = 1 << 24  # more than any launch has
_TEXT = 1 << 14  # characters


class MalformedMessage(ValueError):  # noqa: N818  # named by what it is: nothing failed here
    """A line is no message: of an unknown kind, or with a field that is missing, of a wrong type or too large."""


# What a field may hold. `check` takes a value out of JSON, `read` one out of a line of words, and `fit` makes one that
# is sent small enough: the end of a long text is worth less than the host that would be lost with the message.


class Field:
    """One field of a message."""

    __slots__ = ()

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def read(self, word: str) -> Any:
        return self.check(word)

    def fit(self, value: Any) -> Any:
        return value


class Number(Field):
    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def check(self, value: Any) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise MalformedMessage(f"expected a number from {self.low} to {self.high}")
        return value

    def read(self, word: str) -> int:
        if len(word) > 20 or not (word.isascii() and word.removeprefix("-").isdigit()):
            raise MalformedMessage("expected a number")
        return self.check(int(word))


class Seconds(Field):
    __slots__ = ("optional",)

    def __init__(self, optional: bool) -> None:
        self.optional = optional

    def check(self, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        if type(value) not in {int, float} or not -_FAR <= value <= _FAR:  # no comparison holds for NaN
            raise MalformedMessage("expected seconds")
        return float(value)

    def read(self, word: str) -> float | None:
        try:
            return self.check(float(word))
        except ValueError:
            raise MalformedMessage("expected seconds") from None


class Text(Field):
    __slots__ = ("longest",)

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def check(self, value: Any) -> str:
        if type(value) is not str or len(value) > self.longest:
            raise MalformedMessage(f"expected a text of at most {self.longest} characters")
        if not value.isascii():
            try:
                value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise MalformedMessage("expected a text that can be written") from None
        return value

    def fit(self, value: str) -> str:
        return value[: self.longest]


class Flag(Field):
    __slots__ = ()

    def check(self, value: Any) -> bool:
        if type(value) is not bool:
            raise MalformedMessage("expected true or false")
        return value

    def read(self, word: str) -> bool:
        if word not in {"", "true"}:
            raise MalformedMessage("expected `true` or nothing")
        return word == "true"


class Part(Field):
    """A message within a message."""

    __slots__ = ("of",)

    def __init__(self, of: type[Message]) -> None:
        self.of = of

    def check(self, value: Any) -> Message:
        if type(value) is not dict:
            raise MalformedMessage("expected an object")
        return from_fields(self.of, value)

    def fit(self, value: Message) -> dict[str, Any]:
        return to_fields(value)


class Row(Field):
    """Several values of different kinds, in their order."""

    __slots__ = ("fields",)

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields

    def check(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(self.fields):
            raise MalformedMessage(f"expected a list of {len(self.fields)}")
        return tuple([field.check(one) for field, one in zip(self.fields, value)])  # noqa: B905  # of one length

    def fit(self, value: tuple[Any, ...]) -> list[Any]:
        return [field.fit(one) for field, one in zip(self.fields, value)]  # noqa: B905  # of one length


class List(Field):
    __slots__ = ("most", "of")

    def __init__(self, of: Field, most: int) -> None:
        self.of, self.most = of, most

    def check(self, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > self.most:
            raise MalformedMessage(f"expected a list of at most {self.most}")
        return [self.of.check(one) for one in value]

    def fit(self, value: list[Any]) -> list[Any]:
        return [self.of.fit(one) for one in value[: self.most]]


def number_field(low: int = -_FAR, high: int = _FAR) -> Any:
    return Number(low, high)


def rank_field() -> Any:
    return Number(-RANKS, RANKS)  # below zero, one that is none of the plan's


def seconds_field(*, optional: bool = False) -> Any:
    return Seconds(optional)


def text_field(longest: int = _TEXT) -> Any:
    return Text(longest)


def flag_field() -> Any:
    return Flag()


def part_field(of: type[Message]) -> Any:
    return Part(of)


def rows_field(*fields: Field, most: int) -> Any:
    return List(Row(fields), most)


def list_field(of: Field, most: int) -> Any:
    return List(of, most)


if not TYPE_CHECKING:

    def dataclass_transform(**_):  # noqa: ANN003, ANN201
        """Do nothing at run time: it tells type checkers that the fields of a message are what its constructor
        takes.
        """
        return lambda made: made


class _MessageType(type):
    """Make the fields of a message its slots, and its table."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _MessageType:
        own = {name: value for name, value in namespace.items() if isinstance(value, Field)}
        rest = {name: value for name, value in namespace.items() if name not in own}
        fields = {**(getattr(bases[0], "fields", {}) if bases else {}), **own}
        return super().__new__(cls, name, bases, {**rest, "fields": fields, "__slots__": tuple(own)})


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        number_field,
        rank_field,
        seconds_field,
        text_field,
        flag_field,
        part_field,
        rows_field,
        list_field,
    ),
)
class Message(metaclass=_MessageType):
    """One message, made with all of its fields by name.

    Attributes:
        kind: What its line is called.
        fields: What each field may hold.
    """

    kind = ""
    if TYPE_CHECKING:
        fields: ClassVar[dict[str, Field]]

    else:

        def __init__(self, **values: object) -> None:
            for name in self.fields:
                setattr(self, name, values.pop(name))
            if values:
                raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # two that are equal need not stay so

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _values(self).items())})"


def _values(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.fields}


def to_fields(message: Any) -> dict[str, Any]:
    return {name: field.fit(getattr(message, name)) for name, field in message.fields.items()}


def from_fields(kind: type[Message], values: dict[str, Any]) -> Message:
    checked = {}
    for name, field in kind.fields.items():
        if name not in values:
            raise MalformedMessage(f"{kind.__name__} lacks {name}")
        try:
            checked[name] = field.check(values[name])
        except MalformedMessage as error:
            raise MalformedMessage(f"{kind.__name__}.{name}: {error}") from None
    return kind(**checked)


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
            MalformedMessage: It is none that travels this way.
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
            raise MalformedMessage(f"a line of {len(line)} bytes; expected at most {self.longest}")
        name, _, rest = line.decode("utf-8", "surrogateescape").partition(" ")
        kind = self.find(name)
        if kind is None:
            raise MalformedMessage(f"no message: {line[:60]!r}")
        if kind is Unheard:
            return Unheard()
        words = rest.split(" ", len(kind.fields) - 1) if kind.fields else []
        if len(words) != len(kind.fields):
            raise MalformedMessage(f"{kind.__name__} has {len(kind.fields)} fields; {len(words)} came")
        try:
            read = [field.read(word) for field, word in zip(kind.fields.values(), words)]  # noqa: B905  # of one length
            return kind(**dict(zip(kind.fields, read)))  # noqa: B905  # as above
        except MalformedMessage as error:
            raise MalformedMessage(f"{kind.__name__}: {error}") from None


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
            MalformedMessage: The next line is none, or longer than it may be.
        """
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            if line:
                yield self.direction.decode(line)
        if len(self.rest) > self.direction.longest:
            raise MalformedMessage(f"a line of more than {self.direction.longest} bytes")
