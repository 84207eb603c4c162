"""Define, encode and check every message between the launcher and its agents, and all that an agent reads.

Each way that messages travel is a table of the kinds that travel it (`ezpz.launch.shim_messages` says what a kind is).
They are JSON between the launcher and its agents, each in a frame (`ezpz.launch.frames`), and lines of words
from shims and ranks, which are on one host and of one user:

    WELCOMES       launcher to agent   {"time": 1795287600.1, "settings": {"log_dir": "", "idle": null, …}}
    HELLOS         agent to launcher   {"say": "hello", "host": "n01"}
    REPORTS        agent to launcher   {"say": "up", "ranks": 4}
    ORDERS         launcher to agent   {"do": "signal", "number": 15, "world": 2}
    FROM_RANKS     shim, rank to agent up 4711
    TO_SHIMS       agent to shim       signal 15
    TO_RANKS       agent to rank       hold 1

and a `Piece` of output on a connection of its own: ``3 1`` (rank, stream), a newline, and the bytes; or
``3 1 0 5000`` and a newline for the first 5,000 bytes of slot 0 (`ezpz.launch.shared_slots`); behind the last one comes
``end 17`` after 17 pieces. Whatever else arrives is
a `Malformed`, on which the reader closes the connection. Fields that a table lacks are left out.

An order, a report and a piece belong to a **world**, the ranks of one program on some hosts: that of the launch, which
comes with its agents (0, and left out: it is also the host as a whole), or one that was started on them later
(`Start`). Its number is no field of a message but its address: ``"world": 2``, or a third word, ``3 1 2``.
"""

from __future__ import annotations

from ezpz.fields import (
    RANKS,
    Malformed,
    Number,
    Seconds,
    Text,
    flag_field,
    from_fields,
    list_field,
    number_field,
    part_field,
    rank_field,
    rows_field,
    seconds_field,
    text_field,
    to_fields,
)
from ezpz.launch.shared_slots import SLOT_SIZE, SLOTS
from ezpz.launch.shim_messages import *  # noqa: F403  # agents say and hear these, too
from ezpz.launch.shim_messages import (
    FROM_SHIMS,
    LONGEST_ORDER,
    Begin,
    Direction,
    Hold,
    Kill,
    Message,
    Note,
    PortTaken,
    Release,
    Signal,
    Words,
)

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ezpz.launch.shared_slots import Slots

_LONGEST_HELLO = 4096  # bytes
_LONGEST_REPORT = 8 << 20  # bytes; the longest holds the stacks of a host's ranks
LONGEST_PIECE = 16 << 20  # bytes of output at once; an agent cuts lines after the first MiB
_LONGEST_HEADER = 48  # bytes in front of a piece
_PATH, _WORDS = 4096, 1 << 19  # characters
_FRAMES, _FUNCTION = 1000, 1024
_TEXT = 1 << 14  # characters
# Linux lets a program have words of 128 KiB, and 6 MiB of them (execve(2)).
_LONGEST_WORD, _MOST_WORDS = 1 << 17, 1 << 16
_LONGEST_ORDER = 8 << 20  # bytes: of a `Start`


# How launcher and agent meet, when each has shown the other that it knows the secret (`ezpz.launch.frames`).


class Hello(Message):
    """An agent's first words: the name of its host."""

    kind = "hello"
    host: str = text_field(255)


class Settings(Message):
    """What every agent of a launch needs to know: folder of the logs, idle limit, whether there is input, recorder's
    folder, folder where ranks leave their last collectives, how long ranks may take to end when the launcher is lost,
    whether it reports the stages of each rank, whether the launcher draws a line of progress, whether it starts worlds
    when it is told to, in place of one of its own, and stays until it is released, and of each watcher
    (`ezpz.launch.watchers`) its name, its file, the seconds until its host side is made by itself (0: before the ranks
    begin, -1: at its first message), what its sides are told, and the kinds of its words and of its orders where these
    are not known before.
    """

    log_dir: str = text_field(_PATH)
    idle: float | None = seconds_field(optional=True)
    input: bool = flag_field()
    recorder: str = text_field(_PATH)
    collectives: str = text_field(_PATH)
    parting: float = seconds_field()
    by_rank: bool = flag_field()
    live: bool = flag_field()
    stays: bool = flag_field()
    watchers: list[tuple[str, str, float, str, str, str]] = rows_field(
        *(Text(40), Text(_PATH), Seconds(False), Text(_TEXT), Text(_TEXT), Text(_TEXT)), most=64
    )


