"""Write the columns of a journal while it is being written.

The journal hands over what it has written, and the thread that syncs it makes a block of each MiB. Whatever comes in
between, such as a disk that was full, lines of somebody else or a journal that has rows already, is not pieced
together: the columns fall behind, and catch up by reading the journal, a bit each second. They may fail altogether.
That costs one warning, and readers some time; the journal continues.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from ezpz.files import open_closed
from ezpz.log import get_logger
from ezpz.track.blocks import STRETCH, Stretch, pack, seal
from ezpz.track.records import read_stretch
from ezpz.track.stored import COLUMNS, known_blocks, stretches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import RLock

    from ezpz.track.values import Value

_MOST_WAITING = 16  # stretches in memory, some 5 MB each
_SECONDS = 0.05  # that catching up may take of each second
_NEARLY = 1 << 16  # bytes of a journal that are read while its writer waits
_PAUSE = 60.0  # seconds after a failure until the next attempt


class Growing:
    """The columns beside an open journal. `add`, `skip` and `cut` are called with the journal's lock held.

    Args:
        journal: The path of the journal.
        descriptor: It, open for reading too.
        attempt: That of the rows that are to come.
        lock: Held by whoever writes it.

    Attributes:
        is_behind: Whether columns lack something that is in the journal and is not kept here.
        is_busy: Whether the journal is in the middle of a row; set by the journal.
    """

    def __init__(self, journal: str, descriptor: int, attempt: int, lock: RLock) -> None:
        self._journal = journal
        self._path = os.path.join(os.path.dirname(journal), COLUMNS)  # noqa: PTH118, PTH120  # strings are all there is
        self._descriptor = descriptor
        self._attempt = attempt
        self._lock = lock
        self.is_behind = os.fstat(descriptor).st_size > 0
        self.is_busy = False
        self._part = Stretch(0, 0)  # the end of the journal, as long as the columns are not behind
        self._full: deque[Stretch] = deque()
        self._is_known = False
        self._file = -1
        self._length = 0  # of the file of columns
        self._lines = 0  # of the journal, in all blocks
        self._done = 0  # bytes of the journal that the blocks of the file stand for
        self._not_before = 0.0
        self._has_warned = False
        self._is_elsewhere = False

    def follow(self, journal: str, *, anew: bool) -> None:
        """Know the path of a journal that was renamed, or made anew, as the columns then are too."""
        self._journal = journal
        self._path = os.path.join(os.path.dirname(journal), COLUMNS)  # noqa: PTH118, PTH120  # as above
        if anew:
            self.skip()
            self._is_elsewhere = True  # for the thread that has the file open

    def add(self, size: int, time: float, step: int, kind: str, values: Mapping[str, Value]) -> bool:
        """Take a line that the journal has written.

        Args:
            size: Its bytes.
            time: Epoch seconds.
            step: The caller's step.
            kind: Empty, ``late``, ``ranks``, ``sections`` or ``seen``.
            values: The metrics as they are, not as JSON; of the last three they are not looked at.

        Returns:
            Whether there is enough for `work`.
        """
        if self.is_behind:
            return False
        part = self._part
        if kind == "ranks":
            part.windows.append((part.end, size))
        elif kind in {"sections", "seen"}:
            part.lines += 1  # a line of no metrics
        else:
            part.records.add(time, step, self._attempt, kind == "late", values)
        part.end += size
        return part.end - part.start >= STRETCH and self._cut()

    def skip(self) -> None:
        """Forget what is kept: what the journal writes from now on is read there."""
        self.is_behind = True
        self._part = Stretch(0, 0)

    def _cut(self) -> bool:
        """Let what was taken so far become a block."""
        part = self._part
        if len(self._full) >= _MOST_WAITING or os.fstat(self._descriptor).st_size != part.end:
            self.skip()  # a slow disk; or somebody else has written into the journal
            return False
        part.lines += len(part.records) + len(part.windows)
        self._part = Stretch(part.end, part.end)
        self._full.append(part)
        return True

    def work(self) -> None:
        """Write what there is to write, in the journal's own thread."""
        if monotonic() < self._not_before:
            return
        if self._is_elsewhere:
            self._is_elsewhere = self._is_known = False
            self._full.clear()
            self.close()
        try:
            while self._full:
                self._look()
                part = self._full.popleft()
                if part.start == self._done:
                    self._write(part, zlib.crc32(self._read(part.start, part.end - part.start)))
            if self.is_behind:
                self._catch_up()
        # Whatever it is: the thread that comes here also has the journal's rows put on the disk.
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, start)

    def _catch_up(self) -> None:
        """Read what the columns lack in the journal, as far as there is time, and go on from there if that is all."""
        self._look()
        start, size = monotonic(), os.fstat(self._descriptor).st_size
        rest: Stretch | None = None
        for part, crc in stretches(self._read, self._done, size, self._journal, self._lines):
            if size - part.start < STRETCH:  # the last one: more may be added to it
                rest = part
                break
            self._write(part, crc)
            if monotonic() - start > _SECONDS:
                return
        with self._lock:
            end, size = rest.end if rest else self._done, os.fstat(self._descriptor).st_size
            if size - end > _NEARLY:
                return
            data = self._read(end, size - end)
            if data and not data.endswith(b"\n"):
                return
            part = rest or Stretch(end, end)
            read_stretch(data, part, (self._journal, self._lines))
            part.lines -= len(part.records) + len(part.windows)  # these are counted at the end
            self._part, self.is_behind = part, False

    def _look(self) -> None:
        """See, once, how much of the journal the file that is there holds."""
        if self._is_known:
            return
        about = os.fstat(self._descriptor)
        blocks, _, length = known_blocks(self._path, self._read, [about.st_size, about.st_mtime_ns])
        self._done, self._length = (blocks[-1].end, length) if blocks else (0, 0)
        self._lines = sum(block.lines for block in blocks)
        self._is_known = True

    def _open(self) -> None:
        """Open the file, made when absent, at the end of the blocks that hold the journal."""
        if self._file >= 0:
            return
        if not self._length:
            with suppress(FileNotFoundError):  # one of another journal; who reads it keeps it
                os.unlink(self._path)  # noqa: PTH108  # a string is all there is
        self._file = open_closed(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        os.ftruncate(self._file, self._length)  # a block that was cut off

    def _write(self, part: Stretch, crc: int) -> None:
        self._open()
        data = pack(part, crc).whole()
        self._append(data)
        self._length += len(data)
        self._done = part.end
        self._lines += part.lines

    def _append(self, data: bytes) -> None:
        done = 0
        while done < len(data):  # once, except on a disk that is filling up
            done += os.write(self._file, data[done:])

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self.skip()
        self._full.clear()
        self.close()
        self._is_known = False
        self._not_before = monotonic() + _PAUSE
        if not self._has_warned:
            self._has_warned = True
            reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            get_logger(__name__).warning(
                f"cannot write {self._path}: {reason}. Training continues, and {self._journal} has every row; reading "
                f"this run takes longer."
            )

    def finish(self) -> None:
        """Write what is kept, and have it on the disk: the journal is complete."""
        if self.is_behind:
            self.work()
        with self._lock:
            if not self.is_behind and self._part.end > self._part.start and (self._done or self._part.end >= STRETCH):
                self._cut()
        self.work()
        about = os.fstat(self._descriptor)
        if self._file < 0 or self.is_behind or self._done != about.st_size:
            return
        try:
            os.fsync(self._file)
            self._append(seal(about.st_size, about.st_mtime_ns))
            os.fsync(self._file)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file, as a forked child must, without a word to the disk."""
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1
