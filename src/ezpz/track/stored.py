"""Read what a run has recorded: the columns beside its journal, and the journal's own lines where these end.

``metrics.columns`` replaces the journal as far as its sums agree (`ezpz.track.blocks`); the rest is read as JSON. A
long journal without columns, such as those of older versions, gets them written beside it, where the folder may be
written and no process writes the run.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from weakref import finalize

from ezpz.errors import TrackError
from ezpz.files import Replacement, open_regular
from ezpz.track.blocks import STRETCH, Block, Stretch, pack, read_blocks, seal, sums_agree
from ezpz.track.records import LONGEST_LINE, is_full, no_line, parse, read_stretch, tell_passed_over

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ezpz.track.records import Row

COLUMNS = "metrics.columns"


class Stored:
    """A journal as it was when it was read.

    Attributes:
        blocks: All of it, oldest first: blocks of the file, then the rest in memory.
        end: The first byte of the journal that no block holds: a line in the making, or nothing.
        read: Returns so many bytes of the journal from an offset on.
        inode: Device and inode of the journal.
    """

    def __init__(
        self, blocks: list[Block], end: int, read: Callable[[int, int], bytes], inode: tuple[int, int]
    ) -> None:
        self.blocks = blocks
        self.end = end
        self.read = read
        self.inode = inode

    def windows(self) -> list[Row]:
        """Return the records over all ranks, in the order of writing; pieces of one are put together again."""
        rows: list[Row] = []
        was_full = False
        for start, size in (window for block in self.blocks for window in block.windows):
            try:
                row = parse(self.read(start, size), "")
            except ValueError:  # changed since it was read
                continue
            if row is None or row["k"] != "ranks":
                continue
            joins = was_full and _join(rows[-1], row)
            was_full = is_full(row["m"])
            if not joins:
                rows.append(row)
        return rows


def _join(row: Row, following: Row) -> bool:
    """Add the steps of a record to those of the one before, if both are parts of one; tell whether they were."""
    m, more = row["m"], following["m"]
    keys = m["keys"]
    if row["a"] != following["a"] or m["world"] != more["world"] or more["steps"][0] <= m["steps"][-1]:
        return False
    if "held" not in m or "held" not in more or keys.keys() != more["keys"].keys():
        return False
    if not all(_are_alike(keys[key], entry, len(more["steps"])) for key, entry in more["keys"].items()):
        return False
    row["t"], row["step"] = following["t"], following["step"]
    m["steps"] += more["steps"]
    m["held"] += more["held"]
    if "batches" in more:
        m["batches"] = {**m.get("batches", {}), **more["batches"]}
    for key, entry in more["keys"].items():
        for part, values in entry.items():
            if part == "ranks":
                for ours, theirs in zip(keys[key][part], values, strict=True):
                    ours.extend(theirs)
            else:
                keys[key][part] += values
    return True


def _are_alike(entry: dict[str, Any], more: dict[str, Any], steps: int) -> bool:
    if entry.keys() != more.keys() or len(entry.get("ranks", ())) != len(more.get("ranks", ())):
        return False
    return all(len(values) == steps for part, values in more.items() if part != "ranks") and all(
        len(values) == steps for values in more.get("ranks", ())
    )


def read_stored(folder: str, may_write: Callable[[], bool], *, tell: bool = True) -> Stored:
    """Read a run.

    Args:
        folder: The run folder.
        may_write: Tells whether columns may be written there; asked only where some lack.
        tell: Say which lines are no records.

    Raises:
        TrackError: There is no journal, or a version of ezpz wrote it that is not known here.
    """
    name = f"{folder}/metrics.jsonl"
    try:
        journal = _Reader(name)
        about = os.fstat(journal.descriptor)
    except OSError as error:
        raise TrackError(f"cannot read the journal {name}: {error.strerror}; expected a metrics.jsonl.") from error
    was = [about.st_size, about.st_mtime_ns]
    path = f"{folder}/{COLUMNS}"
    blocks, sealed, length = known_blocks(path, journal.read, was)
    known = len(blocks)
    start = blocks[-1].end if blocks else 0
    lines = sum(block.lines for block in blocks)
    for part, crc in stretches(journal.read, start, about.st_size, name, lines):
        blocks.append(pack(part, crc))
        start = part.end
    if tell:
        _tell(name, blocks)
    if start >= STRETCH and (len(blocks) > known or not sealed) and may_write():
        with suppress(OSError):  # no room, or not allowed: the next reader has the same work
            if len(blocks) > known:
                _write(path, blocks)
            else:
                _seal(path, length, was)
    return Stored(blocks, start, journal.read, (about.st_dev, about.st_ino))


class _Reader:
    """A file that stays open as long as somebody may read it."""

    def __init__(self, path: str) -> None:
        self.descriptor = open_regular(path)
        self._end = finalize(self, os.close, self.descriptor)

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, start)


def known_blocks(path: str, journal: Callable[[int, int], bytes], was: list[int]) -> tuple[list[Block], bool, int]:
    """Return the blocks of a file that stand for a journal as it is now.

    Args:
        path: The file of columns; one that is not there has none.
        journal: Returns so many bytes of the journal from an offset on.
        was: Size and modification time of the journal.

    Returns:
        The blocks; whether the file was complete when the journal was as it is now; and how many bytes of the file are
        these blocks and no more.
    """
    try:
        reader = _Reader(path)
        with open(path, "rb", opener=open_regular) as file:  # a string is all that is needed
            found, sealed, position = read_blocks(file, reader.read)
    except OSError:
        return [], False, 0
    is_sealed = sealed == was
    blocks: list[Block] = []
    for number, block in enumerate(found):
        # Of a sealed file the ends are enough: that it is of this journal at all.
        needed = not is_sealed or number in {0, len(found) - 1}
        if block.end > was[0] or (needed and not sums_agree(block, journal)):
            is_sealed = False
            break
        blocks.append(block)
    return blocks, is_sealed, position if len(blocks) == len(found) else blocks[-1].stop if blocks else 0


def stretches(
    read: Callable[[int, int], bytes], start: int, end: int, name: str, lines: int
) -> Iterator[tuple[Stretch, int]]:
    """Yield what a journal says from a byte on, in stretches of about 1 MiB, each with the sum of its bytes.

    Args:
        read: Returns so many bytes of the journal from an offset on.
        start: Where a line begins.
        end: Read no further; bytes after the last newline are a line in the making.
        name: The journal, for errors.
        lines: How many lines are before ``start``, for errors.

    Raises:
        TrackError: A line is of a version that is not known here, or longer than any.
    """
    size = STRETCH
    while start < end:
        data = read(start, min(size, end - start))
        whole = data.rfind(b"\n") + 1
        if not whole:
            if len(data) < size:
                return
            if size >= LONGEST_LINE:
                raise no_line(name)
            size *= 2  # a line of many ranks
            continue
        data = data[:whole]
        part = Stretch(start, start)
        read_stretch(data, part, (name, lines))
        yield part, zlib.crc32(data)
        start, lines, size = part.end, lines + part.lines, STRETCH


def _tell(name: str, blocks: list[Block]) -> None:
    torn, foreign, lines, first = 0, 0, 0, ""
    for block in blocks:
        torn += block.torn
        foreign += block.foreign
        if block.at and not first:
            first = f"{name}:{lines + block.at}"
        lines += block.lines
    tell_passed_over(name, torn, foreign, first)


def _write(path: str, blocks: list[Block]) -> None:
    """Write columns in one move, without waiting for the disk; whoever reads them next compares the sums."""
    with Replacement(path, closed=True) as file:
        for block in blocks:
            file.write(block.whole())


def _seal(path: str, length: int, was: list[int]) -> None:
    """Seal a file all of whose sums agree, as soon as it is on the disk."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if os.fstat(descriptor).st_size == length:
            os.write(descriptor, seal(*was))
    finally:
        os.close(descriptor)
