"""Follow a run that still writes: read its journal again and again until it has ended."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError
from ezpz.files import open_regular
from ezpz.track.column_blocks import STRETCH
from ezpz.track.journal_reader import LONGEST_LINE, no_line, parse
from ezpz.track.names import is_counter
from ezpz.track.recorded_rows import read_stored
from ezpz.track.run_reader import Run, open_run
from ezpz.track.series import Series
from ezpz.track.table import as_float, counted, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ezpz.track.journal_reader import Row
    from ezpz.track.recorded_rows import Stored
    from ezpz.track.table import Table

_PIECE = 1 << 24  # bytes of a journal that are read at a time


class Tail:
    """Follow a journal that grows.

    The file is opened anew for each look: NFS shows a reader what was written before that, and a file that took the
    other's place is noticed. No lock is taken, so that a read-only folder of somebody else can be followed too.

    Attributes:
        path: The journal.
        restarts: How often the file was another one, or shorter than before; its records then came from the start
            again.
        passed: Lines so far that are no record: torn by a crash, or somebody else's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.restarts = 0
        self.passed = 0
        self._inode: tuple[int, int] | None = None
        self._offset = 0
        self._open_line = b""  # bytes after the last newline: a record in the making

    def go_on(self, stored: Stored) -> None:
        """Begin where a reader of the journal has ended."""
        self._inode, self._offset = stored.inode, stored.end
        self.passed = sum(block.torn + block.foreign for block in stored.blocks)

    def poll(self) -> list[Row]:
        """Return the records of every kind that were completed since the last call.

        A file that is not there, or not yet, or that cannot be read at this moment, has none.

        Raises:
            TrackError: A record's version is not known here, or a line is longer than any.
        """
        rows: list[Row] = []
        while True:
            try:
                data = self._read()
            except OSError:  # ESTALE of a network file system, or the file is just being replaced: the next look tells
                return rows
            lines = (self._open_line + data).split(b"\n")
            self._open_line = lines.pop()
            if len(self._open_line) > LONGEST_LINE:
                raise no_line(self.path)
            rows += [row for line in lines if line and (row := self._parsed(line)) is not None]
            if len(data) < _PIECE:
                return rows

    def _read(self) -> bytes:
        with open(self.path, "rb", opener=open_regular) as file:  # a string is all that is needed
            about = os.fstat(file.fileno())
            inode = (about.st_dev, about.st_ino)
            if self._inode not in {None, inode} or about.st_size < self._offset:
                self.restarts += 1
                self._offset, self._open_line = 0, b""
            self._inode = inode
            file.seek(self._offset)
            data = file.read(_PIECE)
            self._offset += len(data)
            return data

    def _parsed(self, line: bytes) -> Row | None:
        row = None
        try:
            row = parse(line, self.path)
        except ValueError:
            pass
        self.passed += row is None
        return row


