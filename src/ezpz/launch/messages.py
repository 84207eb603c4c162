"""Define, encode and check every message between the launcher, the host agents, the shims and the ranks.

A message is one line. Each kind is a class whose fields say what they may hold, and each way that messages travel is a
table of the kinds that travel it. Lines of JSON go between the launcher and its agents; a shim writes words, because
`json` would cost each of them 5 ms:

    CHALLENGES     launcher to agent   {"nonce": "8f…", "time": 1795287600.1}
    INTRODUCTIONS  agent to launcher   {"say": "hello", "host": "n01", "index": 0, "pid": 7, "nonce": "51…", "mac": "…"}
    WELCOMES       launcher to agent   {"proof": "…", "settings": {"log_dir": "", "idle": null, …}}
    REPORTS        agent to launcher   {"say": "up", "ranks": 4}
    ORDERS         launcher to agent   {"do": "signal", "number": 15}
    FROM_RANKS     shim, rank to agent up 4711
    TO_SHIMS       agent to shim       signal 15

and a `Piece` of output on a connection of its own: ``3 1 12`` (rank, stream, bytes), a newline, and the bytes. Whatever
else arrives is a `MalformedMessage`, on which the reader closes the connection. Fields that a table lacks are left out.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar

    from typing_extensions import dataclass_transform

_LONGEST_OF_A_STRANGER = 4096  # bytes of a line from somebody who has not shown that he knows the secret
_LONGEST_REPORT = 8 << 20  # bytes; the longest holds the stacks of a host's ranks
_LONGEST_ORDER = 1 << 16
_LONGEST_PIECE = 16 << 20  # bytes of output at once; an agent cuts lines behind the first MiB
_LONGEST_HEADER = 64  # bytes in front of a piece
_FAR = 1 << 53  # numbers that every JSON reader keeps exact
_RANKS = 1 << 24  # more than any launch has
_PATH, _TEXT, _WORDS = 4096, 1 << 14, 1 << 19  # characters
_FRAMES, _FUNCTION = 1000, 1024
_HEXADECIMAL = frozenset("0123456789abcdef")


class MalformedMessage(ValueError):  # noqa: N818  # named by what it is: nothing failed here
    """A line is no message: of an unknown kind, or with a field that is missing, of a wrong type or too large."""


# What a field may hold. `check` takes a value out of JSON, `read` one out of a line of words, and `fit` makes one that
# is sent small enough: the end of a long text is worth less than the host that would be lost with the message.


class _Field:
    """One field of a message."""

    __slots__ = ()

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def read(self, word: str) -> Any:
        return self.check(word)

    def fit(self, value: Any) -> Any:
        return value


class _Number(_Field):
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


class _Seconds(_Field):
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


class _Text(_Field):
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


class _Hexadecimal(_Field):
    __slots__ = ()

    def check(self, value: Any) -> str:
        if type(value) is not str or len(value) > 128 or not _HEXADECIMAL.issuperset(value):
            raise MalformedMessage("expected hexadecimal digits")
        return value


class _Flag(_Field):
    __slots__ = ()

    def check(self, value: Any) -> bool:
        if type(value) is not bool:
            raise MalformedMessage("expected true or false")
        return value

    def read(self, word: str) -> bool:
        if word not in {"", "true"}:
            raise MalformedMessage("expected `true` or nothing")
        return word == "true"


class _Part(_Field):
    """A message within a message."""

    __slots__ = ("of",)

    def __init__(self, of: type[Message]) -> None:
        self.of = of

    def check(self, value: Any) -> Message:
        if type(value) is not dict:
            raise MalformedMessage("expected an object")
        return _from_fields(self.of, value)

    def fit(self, value: Message) -> dict[str, Any]:
        return _to_fields(value)


class _Row(_Field):
    """Several values of different kinds, in their order."""

    __slots__ = ("fields",)

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        self.fields = fields

    def check(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(self.fields):
            raise MalformedMessage(f"expected a list of {len(self.fields)}")
        return tuple([field.check(one) for field, one in zip(self.fields, value)])  # noqa: B905  # of one length

    def fit(self, value: tuple[Any, ...]) -> list[Any]:
        return [field.fit(one) for field, one in zip(self.fields, value)]  # noqa: B905  # of one length


class _List(_Field):
    __slots__ = ("most", "of")

    def __init__(self, of: _Field, most: int) -> None:
        self.of, self.most = of, most

    def check(self, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > self.most:
            raise MalformedMessage(f"expected a list of at most {self.most}")
        return [self.of.check(one) for one in value]

    def fit(self, value: list[Any]) -> list[Any]:
        return [self.of.fit(one) for one in value[: self.most]]


def _number(low: int = -_FAR, high: int = _FAR) -> Any:
    return _Number(low, high)


def _rank() -> Any:
    return _Number(-_RANKS, _RANKS)  # below zero, one that is none of the plan's


def _seconds(*, optional: bool = False) -> Any:
    return _Seconds(optional)


def _text(longest: int = _TEXT) -> Any:
    return _Text(longest)


def _hexadecimal() -> Any:
    return _Hexadecimal()


def _flag() -> Any:
    return _Flag()


def _part(of: type[Message]) -> Any:
    return _Part(of)


def _rows(*fields: _Field, most: int) -> Any:
    return _List(_Row(fields), most)


def _list(of: _Field, most: int) -> Any:
    return _List(of, most)


if not TYPE_CHECKING:

    def dataclass_transform(**_):  # noqa: ANN003, ANN201
        """Do nothing at run time: it tells type checkers that the fields of a message are what its constructor
        takes.
        """
        return lambda made: made


class _MessageType(type):
    """Make the fields of a message its slots, and its table."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _MessageType:
        own = {name: value for name, value in namespace.items() if isinstance(value, _Field)}
        rest = {name: value for name, value in namespace.items() if name not in own}
        fields = {**(getattr(bases[0], "fields", {}) if bases else {}), **own}
        return super().__new__(cls, name, bases, {**rest, "fields": fields, "__slots__": tuple(own)})


