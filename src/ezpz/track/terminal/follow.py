"""A run that is followed while it goes on: look again and again until it has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ezpz.track.records import Row, parse
from ezpz.track.run import Run, open_run
from ezpz.track.terminal.live import Live

if TYPE_CHECKING:
    from pathlib import Path


# The records that were added to a journal since the last look, while another process goes on writing it.


class Tail:
    """Follow a journal that grows.

    The file is opened anew for each look: NFS shows a reader what was written before that, and a file that took the
    other's place is noticed. No lock is taken, so that a read-only folder of somebody else can be followed too.

    Attributes:
        path: The journal.
        restarts: How often the file was another one, or shorter than before; its records then came from the start again.
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


__all__ = ["Followed", "Tail"]


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
