"""Hold a stretch of a journal as columns: the blocks of which ``metrics.columns`` is made.

The file repeats what ``metrics.jsonl`` says, in a form that is read a hundred times faster. It may be missing, short or
removed at any time: the journal is the truth, and what no block covers is read there. A block is one line of JSON,
then ``bytes`` bytes of data, all numbers little-endian:

    {"v":1,"from":0,"to":1048613,"crc":123,"lines":5012,"torn":0,"foreign":0,"at":0,"records":5012,"attempt":1,
     "late":0,"windows":[],"bytes":401224,"columns":[["loss","float",5012,0,40096],…],"sum":456}

    from, to    the bytes of the journal that it holds: whole lines, the first block from byte 0 on, each other one
                from where the one before it ends
    crc, sum    zlib.crc32 of these bytes of the journal, and of the line up to ``,"sum"`` with the data after it; a
                block whose sums differ counts as missing, and so do those after it
    lines       lines of the journal in it, empty ones too
    torn        those that a crash tore; ``foreign``, those that are no record, the first of them line ``at`` of the
                block (from 1)
    records     rows of metrics in it, and late values of earlier rows, in the order of the journal
    attempt     the attempt of all of them; null where there are several
    late        how many of the records are values that came late
    windows     ``[first byte in the journal, bytes]`` of each record over all ranks
    columns     ``[metric, kind, values, sparse, bytes]``: ``sparse`` is 0 where every record has a value; a metric
                whose values are of several kinds has a column for each

The data, one part after the other without gaps: the time of each record (float64), its step (int64), its attempt
(int64; none where ``attempt`` is a number), the numbers of the late records (uint32, from 0), then for each column the
numbers of the records that have a value (uint32, only where ``sparse`` is 1, in any order) and the values: ``float`` as
float64, ``int`` as int64, ``bool`` as uint8, and ``digits`` (ints of more than 64 bits), ``str``, ``list`` and
``histogram`` as the journal's JSON, each ended by a newline.

A line ``{"v":1,"seal":[size, time],"bytes":0}`` at the end says that the file was on the disk when the journal had this
size in bytes and this modification time in nanoseconds. As long as both are the same, the sums need not be looked at.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.values import Histogram, encode, is_int64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import BufferedReader

    from ezpz.track.values import Value

VERSION = 1
STRETCH = 1 << 20  # bytes of a journal that become one block
_LONGEST_LINE = 1 << 24  # of a block's own line; one of a thousand metrics has 60 KB
_WIDTHS = {"float": 8, "int": 8, "bool": 1}
_TEXTS = {"digits", "str", "list", "histogram"}
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class Records:
    """Rows of metrics, and late values of earlier ones, in the order of writing, without an object for each.

    Attributes:
        times: Epoch seconds.
        steps: The callers' steps.
        attempts: The attempts.
        late: The numbers of those that are late values.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.steps: list[int] = []
        self.attempts: list[int] = []
        self.late: list[int] = []
        # Metrics to the values of all records that have just these, one record after the other, and their numbers.
        self._groups: dict[tuple[str, ...], tuple[list[Value], list[range]]] = {}
        self._shape: tuple[str, ...] = ()
        self._values: list[Value] = []
        self._since = 0  # the first record of the newest group, without one of another group after it

    def __len__(self) -> int:
        return len(self.times)

    def add(
        self, time: float, step: int, attempt: int, is_late: bool, values: Mapping[str, Value]
    ) -> None:  # of each row
        """Add a record."""
        shape = tuple(values)
        if shape != self._shape:
            self._turn(shape)
        self._values += values.values()
        if is_late:
            self.late.append(len(self.times))
        self.steps.append(step)
        self.attempts.append(attempt)
        self.times.append(time)

    def _turn(self, shape: tuple[str, ...]) -> None:
        """Go on with records of other metrics."""
        if len(self.times) > self._since:
            self._groups.setdefault(self._shape, (self._values, []))[1].append(range(self._since, len(self.times)))
        self._shape, self._since = shape, len(self.times)
        self._values = self._groups[shape][0] if shape in self._groups else []

    def by_key(self) -> list[tuple[str, list[int] | None, Sequence[Value]]]:
        """Return each metric in the order of coming, the numbers of its records (None: all), and its values."""
        self._turn(())
        groups = {shape: group for shape, group in self._groups.items() if shape}
        if len(self._groups) == 1:  # nearly always: turned over without looking at single values
            return [
                (key, None, values[place :: len(shape)])
                for shape, (values, _) in groups.items()
                for place, key in enumerate(shape)
            ]
        held: dict[str, tuple[list[int], list[Value]]] = {}
        for shape, (values, ranges) in groups.items():
            numbers = list(chain.from_iterable(ranges))
            for place, key in enumerate(shape):
                known = held.setdefault(key, ([], []))
                known[0].extend(numbers)
                known[1].extend(values[place :: len(shape)])
        return [(key, numbers, values) for key, (numbers, values) in held.items()]


