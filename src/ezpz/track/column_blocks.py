"""Hold a stretch of a journal as columns: the blocks of which ``metrics.columns`` is made.

The file repeats what ``metrics.jsonl`` says, in a form that is read a hundred times faster. It may be missing, short or
removed at any time: the journal is the truth, and what no block covers is read there. A block is one line of JSON,
then ``size`` bytes of data, all numbers little-endian:

    [456,{"v":2,"start":0,"end":1048613,"crc":123,"lines":5012,"torn":0,"foreign":0,"at":0,"records":5012,"size":401224,
     "windows":[],"columns":[["loss","float",5012,0,40096],…]}]

    456         zlib.crc32 of the object as it stands there, with the data after it
    start, end  the bytes of the journal that it holds: whole lines, the first block from byte 0 on, each other one
                from where the one before it ends
    crc         zlib.crc32 of these bytes of the journal; a block whose sums differ counts as missing, and so do those
                after it
    lines       lines of the journal in it, empty ones too
    torn        those that a crash tore; ``foreign``, those that are no record, the first of them line ``at`` of the
                block (from 1)
    records     rows of metrics in it, and late values of earlier rows, in the order of the journal
    windows     ``[first byte in the journal, bytes]`` of each record over all ranks
    columns     ``[metric, kind, values, sparse, bytes]``: ``sparse`` is 0 where every record has a value

The data, one part after the other without gaps: of each record the time (float64), the step (int64), the attempt
(int64) and whether it is a late value (uint8), then for each column the numbers of the records that have a value
(uint32, from 0, only where ``sparse`` is 1, in any order) and the values: ``float`` as float64, ``int`` as int64, and
all else, such as ``json bool float``, as one list of JSON, with values as the journal has them.

The sums of the blocks between the first and the last are compared only where the journal is newer than the file.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.values import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import BufferedReader

    from ezpz.track.values import Value

VERSION = 2
STRETCH = 1 << 20  # bytes of a journal that become one block
OF_RECORDS = {"times": "<f8", "steps": "<i8", "attempts": "<i8", "late": "u1"}  # what a block's data begins with
_OF_RECORD = 25  # their bytes
_LONGEST_LINE = 1 << 24  # of a block's own line; one of a thousand metrics has 60 KB
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class Records:
    """Rows of metrics, and late values of earlier ones, in the order of writing, without an object for each.

    Attributes:
        times: Epoch seconds.
        steps: The callers' steps.
        attempts: The attempts.
        late: 1 for those that are late values, else 0.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.steps: list[int] = []
        self.attempts: list[int] = []
        self.late = bytearray()
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
        self.late.append(is_late)
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
class ParsedLines:
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
    """A part of a block: the values of one metric.

    Attributes:
        key: The metric.
        kind: ``float``, ``int``, or ``json`` and the types of the values, such as ``json bool float``.
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
    """A block: what its line says, which the top of this module explains, and how to come by its data.

    Attributes:
        columns: The metrics.
        read: Returns so many bytes of the data from an offset on.
        head: The object in the line.
        sum: Sum of that and the data.
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
    size: int
    windows: Sequence[Sequence[int]]
    columns: list[Column]
    read: Callable[[int, int], bytes]
    head: bytes
    sum: int = 0
    stop: int = 0

    def data_sum(self) -> int:
        """Return what ``sum`` must be."""
        return zlib.crc32(self.read(0, self.size), zlib.crc32(self.head))

    def whole(self) -> bytes:
        """Return all of it as it is in the file."""
        return b"[%d,%b]\n%b" % (self.data_sum(), self.head, self.read(0, self.size))


_COUNTS = ("start", "end", "crc", "lines", "torn", "foreign", "at", "records", "size")


def pack(part: ParsedLines, crc: int) -> Block:
    """Turn a stretch of a journal into a block that lies in memory.

    Args:
        part: The stretch.
        crc: ``zlib.crc32`` of its bytes.
    """
    records, columns = part.records, []
    parts = [_raw("d", records.times), _raw("q", records.steps), _raw("q", records.attempts), bytes(records.late)]
    for key, numbers, values in records.by_key():
        kind, raw = _raw_values(values)
        columns.append([key, kind, len(values), int(numbers is not None), len(raw)])
        parts += [_raw("I", numbers or ()), raw]
    data = b"".join(parts)
    counts = (part.start, part.end, crc, part.lines, part.torn, part.foreign, part.at, len(records), len(data))
    about = {"v": VERSION, **dict(zip(_COUNTS, counts, strict=True)), "windows": part.windows, "columns": columns}
    block = _block_of(about, part.start, _dumps(about).encode(), lambda start, size: data[start : start + size])
    assert block is not None
    return block