@dataclass_transform(
    kw_only_default=True, field_specifiers=(_number, _rank, _seconds, _text, _hexadecimal, _flag, _part, _rows, _list)
)
class Message(metaclass=_MessageType):
    """One message, made with all of its fields by name.

    Attributes:
        kind: What its line is called.
        fields: What each field may hold.
    """

    kind = ""
    if TYPE_CHECKING:
        fields: ClassVar[dict[str, _Field]]

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


def _to_fields(message: Any) -> dict[str, Any]:
    return {name: field.fit(getattr(message, name)) for name, field in message.fields.items()}


def _from_fields(kind: type[Message], values: dict[str, Any]) -> Message:
    checked = {}
    for name, field in kind.fields.items():
        if name not in values:
            raise MalformedMessage(f"{kind.__name__} lacks {name}")
        try:
            checked[name] = field.check(values[name])
        except MalformedMessage as error:
            raise MalformedMessage(f"{kind.__name__}.{name}: {error}") from None
    return kind(**checked)


# How launcher and agent meet. The secret itself never crosses the network: each side shows that it can sign the other's
# nonce.


class Challenge(Message):
    """The launcher's first words: what to sign, and its clock, by which all times are given."""

    nonce: str = _hexadecimal()
    time: float = _seconds()


class Hello(Message):
    """An agent's first words on its control connection; ``index`` is -1 where it does not know which host of the plan
    it is.
    """

    kind = "hello"
    host: str = _text(255)
    index: int = _number(-1, _RANKS)
    pid: int = _number()
    nonce: str = _hexadecimal()
    mac: str = _hexadecimal()


class OutputHello(Hello):
    """The same on the connection for output."""

    kind = "output"


class Settings(Message):
    """What every agent of a launch needs to know: folder of the logs, idle limit, whether there is input, recorder's
    folder.
    """

    log_dir: str = _text(_PATH)
    idle: float | None = _seconds(optional=True)
    input: bool = _flag()
    recorder: str = _text(_PATH)


