"""Read what a run has recorded: the columns beside its journal, and the journal's own lines where these end.

``metrics.columns`` replaces the journal as far as its sums agree (`ezpz.track.column_blocks`); the rest is read as
JSON. A long journal without columns, such as those of older versions, gets them written beside it, where the folder may
be written and no process writes the run. The thread of a journal that is being written adds a block for each MiB.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from errno import ENOSPC
from stat import S_ISREG
from time import monotonic
from weakref import finalize

from ezpz.errors import TrackError
from ezpz.files import Replacement, open_closed, open_regular
from ezpz.track.column_blocks import STRETCH, Block, ParsedLines, pack, read_blocks, sums_agree
from ezpz.track.journal_reader import LONGEST_LINE, is_full, no_line, parse, read_stretch, tell_passed_over
from ezpz.track.step_states import SUM_COLUMNS

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ezpz.track.journal_reader import Row

COLUMNS = "metrics.columns"
_SHARE = 0.5  # seconds of each second that the columns of a running run may take
_PAUSE = 60.0  # seconds after a failure until the next attempt


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
    for kind in SUM_COLUMNS.values():
        if kind in more:
            m[kind] = {**m.get(kind, {}), **more[kind]}
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
    path = f"{folder}/{COLUMNS}"
    blocks, is_newer = known_blocks(path, journal.read, about)
    known = len(blocks)
    start = blocks[-1].end if blocks else 0
    lines = sum(block.lines for block in blocks)
    for part, crc in stretches(journal.read, start, about.st_size, name, lines):
        blocks.append(pack(part, crc))
        start = part.end
    if tell:
        _tell(name, blocks)
    if start >= STRETCH and (len(blocks) > known or not is_newer) and may_write():
        with suppress(OSError):  # no room, or not allowed: the next reader has the same work
            if len(blocks) > known:
                _write(path, blocks)
            else:
                os.utime(path)  # all sums agree: the next reader need not compare them
    return Stored(blocks, start, journal.read, (about.st_dev, about.st_ino))


class _Reader:
    """A file that stays open as long as somebody may read it."""

    def __init__(self, path: str) -> None:
        self.descriptor = open_regular(path)
        self._end = finalize(self, os.close, self.descriptor)

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, start)


def known_blocks(path: str, journal: Callable[[int, int], bytes], about: os.stat_result) -> tuple[list[Block], bool]:
    """Return the blocks of a file that stand for a journal as it is now.

    Args:
        path: The file of columns; one that is not there has none.
        journal: Returns so many bytes of the journal from an offset on.
        about: What the system knows of the journal.

    Returns:
        The blocks; and whether the file is newer than the journal, so that the ends were enough to compare.
    """
    try:
        reader = _Reader(path)
        # A copy that was put back may have any time of writing; that of its last change is the system's own.
        is_newer = os.fstat(reader.descriptor).st_mtime_ns >= max(about.st_mtime_ns, about.st_ctime_ns)
        with open(path, "rb", opener=open_regular) as file:  # a string is all that is needed
            found = read_blocks(file, reader.read)
    except OSError:
        return [], False
    for number, block in enumerate(found):
        needed = not is_newer or number in {0, len(found) - 1}
        if block.end > about.st_size or (needed and not sums_agree(block, journal)):
            return found[:number], False
    return found, is_newer


def stretches(
    read: Callable[[int, int], bytes], start: int, end: int, name: str, lines: int
) -> Iterator[tuple[ParsedLines, int]]:
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
        part = ParsedLines(start, start)
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
    """Write columns in one move, without waiting for the disk."""
    with Replacement(path, closed=True) as file:
        for block in blocks:
            file.write(block.whole())


class Columns:
    """The columns beside a journal that is being written.

    They may fail altogether. That costs one warning, and readers some time; the journal continues.

    Args:
        descriptor: The journal, open for reading too.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._done = 0  # bytes of the journal that the blocks of the file stand for
        self._lines = 0  # of the journal, in all blocks
        self._at = ("", -1)  # the file of columns, and its length
        self._not_before = 0.0
        self._has_warned = False

    def grow(self, journal: str, *, at_end: bool = False) -> None:
        """Add a block for each whole MiB that the journal has grown by, as far as there is time.

        Args:
            journal: Its path.
            at_end: Add the rest too: nothing will be written any more.
        """
        size = os.fstat(self._descriptor).st_size
        if size < STRETCH or (size - self._done < STRETCH and not at_end) or monotonic() < self._not_before:
            return
        path = os.path.join(os.path.dirname(journal), COLUMNS)  # noqa: PTH118, PTH120  # strings are all there is
        try:
            self._add(path, journal, size, at_end=at_end)
        # Whatever it is: the thread that comes here also has the journal's rows put on the disk.
        except Exception as error:  # noqa: BLE001
            self._not_before = monotonic() + _PAUSE
            self._tell(path, journal, error)

    def _add(self, path: str, journal: str, size: int, *, at_end: bool) -> None:
        start = monotonic()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            if not S_ISREG(os.lstat(path).st_mode):  # a link to somebody's file, a pipe: to be replaced
                os.unlink(path)  # noqa: PTH108  # strings are all there is
        with open(path, "ab", opener=lambda name, _: open_closed(name, flags)) as file:
            if self._at != (path, file.tell()):  # another one than we have left
                blocks, _ = known_blocks(path, self._read, os.fstat(self._descriptor))
                file.truncate(blocks[-1].stop if blocks else 0)
                self._done, self._lines = blocks[-1].end if blocks else 0, sum(block.lines for block in blocks)
            while at_end or (size - self._done >= STRETCH and monotonic() - start < _SHARE):
                part, crc = next(stretches(self._read, self._done, size, journal, self._lines), (None, 0))
                if part is None:
                    break
                self._at = ("", -1)  # until it is written
                data = pack(part, crc).whole()
                if os.write(file.fileno(), data) < len(data):
                    raise OSError(ENOSPC, "No space left on device")
                self._at = (path, file.seek(0, os.SEEK_END))
                self._done, self._lines = part.end, self._lines + part.lines
            if at_end:
                os.fsync(file.fileno())

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, start)

    def _tell(self, path: str, journal: str, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        from ezpz.log import get_logger  # `logging` costs 10 ms, which only a warning needs

        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        get_logger(__name__).warning(
            f"cannot write {path}: {reason}. Training continues, and {journal} has every row; reading this run takes "
            "longer."
        )