@dataclass
class Stretch:
    """Whole lines of a journal, read.

    Attributes:
        start: The first byte.
        end: One more than the last.
        records: The rows, and values that came late.
        windows: First byte and number of bytes of each record over all ranks.
        lines: How many lines, empty ones too.
        torn: Lines that a crash tore.
        foreign: Lines that are no record; ``at`` is the first of them, counted from 1.
    """

    start: int
    end: int
    records: Records = field(default_factory=Records)
    windows: list[tuple[int, int]] = field(default_factory=list)
    lines: int = 0
    torn: int = 0
    foreign: int = 0
    at: int = 0


class Column(NamedTuple):
    """A part of a block: the values of one kind that one metric has in it.

    Attributes:
        key: The metric.
        kind: ``float``, ``int``, ``bool``, ``digits``, ``str``, ``list`` or ``histogram``.
        held: How many values.
        sparse: Where the numbers of their records begin in the data; -1 where every record has a value.
        start: Where the values begin.
        size: Their bytes.
    """

    key: str
    kind: str
    held: int
    sparse: int
    start: int
    size: int


@dataclass
class Block:
    """A block: what its line says, and how to come by its data.

    Attributes:
        start: First byte of the journal that it holds.
        end: One more than the last.
        crc: Sum of these bytes.
        lines: Lines of the journal in it.
        torn: Those that a crash tore.
        foreign: Those that are no record, the first of them line ``at`` of the block.
        records: Rows and late values.
        attempt: That of all records; None where there are several.
        late: How many records are late values.
        windows: First byte and number of bytes, in the journal, of each record over all ranks.
        size: Bytes of the data.
        columns: The metrics.
        read: Returns so many bytes of the data from an offset on.
        sum: Sum of the line and the data.
        head: The line up to the sum.
        stop: Where in its file it ends.
    """

    start: int
    end: int
    crc: int
    lines: int
    torn: int
    foreign: int
    at: int
    records: int
    attempt: int | None
    late: int
    windows: list[tuple[int, int]]
    size: int
    columns: list[Column]
    read: Callable[[int, int], bytes] = lambda _start, _size: b""
    sum: int = 0
    head: bytes = b""
    stop: int = 0

    def summed(self) -> Block:
        """Make its line and its sum of all else, and return it."""
        named = {"v": VERSION, "from": self.start, "to": self.end, "crc": self.crc, "lines": self.lines}
        counted = {"torn": self.torn, "foreign": self.foreign, "at": self.at, "records": self.records}
        about = {"attempt": self.attempt, "late": self.late, "windows": self.windows}
        columns = [[each.key, each.kind, each.held, int(each.sparse >= 0), each.size] for each in self.columns]
        self.head = _dumps({**named, **counted, **about, "bytes": self.size, "columns": columns})[:-1].encode()
        self.sum = zlib.crc32(self.read(0, self.size), zlib.crc32(self.head))
        return self

    def whole(self) -> bytes:
        """Return all of it as it is in the file."""
        return b'%b,"sum":%d}\n%b' % (self.head, self.sum, self.read(0, self.size))


def seal(size: int, modified: int) -> bytes:
    """Return the line that says what the journal was like when the file was complete: bytes and nanoseconds."""
    return (_dumps({"v": VERSION, "seal": [size, modified], "bytes": 0}) + "\n").encode()


def pack(part: Stretch, crc: int) -> Block:
    """Turn a stretch of a journal into a block that lies in memory.

    Args:
        part: The stretch.
        crc: ``zlib.crc32`` of its bytes.
    """
    records = part.records
    one = len(set(records.attempts)) <= 1
    late = records.late
    parts = [_raw("d", records.times), _raw("q", records.steps)]
    parts += [b"" if one else _raw("q", records.attempts), _raw("I", late)]
    offset = sum(map(len, parts))
    columns = []
    for key, numbers, values in records.by_key():
        for kind, places, raw in _by_kind(values):
            held = numbers if places is None else places if numbers is None else [numbers[place] for place in places]
            count = len(values) if places is None else len(places)
            sparse = -1
            if held is not None:
                parts.append(_raw("I", held))
                sparse = offset
                offset += len(parts[-1])
            parts.append(raw)
            columns.append(Column(key, kind, count, sparse, offset, len(raw)))
            offset += len(raw)
    data = b"".join(parts)
    return Block(
        start=part.start,
        end=part.end,
        crc=crc,
        lines=part.lines,
        torn=part.torn,
        foreign=part.foreign,
        at=part.at,
        records=len(records),
        attempt=None if not one else records.attempts[0] if records else 1,
        late=len(late),
        windows=part.windows,
        size=len(data),
        columns=columns,
        read=lambda start, size: data[start : start + size],
    ).summed()