class Welcome(Message):
    """The launcher knows the secret too: from now on the agent obeys it."""

    proof: str = _hexadecimal()
    settings: Settings = _part(Settings)


# What an agent reports.


class Up(Message):
    """All ranks of the host run."""

    kind = "up"
    ranks: int = _number(0, _RANKS)


class Partial(Message):
    """Only some of them do, and some time has passed."""

    kind = "partial"
    have: int = _number(0, _RANKS)


class Mismatch(Message):
    """Ranks came up that are none of the plan: the world, family and words of each."""

    kind = "mismatch"
    host: str = _text(255)
    worlds: list[tuple[str, str, str]] = _rows(_text(40), _text(40), _text(), most=4096)


class PortTaken(Message):
    """MASTER_PORT is taken on rank 0's host."""

    kind = "port"


class RankFailed(Message):
    """A rank ended badly: its last words on stderr, whether these are on the screen already, and what its code does not
    tell.
    """

    kind = "ended"
    rank: int = _rank()
    pid: int = _number(0)
    code: int = _number(-256, 256)
    at: float = _seconds()
    why: str = _text()
    words: str = _text(_WORDS)
    shown: bool = _flag()


class Finished(Message):
    """A rank ended with 0, the first of its host."""

    kind = "finished"
    rank: int = _rank()


class Stages(Message):
    """So many ranks of the host have reached a stage: the first, half of them and the last at these times."""

    kind = "stages"
    stage: str = _text(40)
    count: int = _number(0, _RANKS)
    low: float = _seconds()
    median: float = _seconds()
    high: float = _seconds()


class Idle(Message):
    """A rank shows no progress."""

    kind = "idle"
    rank: int = _rank()
    pid: int = _number(0)
    seconds: float = _seconds()


class RankStack(Message):
    """What one rank is doing: the frames of its main thread, innermost first, else what the kernel says of it."""

    rank: int = _rank()
    pid: int = _number(0)
    frames: list[tuple[str, str, int]] = _rows(_text(_FUNCTION), _text(_PATH), _number(), most=_FRAMES)
    where: str = _text(_FUNCTION)


class StacksTaken(Message):
    """The answer to `TakeStacks` of the same ``id``, and the files of torch's flight recorder."""

    kind = "stacks"
    id: int = _number()
    host: str = _text(255)
    ranks: list[RankStack] = _list(_part(RankStack), most=4096)
    dumps: list[str] = _list(_text(_PATH), most=4096)


class Note(Message):
    """Something that the user should know and that ends nothing."""

    kind = "note"
    text: str = _text()


class Refused(Message):
    """The agent cannot start its ranks, or has been ordered to end by another program."""

    kind = "refused"
    text: str = _text()


class Done(Message):
    """All is over on the host, but for processes that no signal ends."""

    kind = "done"
    stuck: list[int] = _list(_number(), most=4096)


class Lost(Message):
    """The other side has gone; never sent, but put in its place by the reader."""


# What the launcher orders; an agent passes some of it on to its shims.


class Signal(Message):
    """Send this signal to the ranks."""

    kind = "signal"
    number: int = _number(1, 64)


class Kill(Message):
    """Kill the ranks, with all that they started."""

    kind = "kill"


class TakeStacks(Message):
    """Find out what every rank is doing, with ``fatal`` also in ways that end it."""

    kind = "stacks"
    fatal: bool = _flag()
    id: int = _number()


class Release(Message):
    """Let the shims end: with the codes of their ranks, or with 0."""

    kind = "release"
    codes: bool = _flag()


# What shims and ranks tell their agent.


class ShimStarted(Message):
    """A shim of this host has started, for this rank of the launcher's world; its rank's stdout and stderr come with
    it.
    """

    kind = "shim"
    rank: int = _rank()
    world: int = _number(0, _RANKS)
    local_rank: int = _rank()
    local_world: int = _number(0, _RANKS)
    host: int = _number(-1, _RANKS)
    family: str = _text(40)
    pid: int = _number(0)
    time: float = _seconds()