class Welcome(Message):
    """The launcher's first words on each connection: its clock, by which all times are given, the settings, and how
    many pieces of the agent's output it has: 0, unless an earlier connection was cut.
    """

    time: float = seconds_field()
    settings: Settings = part_field(Settings)
    taken: int = number_field(0)


# What an agent reports.


class Up(Message):
    """All ranks of the host are ready, and wait for `Begin`; where the launcher has forked them, they run."""

    kind = "up"
    ranks: int = number_field(0, RANKS)


class Partial(Message):
    """Only some of them are, and some time has passed."""

    kind = "partial"
    have: int = number_field(0, RANKS)


class Mismatch(Message):
    """Ranks came up that are none of the plan: the world, family and words of each."""

    kind = "mismatch"
    host: str = text_field(255)
    worlds: list[tuple[str, str, str]] = rows_field(text_field(40), text_field(40), text_field(), most=4096)


class KernelCounts(Message):
    """What the kernel of a host has counted of the memory around a rank: its control group (empty where there is none),
    how many processes of that, and of the whole host, it had killed for want of memory when the rank had just begun and
    at its end, the most bytes that the group has used, and the lowest limit of the group and those above it. -1 is
    unknown, and for the limit none.
    """

    group: str = text_field(_PATH)
    before: int = number_field(-1)
    after: int = number_field(-1)
    host_before: int = number_field(-1)
    host_after: int = number_field(-1)
    peak: int = number_field(-1)
    limit: int = number_field(-1)


NOTHING_COUNTED = KernelCounts(group="", before=-1, after=-1, host_before=-1, host_after=-1, peak=-1, limit=-1)


class RankFailed(Message):
    """A rank ended badly: its last words on stderr, whether these are on the screen already, what its code does not
    tell, the last step that it reported, -1 if none, and what its host says of it: the memory, and where the rank could
    not write, file systems with the bytes and the files that are free there, and the bytes that they have in all.
    ``reason`` is what torch has written of why it aborts the rank, which is on the screen, and not in the words.
    """

    kind = "ended"
    rank: int = rank_field()
    pid: int = number_field(0)
    code: int = number_field(-256, 256)
    at: float = seconds_field()
    why: str = text_field()
    words: str = text_field(_WORDS)
    shown: bool = flag_field()
    step: int = number_field()
    memory: KernelCounts = part_field(KernelCounts)
    room: list[tuple[str, int, int, int]] = rows_field(
        Text(_PATH), Number(0, 1 << 53), Number(-1, 1 << 53), Number(0, 1 << 53), most=8
    )
    reason: str = text_field(_WORDS, default="")


class Finished(Message):
    """A rank ended with 0, the first of its host; ``step`` is the last step that it reported, -1 if none."""

    kind = "finished"
    rank: int = rank_field()
    pid: int = number_field(0)
    at: float = seconds_field()
    step: int = number_field()


class Stages(Message):
    """So many ranks of the host have reached a stage: the first, half of them and the last at these times, and, where
    the settings ask for it, each rank at its own.
    """

    kind = "stages"
    stage: str = text_field(40)
    count: int = number_field(0, RANKS)
    low: float = seconds_field()
    median: float = seconds_field()
    high: float = seconds_field()
    ranks: list[tuple[int, float]] = rows_field(rank_field(), seconds_field(), most=4096)


class InputWanted(Message):
    """Rank 0 runs here, and its stdin may come, from this piece on: not the first where a connection was cut."""

    kind = "input"
    taken: int = number_field(0)


class InputUnread(Message):
    """Rank 0 has ended or has closed its stdin: only the end of the input shall come."""

    kind = "unread"


class TermHeld(Message):
    """A SIGTERM that others than the launcher have sent to ranks of the host is kept back (`Hold`)."""

    kind = "held"


class Refused(Message):
    """The agent gives up: its host lacks what ranks need (``cannot``), or another program has ordered it to end."""

    kind = "refused"
    text: str = text_field()
    cannot: bool = flag_field()


class Done(Message):
    """All is over on the host, but for processes that no signal ends; ``step`` is the furthest that a rank told."""

    kind = "done"
    stuck: list[int] = list_field(number_field(), most=4096)
    step: int = number_field()