def _raw(kind: str, numbers: Sequence[Any]) -> bytes:
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _by_kind(values: Sequence[Value]) -> list[tuple[str, list[int] | None, bytes]]:
    """Return for each kind the places of its values (None: all), and what they are in the file."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        raw = _raw_values(next(iter(kinds)), values)
        if raw is not None:
            return [(raw[0], None, raw[1])]
    places: dict[tuple[type, bool], list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault((type(value), type(value) is not int or is_int64(value)), []).append(place)
    found: list[tuple[str, list[int] | None, bytes]] = []
    for (kind, short), held in places.items():
        name, data = _raw_values(kind if short else None, [values[place] for place in held]) or ("", b"")
        found.append((name, held, data))
    return found


def _raw_values(kind: type | None, values: Sequence[Any]) -> tuple[str, bytes] | None:
    """Return the name of a kind and its values as they are in the file; None for ints that need more than 64 bits."""
    if kind is float:
        return "float", _raw("d", values)
    if kind is int:
        try:
            return "int", _raw("q", values)
        except OverflowError:
            return None
    if kind is bool:
        return "bool", bytes(values)
    name = "digits" if kind is None else "histogram" if kind is Histogram else kind.__name__
    return name, "".join(f"{_dumps(encode(value))}\n" for value in values).encode()


# Reading blocks. A file may be anybody's, and a crash may have left anything at its end: what is not as described above
# ends the file.


def read_blocks(file: BufferedReader, read: Callable[[int, int], bytes]) -> tuple[list[Block], list[int] | None, int]:
    """Read the lines of a file of blocks, not their data.

    Args:
        file: The file, at its start.
        read: Returns so many bytes of the file from an offset on.

    Returns:
        The blocks, as far as each begins where the one before it ends; what the seal says, if the file ends with one;
        and where the file ceases to be what it should be, its length if it does not. The sums have not been compared.
    """
    blocks: list[Block] = []
    sealed: list[int] | None = None
    length = file.seek(0, 2)
    position = file.seek(0)
    while position < length:
        line = file.readline(_LONGEST_LINE)
        try:
            about = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            break
        if not isinstance(about, dict) or about.get("v") != VERSION:
            break
        sealed = _seal_of(about)
        begin = position + len(line)
        if sealed is None:
            block = _block_of(about, blocks[-1].end if blocks else 0)
            if block is None or begin + block.size > length:
                break
            block.read, block.head = _shifted(read, begin), line[: line.rfind(b',"sum":')]
            blocks.append(block)
            begin = block.stop = begin + block.size
        position = file.seek(begin)
    return blocks, sealed if position == length else None, position


def _shifted(read: Callable[[int, int], bytes], begin: int) -> Callable[[int, int], bytes]:
    return lambda start, size: read(begin + start, size)


def _seal_of(about: dict[str, Any]) -> list[int] | None:
    numbers = about.get("seal")
    if isinstance(numbers, list) and len(numbers) == 2 and all(type(number) is int for number in numbers):
        return numbers
    return None


def _block_of(about: dict[str, Any], start: int) -> Block | None:
    """Return the block that a line describes; None if it describes none that begins there."""
    names = ("from", "to", "crc", "lines", "torn", "foreign", "at", "records", "late", "bytes", "sum")
    counts = [about.get(name) for name in names]
    attempt, windows, listed = about.get("attempt"), about.get("windows"), about.get("columns")
    if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
        return None
    if not (attempt is None or (type(attempt) is int and 0 < attempt < 1 << 63)):
        return None
    begin, end, crc, lines, torn, foreign, at, records, late, size, total = map(int, counts)  # type: ignore[arg-type]  # ints
    if begin != start or end <= begin or late > records or not isinstance(windows, list):
        return None
    pairs = [(pair[0], pair[1]) for pair in windows if _is_pair(pair, begin, end)]
    columns = _columns_of(listed, records * (16 if attempt else 24) + 4 * late, records, size)
    if len(pairs) < len(windows) or columns is None:
        return None
    return Block(begin, end, crc, lines, torn, foreign, at, records, attempt, late, pairs, size, columns, sum=total)


def _is_pair(pair: Any, begin: int, end: int) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)):
        return False
    return bool(begin <= pair[0] < pair[0] + pair[1] <= end)


def _columns_of(listed: Any, offset: int, records: int, size: int) -> list[Column] | None:
    """Return the columns of a block's data of ``size`` bytes, the first of them at ``offset``; None where none fit."""
    columns = []
    for entry in listed if isinstance(listed, list) else ():
        if not (isinstance(entry, list) and [type(each) for each in entry] == [str, str, int, int, int]):
            return None
        key, kind, count, sparse, taken = entry
        if not (0 < count <= records and sparse in {0, 1} and taken >= 0 and (sparse or count == records)):
            return None
        if kind not in _TEXTS and taken != count * _WIDTHS.get(kind, -1):
            return None
        start = offset + 4 * count * sparse
        columns.append(Column(key, kind, count, offset if sparse else -1, start, taken))
        offset = start + taken
    return columns if isinstance(listed, list) and offset == size else None


def sums_agree(block: Block, journal: Callable[[int, int], bytes]) -> bool:
    """Tell whether a block's data is whole, and its stretch of the journal is still what it was made from.

    Args:
        block: The block.
        journal: Returns so many bytes of the journal from an offset on.
    """
    crc = 0
    for start in range(block.start, block.end, STRETCH):
        crc = zlib.crc32(journal(start, min(STRETCH, block.end - start)), crc)
    return crc == block.crc and zlib.crc32(block.read(0, block.size), zlib.crc32(block.head)) == block.sum