class RankStarted(Message):
    """The rank of a shim runs."""

    kind = "up"
    pid: int = _number(0)


class SignalPassed(Message):
    """Somebody, often mpiexec, has sent a signal to the shim, and the rank gets it."""

    kind = "passed"
    number: int = _number(1, 64)


class RankEnded(Message):
    """The rank of a shim has ended: with this code, or minus the signal."""

    kind = "ended"
    code: int = _number(-256, 256)


class CannotRun(Message):
    """The program of a shim cannot be run, for a reason of `errno`."""

    kind = "cannot"
    number: int = _number(0, 4096)
    program: str = _text()


class WrongWorld(Message):
    """A shim is not in the world that was planned."""

    kind = "mismatch"
    text: str = _text()


class RankSpeaks(Message):
    """A rank itself speaks on this connection (`ezpz.progress`)."""

    kind = "rank"
    rank: int = _rank()
    pid: int = _number(0)


class StageReached(Message):
    """That rank has come so far: ``torch``, ``group`` or ``step``."""

    kind = "stage"
    stage: str = _text(40)


class Beat(Message):
    """That rank makes progress."""

    kind = "beat"


class DumpsAt(Message):
    """At this signal the process writes its Python stacks to its stderr."""

    kind = "dumps"
    number: int = _number(1, 64)


# The tables, one for each way.


class Direction:
    """All messages that travel one way.

    Attributes:
        longest: Bytes that a line may have.
        kinds: The messages by the name of their kind.
    """

    __slots__ = ("kinds", "longest")

    def __init__(self, longest: int, *messages: type[Message]) -> None:
        self.longest = longest
        self.kinds = {message.kind: message for message in messages}

    def encode(self, message: Message) -> bytes:
        """Return the line of a message, with its newline."""
        raise NotImplementedError

    def decode(self, line: bytes) -> Message:
        """Return the message of a line without its newline.

        Raises:
            MalformedMessage: It is none that travels this way.
        """
        raise NotImplementedError


class _Json(Direction):
    """Lines of JSON, in which the field ``key`` names the kind; an empty one where there is only one kind."""

    __slots__ = ("key",)

    def __init__(self, key: str, longest: int, *messages: type[Message]) -> None:
        super().__init__(longest, *messages)
        self.key = key

    def encode(self, message: Message) -> bytes:
        import json

        named = {self.key: message.kind} if self.key else {}
        return json.dumps({**named, **_to_fields(message)}).encode() + b"\n"

    def decode(self, line: bytes) -> Message:
        import json

        if len(line) > self.longest:
            raise MalformedMessage(f"a line of {len(line)} bytes; expected at most {self.longest}")
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:  # 4,000 times `[` is no syntax error to Python
            raise MalformedMessage(f"no JSON: {error}") from None
        name = values.get(self.key, "") if type(values) is dict else None
        kind = self.kinds.get(name) if type(name) is str else None
        if kind is None:
            raise MalformedMessage(f"no message: {line[:60]!r}")
        return _from_fields(kind, values)


class _Words(Direction):
    """Lines of words: the kind, and the fields in their order; the last may have spaces."""

    __slots__ = ()

    def encode(self, message: Message) -> bytes:
        values = _to_fields(message).values()
        words = [message.kind, *("true" * value if type(value) is bool else str(value) for value in values)]
        return " ".join(" ".join(words).split("\n")).encode("utf-8", "surrogateescape") + b"\n"

    def decode(self, line: bytes) -> Message:
        if len(line) > self.longest:
            raise MalformedMessage(f"a line of {len(line)} bytes; expected at most {self.longest}")
        name, _, rest = line.decode("utf-8", "surrogateescape").partition(" ")
        kind = self.kinds.get(name)
        if kind is None:
            raise MalformedMessage(f"no message: {line[:60]!r}")
        words = rest.split(" ", len(kind.fields) - 1) if kind.fields else []
        if len(words) != len(kind.fields):
            raise MalformedMessage(f"{kind.__name__} has {len(kind.fields)} fields; {len(words)} came")
        try:
            read = [field.read(word) for field, word in zip(kind.fields.values(), words)]  # noqa: B905  # of one length
            return kind(**dict(zip(kind.fields, read)))  # noqa: B905  # as above
        except MalformedMessage as error:
            raise MalformedMessage(f"{kind.__name__}: {error}") from None


