"""Follow a run that still writes: read its journal again and again until it has ended."""

from __future__ import annotations

import os
from array import array
from collections import deque
from typing import TYPE_CHECKING

from ezpz.track.names import is_counter
from ezpz.track.records import Row, parse
from ezpz.track.run import Run, open_run
from ezpz.track.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ezpz.track.records import Row


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

    def poll(self) -> list[Row]:
        """Return the records of every kind that were completed since the last call.

        A file that is not there, or not yet, or that cannot be read at this moment, has none.

        Raises:
            TrackError: A record's version is not known here.
        """
        try:
            data = self._read()
        except OSError:  # ESTALE of a network file system, or the file is just being replaced: the next look will tell
            return []
        lines = (self._open_line + data).split(b"\n")
        self._open_line = lines.pop()
        return [row for line in lines if line and (row := self._parsed(line)) is not None]

    def _read(self) -> bytes:
        with open(self.path, "rb") as file:  # noqa: PTH123  # a string is all that is needed
            about = os.fstat(file.fileno())
            inode = (about.st_dev, about.st_ino)
            if self._inode not in {None, inode} or about.st_size < self._offset:
                self.restarts += 1
                self._offset, self._open_line = 0, b""
            self._inode = inode
            file.seek(self._offset)
            data = file.read()
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
        rows = self._tail.poll()
        if self._tail.restarts != self._restarts:
            self._restarts, self.live = self._tail.restarts, Live()
        self.live.add(rows)
        # A run that is just starting has a journal before it has a lock and a run.json: one look proves no death.
        self._gone = self._gone + 1 if self.run.state == "died" else 0
        self.over = self.run.state != "running" and self._gone != 1
        return bool(rows)


_RECENT = 200  # rows from which the speed is computed


class Live:
    """What the rows so far have recorded.

    Attributes:
        rows: Rows of metrics.
        step: Step of the last of them, or None.
        time: Its time, in epoch seconds.
        latest: Each metric's last number.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.step: int | None = None
        self.time = 0.0
        self.latest: dict[str, float] = {}
        self._columns: dict[str, tuple[array[float], array[float]]] = {}
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._attempt = 1

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
        if key not in self._columns:
            self._columns[key] = (array("d"), array("d"))
        try:
            number = float(value)
        except OverflowError:
            number = float("inf") if value > 0 else float("-inf")
        steps, values = self._columns[key]
        steps.append(step)
        values.append(number)
        self.latest[key] = number

    def _cut(self, step: int) -> None:
        """Drop what a run that was started again, from a checkpoint, records once more."""
        self._times.clear()
        for steps, values in self._columns.values():
            while steps and steps[-1] >= step:
                steps.pop()
                values.pop()

    def rate(self) -> float | None:
        """Return rows per second over the last rows, or None where two times are not known."""
        span = self._times[-1] - self._times[0] if self._times else 0.0
        return (len(self._times) - 1) / span if span > 0 else None

    def series(self) -> list[Series]:
        """Return what can be drawn, in the order in which metrics were first recorded."""
        import numpy as np

        result = []
        for key, (steps, values) in self._columns.items():
            x, y = np.array(steps), np.array(values)
            if (x[1:] < x[:-1]).any():
                order = np.argsort(x, kind="stable")
                x, y = x[order], y[order]
            result.append(Series(key, x, y))
        return result