class Followed:
    """A run as it was at the last look.

    Attributes:
        run: Its facts and state.
        live: Its rows so far.
        passed: Lines of its journal that are no record.
        over: It has ended, and all of its rows were read.

    Raises:
        UsageError: The folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        self.run: Run = open_run(folder)
        self.live = Live()
        self.over = False
        self._tail = Tail(folder / "metrics.jsonl")
        self._restarts = 0
        self._gone = 0
        self._is_new = True

    @property
    def passed(self) -> int:
        """Lines of the journal that are no record."""
        return self._tail.passed

    def look(self) -> bool:
        """Look again and return whether something was recorded since the last look.

        Raises:
            UsageError: The folder is gone.
            TrackError: The journal is of a version that is not known here.
        """
        self.run = open_run(self.run.folder)  # before the rows: a run that has ended by now has written them all
        known = self._begin() if self._is_new else False
        rows = self._tail.poll()
        if self._tail.restarts != self._restarts:
            self._restarts, self.live = self._tail.restarts, Live()
        self.live.add(rows)
        # A run that is just starting has a journal before it has a lock and a run.json: one look proves no death.
        self._gone = self._gone + 1 if self.run.state == "died" else 0
        self.over = self.run.state != "running" and self._gone != 1
        return known or bool(rows)

    def _begin(self) -> bool:
        """Take in what a long journal holds already, from its columns; tell whether it holds rows."""
        self._is_new = False
        with suppress(OSError, TrackError):  # no journal yet; or of a version that the next line is an error for
            if os.stat(self._tail.path).st_size >= STRETCH:  # noqa: PTH116  # a string is all that is needed
                stored = read_stored(str(self.run.folder), self.run.may_be_written, tell=False)
                self.live = Live(table_of(stored.blocks))
                self._tail.go_on(stored)
        return self.live.rows > 0


class _Line:
    """Points of a curve that grows: arrays up to a point, and lists after it that join them now and then."""

    def __init__(self, steps: Any = None, values: Any = None) -> None:
        self._steps = steps
        self._values = values
        self._new: tuple[list[float], list[float]] = ([], [])

    def append(self, step: int, value: float) -> None:
        """Add a point."""
        self._new[0].append(step)
        self._new[1].append(value)

    def cut(self, step: int) -> None:
        """Drop the last points as long as they are at this step or after it."""
        steps, values = self._new
        while steps and steps[-1] >= step:
            steps.pop()
            values.pop()
        if not steps and self._steps is not None:
            import numpy as np

            before = np.flatnonzero(self._steps < step)
            number = int(before[-1]) + 1 if len(before) else 0
            self._steps, self._values = self._steps[:number], self._values[:number]

    def points(self) -> tuple[Any, Any]:
        """Return steps and values as float64 arrays."""
        import numpy as np

        steps, values = (np.array(part, dtype=np.float64) for part in self._new)
        if self._steps is None or (len(steps) and not len(self._steps)):
            self._steps, self._values = steps, values
        elif len(steps):
            self._steps, self._values = np.append(self._steps, steps), np.append(self._values, values)
        self._new = ([], [])
        return self._steps, self._values


_RECENT = 200  # rows from which the speed is computed


class Live:
    """What the rows so far have recorded.

    Args:
        table: Rows to begin with.

    Attributes:
        rows: Rows of metrics.
        step: Step of the last of them, or None.
        time: Its time, in epoch seconds.
        latest: Each metric's last number.
    """

    def __init__(self, table: Table | None = None) -> None:
        self.rows = 0
        self.step: int | None = None
        self.time = 0.0
        self.latest: dict[str, float] = {}
        self._lines: dict[str, _Line] = {}
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._attempt = 1
        if table is not None and len(table):
            self._begin(table)

    def _begin(self, table: Table) -> None:
        import numpy as np

        self.rows, self.step, self.time = len(table), int(table.step_array[-1]), float(table.time_array[-1])
        self._attempt = int(table.attempt_array[-1])
        of_others = np.flatnonzero(table.attempt_array != self._attempt)
        self._times.extend(table.time_array[of_others[-1] + 1 if len(of_others) else 0 :][-_RECENT:].tolist())
        counting = counted(table)
        steps = counting.step_array.astype(np.float64)
        for key, cells in table.cells.items():
            if cells.are_numbers and not is_counter(key):
                self.latest[key] = as_float(cells.end(-1))
                left = counting.cells.get(key)
                self._lines[key] = _Line(left.pick(steps), left.floats()) if left else _Line()

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows, as `Tail` returns them; kinds that hold no metrics are passed over."""
        for row in rows:
            if row["k"] not in {"", "late"}:
                continue
            if row["a"] != self._attempt:
                self._attempt = row["a"]
                self._cut(row["step"])
            if row["k"] == "":
                self.rows += 1
                self.step, self.time = row["step"], row["t"]
                self._times.append(row["t"])
            for key, value in row["m"].items():
                if type(value) in {float, int, bool} and not is_counter(key):
                    self._append(key, row["step"], value)

    def _append(self, key: str, step: int, value: float) -> None:
        if key not in self._lines:
            self._lines[key] = _Line()
        number = as_float(value)
        self._lines[key].append(step, number)
        self.latest[key] = number

    def _cut(self, step: int) -> None:
        """Drop what a run that was started again, from a checkpoint, records once more."""
        self._times.clear()
        for line in self._lines.values():
            line.cut(step)

    def rate(self) -> float | None:
        """Return rows per second over the last rows, or None where two times are not known."""
        span = self._times[-1] - self._times[0] if self._times else 0.0
        return (len(self._times) - 1) / span if span > 0 else None

    def series(self) -> list[Series]:
        """Return what can be drawn, in the order in which metrics were first recorded."""
        import numpy as np

        result = []
        for key, line in self._lines.items():
            x, y = line.points()
            if (x[1:] < x[:-1]).any():
                order = np.argsort(x, kind="stable")
                x, y = x[order], y[order]
            result.append(Series(key, x, y))
        return result