def _raw(kind: str, numbers: Sequence[Any]) -> bytes:
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _raw_values(values: Sequence[Value]) -> tuple[str, bytes]:
    """Return the kind of a column, and its values as they are in the file."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return "float", _raw("d", values)
    if kinds == {int}:
        try:
            return "int", _raw("q", values)
        except OverflowError:  # more than 64 bits
            pass
    names = sorted(kind.__name__ for kind in kinds)
    return f"json {' '.join(names)}", _dumps([encode(value) for value in values]).encode()


# Reading blocks. A file may be anybody's, and a crash may have left anything at its end: what is not as described above
# ends the file.


def read_blocks(file: BufferedReader, read: Callable[[int, int], bytes]) -> list[Block]:
    """Read the lines of a file of blocks, not their data, as far as each begins where the one before it ends.

    Args:
        file: The file.
        read: Returns so many bytes of the file from an offset on.
    """
    blocks: list[Block] = []
    length = file.seek(0, 2)
    position = file.seek(0)
    while position < length:
        line = file.readline(_LONGEST_LINE)
        begin = position + len(line)
        try:
            total, about = json.loads(line)
        except (ValueError, RecursionError, TypeError):
            break
        head = line[line.find(b"{") : -2]
        block = _block_of(about, blocks[-1].end if blocks else 0, head, _shifted(read, begin))
        if block is None or type(total) is not int or begin + block.size > length:
            break
        block.sum, block.stop = total, begin + block.size
        blocks.append(block)
        position = file.seek(block.stop)
    return blocks


def _shifted(read: Callable[[int, int], bytes], begin: int) -> Callable[[int, int], bytes]:
    return lambda start, size: read(begin + start, size)


def _block_of(about: Any, start: int, head: bytes, read: Callable[[int, int], bytes]) -> Block | None:
    """Return the block that an object describes; None if it describes none that begins there."""
    if not isinstance(about, dict) or about.get("v") != VERSION:
        return None
    counts = {name: about.get(name) for name in _COUNTS}
    windows = about.get("windows")
    if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts.values()):
        return None
    block = Block(**counts, windows=(), columns=[], read=read, head=head)  # type: ignore[arg-type]  # ints, as was seen
    if block.start != start or block.end < start or not isinstance(windows, list):
        return None
    if not all(_is_window(window, block) for window in windows):
        return None
    columns = _columns_of(about.get("columns"), block)
    if columns is None:
        return None
    block.windows, block.columns = windows, columns
    return block


def _is_window(pair: Any, block: Block) -> bool:
    if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(number) is int for number in pair)):
        return False
    return bool(block.start <= pair[0] < pair[0] + pair[1] <= block.end)


def _columns_of(listed: Any, block: Block) -> list[Column] | None:
    """Return the columns of a block; None where the data has not just these."""
    columns, offset = [], _OF_RECORD * block.records
    for entry in listed if isinstance(listed, list) else ():
        if not (isinstance(entry, list) and [type(each) for each in entry] == [str, str, int, int, int]):
            return None
        key, kind, count, sparse, taken = entry
        if not (0 < count <= block.records and sparse in {0, 1} and taken >= 0 and (sparse or count == block.records)):
            return None
        if not kind.startswith("json ") and (kind not in {"float", "int"} or taken != 8 * count):
            return None
        start = offset + 4 * count * sparse
        columns.append(Column(key, kind, count, offset if sparse else -1, start, taken))
        offset = start + taken
    return columns if isinstance(listed, list) and offset == block.size else None


def sums_agree(block: Block, journal: Callable[[int, int], bytes]) -> bool:
    """Tell whether a block is whole, and its stretch of the journal is still what it was made from.

    Args:
        block: The block.
        journal: Returns so many bytes of the journal from an offset on.
    """
    crc = 0
    for start in range(block.start, block.end, STRETCH):
        crc = zlib.crc32(journal(start, min(STRETCH, block.end - start)), crc)
    return crc == block.crc and block.data_sum() == block.sum