class Alive(Message):
    """The answer to `AreYouAlive`."""

    kind = "alive"


class Lost(Message):
    """The other side has gone; never sent, but put in its place by the reader."""


# What the launcher orders; an agent passes some of it on to its shims.


class OutputTaken(Message):
    """The launcher has so many pieces of the agent's output, which need not be kept any longer."""

    kind = "taken"
    pieces: int = number_field(0)


class ConnectOutput(Message):
    """The connection for output was cut before its end: make it anew."""

    kind = "connect"


class Start(Message):
    """Start the ranks of a world on this host, which is the one with this index among the world's: what each runs, in
    which folder, with which variables (``EZPZ_PLACEMENT`` says how many), and what the launcher wants of them. Its
    number has had no world before.
    """

    kind = "start"
    index: int = number_field(0, RANKS)
    command: list[str] = list_field(Text(_LONGEST_WORD), most=_MOST_WORDS)
    folder: str = text_field(_PATH)
    environ: list[tuple[str, str]] = rows_field(Text(_LONGEST_WORD), Text(_LONGEST_WORD), most=_MOST_WORDS)
    settings: Settings = part_field(Settings)


class AreYouAlive(Message):
    """Answer with `Alive`: a host that stands still keeps its connections, and says nothing."""

    kind = "alive?"


# What ranks themselves tell their agent.


class RankSpeaks(Message):
    """A rank itself speaks on this connection (`ezpz.progress`)."""

    kind = "rank"
    rank: int = rank_field()
    pid: int = number_field(0)


# What a rank comes to until its second step, in this order (docs/runs.md says when it has).
STAGES = (
    *("shim", "process", "interpreter", "torch", "setup", "met", "group", "own", "model", "data", "step"),
    "second_step",
)


class StageReached(Message):
    """That rank has come so far: one of `STAGES`."""

    kind = "stage"
    stage: str = text_field(40)


class Recording(Message):
    """That rank keeps the record of a run in this folder; passed on to the launcher."""

    kind = "folder"
    folder: str = text_field(_PATH)


class StepsIn(Message):
    """This descriptor of the process is memory with the last step that it reported (`ezpz.progress`)."""

    kind = "steps"
    number: int = number_field(0, 1 << 30)


class DumpsAt(Message):
    """At this signal the process writes its Python stacks to its stderr."""

    kind = "dumps"
    number: int = number_field(1, 64)


# The tables, one for each way.


class _Json(Direction):
    """JSON, in which the field ``key`` names the kind; an empty one where there is only one kind."""

    __slots__ = ("key",)

    def __init__(self, key: str, longest: int, *messages: type[Message]) -> None:
        super().__init__(longest, *messages)
        self.key = key

    def encode(self, message: Message, world: int = 0) -> bytes:
        import json

        named: dict[str, Any] = {self.key: message.kind} if self.key else {}
        if world:
            named["world"] = world
        return json.dumps({**named, **to_fields(message)}).encode()

    def decode(self, line: bytes) -> Message:
        return self.addressed(line)[1]

    def addressed(self, line: bytes) -> tuple[int, Message]:
        """Return the world to which a message belongs, and the message.

        Raises:
            Malformed: It is none that travels this way.
        """
        import json

        if len(line) > self.longest:
            raise Malformed(f"a line of {len(line)} bytes; expected at most {self.longest}")
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:  # 4,000 times `[` is no syntax error to Python
            raise Malformed(f"no JSON: {error}") from None
        name = values.get(self.key, "") if type(values) is dict else None
        kind = self.find(name) if type(name) is str else None
        if kind is None:
            raise Malformed(f"no message: {line[:60]!r}")
        return _WORLD.check(values.get("world", 0)), from_fields(kind, values)


_WORLD = Number(0, RANKS)
WELCOMES = _Json("", LONGEST_ORDER, Welcome)
HELLOS = _Json("say", _LONGEST_HELLO, Hello)
REPORTS = _Json(
    "say",
    _LONGEST_REPORT,
    *(Up, Partial, Mismatch, PortTaken, RankFailed, Finished, Stages, Note),
    *(InputWanted, InputUnread, TermHeld, Recording, Refused),
    Done,
    Alive,
)
ORDERS = _Json(
    "do",
    _LONGEST_ORDER,
    *(
        Start,
        Begin,
        Signal,
        Kill,
        Release,
        AreYouAlive,
        OutputTaken,
        ConnectOutput,
        Hold,
    ),
)
FROM_RANKS = Words(
    LONGEST_ORDER,
    *FROM_SHIMS.kinds.values(),
    *(RankSpeaks, StageReached, Recording, StepsIn, DumpsAt),
)
TO_RANKS = Words(LONGEST_ORDER, Hold, Signal)