CHALLENGES = _Json("", _LONGEST_OF_A_STRANGER, Challenge)
INTRODUCTIONS = _Json("say", _LONGEST_OF_A_STRANGER, Hello, OutputHello)
WELCOMES = _Json("", _LONGEST_ORDER, Welcome)
REPORTS = _Json(
    "say",
    _LONGEST_REPORT,
    *(Up, Partial, Mismatch, PortTaken, RankFailed, Finished, Stages, Idle, StacksTaken, Note, Refused, Done),
)
ORDERS = _Json("do", _LONGEST_ORDER, Signal, Kill, TakeStacks, Release)
FROM_RANKS = _Words(
    _LONGEST_ORDER,
    *(ShimStarted, RankStarted, SignalPassed, RankEnded, CannotRun, WrongWorld, PortTaken, Note),
    *(RankSpeaks, StageReached, Beat, DumpsAt),
)
TO_SHIMS = _Words(_LONGEST_ORDER, Signal, Kill, Release)


class Piece:
    """What a rank wrote on stream 1 or 2."""

    __slots__ = ("data", "rank", "stream")

    def __init__(self, rank: int, stream: int, data: bytes) -> None:
        self.rank, self.stream, self.data = rank, stream, data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and (self.rank, self.stream, self.data) == (
            other.rank,
            other.stream,
            other.data,
        )

    __hash__ = None  # type: ignore[assignment]  # none is kept in a set

    def encode(self) -> bytes:
        """Return what crosses the connection."""
        return b"%d %d %d\n%b" % (self.rank, self.stream, len(self.data), self.data)


_HEADER = (_Number(-_RANKS, _RANKS), _Number(1, 2), _Number(0, _LONGEST_PIECE))


class Inbox:
    """Cut what arrives on a connection into messages.

    Attributes:
        direction: Which messages they are; may change between two of them.
        rest: What has arrived of the next line.
    """

    __slots__ = ("direction", "rest")

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.rest = b""

    def first(self, data: bytes) -> Message | None:
        """Return the next message alone, and keep what follows; None while it is not whole.

        Raises:
            MalformedMessage: It is none, or longer than it may be.
        """
        line, newline, rest = (self.rest + data).partition(b"\n")
        self.rest = rest if newline else line
        if not newline and len(line) > self.direction.longest:
            raise MalformedMessage(f"a line of more than {self.direction.longest} bytes")
        return self.direction.decode(line) if newline else None

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

    def pieces(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces of output that are whole now.

        Raises:
            MalformedMessage: What follows is none.
        """
        data, start = self.rest + data, 0
        try:
            while True:
                end = data.find(b"\n", start, start + _LONGEST_HEADER)
                if end < 0 and len(data) - start >= _LONGEST_HEADER:
                    raise MalformedMessage(f"no piece of output: {data[start : start + _LONGEST_HEADER]!r}")
                if end < 0:
                    return
                rank, stream, size = _read_header(data[start:end])
                if len(data) < end + 1 + size:
                    return
                start = end + 1 + size
                yield Piece(rank, stream, data[end + 1 : start])
        finally:
            self.rest = data[start:]


def _read_header(header: bytes) -> tuple[int, int, int]:
    words = header.decode("utf-8", "surrogateescape").split(" ")
    try:
        rank, stream, size = (field.read(word) for field, word in zip(_HEADER, words, strict=True))
    except ValueError as error:
        raise MalformedMessage(f"no piece of output: {error}") from None
    return rank, stream, size