PIECE = 128  # bytes, about, that a piece takes besides its data where it is kept


class Piece:
    """What a rank wrote on stream 1 or 2.

    Attributes:
        world: The world of the rank.
        release: Gives back the memory in which the data is, which is the agent's from then on; None where it need not
            be given back.
    """

    __slots__ = ("data", "rank", "release", "stream", "world")

    def __init__(
        self,
        rank: int,
        stream: int,
        data: bytes | memoryview,
        release: Callable[[], None] | None = None,
        *,
        world: int = 0,
    ) -> None:
        self.rank, self.stream, self.data, self.release, self.world = rank, stream, data, release, world

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and (self.rank, self.stream, self.data, self.world) == (
            other.rank,
            other.stream,
            other.data,
            other.world,
        )

    __hash__ = None  # type: ignore[assignment]  # none is kept in a set

    def encode(self) -> tuple[bytes, bytes]:
        """Return the two parts of what crosses the connection."""
        return b"%d %d%b\n" % (self.rank, self.stream, _third(self.world)), bytes(self.data)

    @staticmethod
    def encode_lent(rank: int, stream: int, slot: int, size: int, world: int = 0) -> bytes:
        """Return what crosses the connection in place of the first bytes of a slot."""
        return b"%d %d %d %d%b\n" % (rank, stream, slot, size, _third(world))

    @staticmethod
    def encode_end(pieces: int) -> bytes:
        """Return what crosses the connection behind so many pieces: no more comes."""
        return b"%b%d\n" % (_END, pieces)

    @staticmethod
    def decode_end(content: memoryview) -> int | None:
        """Return how many pieces came before the end, None where this is a piece itself.

        Raises:
            Malformed: It begins as an end does and is none.
        """
        if content[: len(_END)] != _END:
            return None
        return _COUNT.read(bytes(content[len(_END) : _LONGEST_HEADER]).decode("utf-8", "surrogateescape").strip())

    @classmethod
    def decode(cls, content: memoryview, slots: Slots | None = None) -> Piece:
        """Return the piece that is the content of a frame, or lies in a slot that it names.

        Raises:
            Malformed: It is none.
        """
        header, newline, _ = bytes(content[:_LONGEST_HEADER]).partition(b"\n")
        known = _HEADERS.get(header) if newline else None
        if known is None:
            words = header.decode("utf-8", "surrogateescape").split(" ")
            fields = _HEADER if len(words) in _WHOLE else _LENT_HEADER
            if not newline or len(words) not in {len(fields), len(fields) + 1}:
                raise Malformed(f"no piece of output: {header!r}")
            values = [field.read(word) for field, word in zip((*fields, _WORLD), words, strict=False)]
            world = values.pop() if len(words) > len(fields) else 0
            if fields is _LENT_HEADER:
                rank, stream, slot, size = values
                if not slots or len(content) != len(header) + 1:
                    raise Malformed(f"no piece of output: {header!r}")
                return cls(rank, stream, slots.room(slot, size), lambda: slots.give_back(slot), world=world)
            known = values[0], values[1], world
            if len(_HEADERS) < _MOST_HEADERS:
                _HEADERS[header] = known
        rank, stream, world = known
        return cls(rank, stream, bytes(content[len(header) + 1 :]), world=world)


def _third(world: int) -> bytes:
    return b" %d" % world if world else b""


_HEADERS: dict[bytes, tuple[int, int, int]] = {}  # those that were read before
_MOST_HEADERS = 4096
_END, _COUNT = b"end ", Number(0, 1 << 62)
_HEADER = (Number(-RANKS, RANKS), Number(1, 2))
_LENT_HEADER = (*_HEADER, Number(0, SLOTS - 1), Number(1, SLOT_SIZE))
_WHOLE = (len(_HEADER), len(_HEADER) + 1)  # words of a header with or without a world
