"""Write a log file for this rank, which appears when there is a reason to read it.

    logs/rank-0003.log                        worlds of up to 1000 ranks
    logs/rank-3000-3999/rank-3412.log         larger ones: no folder holds more than 1000 files

Ten thousand files made at the same moment hurt a parallel file system, and most of them would never be opened. So lines
are kept in memory until the rank says its first WARNING: then the file begins with what led to it.
``EZPZ_LOG_FILES=all`` opens every file with its first line. Standard library only.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from typing import TextIO

KEPT = 1000  # lines kept in memory before a reason to write shows itself, about 150 KB
PER_FOLDER = 1000


def _open_closed(path: str, flags: int) -> int:
    return os.open(path, flags, 0o660)


class RankFile(logging.Handler):
    """Write one rank's lines to one file; trouble with the file costs one line on stderr and never the program."""

    def __init__(self, folder: str, formatter: logging.Formatter) -> None:
        """Prepare, and touch no disk.

        Args:
            folder: Where the files of all ranks go.
            formatter: How a record becomes a line.
        """
        super().__init__()
        self.folder = os.path.abspath(folder)  # a program may change its folder later  # noqa: PTH100  # costs 10 ms
        self.rank, self.world_size = 0, 1
        self.setFormatter(formatter)
        self._kept: deque[str] = deque(maxlen=KEPT)
        self._dropped = 0
        self._file: TextIO | None = None
        self._is_off = False

    @property
    def path(self) -> str:
        """Where this rank's file is, or would be."""
        name = f"rank-{self.rank:04d}.log"
        if self.world_size <= PER_FOLDER:
            return f"{self.folder}/{name}"
        first = self.rank // PER_FOLDER * PER_FOLDER
        return f"{self.folder}/rank-{first:04d}-{first + PER_FOLDER - 1:04d}/{name}"

    def emit(self, record: logging.LogRecord) -> None:
        """Keep or write one record."""
        if self._is_off:
            return
        line = self.format(record)  # at once: kept arguments would keep tensors alive
        try:
            if self._file is not None or record.levelno >= logging.WARNING or os.environ.get("EZPZ_LOG_FILES") == "all":
                self._write(line)
                return
        except OSError as error:
            self._is_off = True
            self._kept.clear()
            reason = error.strerror or str(error)
            try:
                print(f"ezpz: no log file of rank {self.rank}: cannot write {self.path}: {reason}", file=sys.stderr)
            except Exception:  # noqa: BLE001, S110  # stderr is closed, or an object of the user's own
                pass
            return
        self._dropped += len(self._kept) == KEPT
        self._kept.append(line)

    def _write(self, line: str) -> None:
        if self._file is None:
            folder = os.path.dirname(self.path)  # noqa: PTH120  # pathlib costs 10 ms
            os.makedirs(folder, mode=0o770, exist_ok=True)  # noqa: PTH103  # closed to others, as a run's other files
            # Opened for as long as the program runs; what a name that is no UTF-8 holds shall not end a training.
            self._file = open(  # noqa: SIM115
                self.path, "a", encoding="utf-8", errors="backslashreplace", buffering=1, opener=_open_closed
            )
            if self._dropped:
                self._file.write(f"[… {self._dropped} earlier lines were not kept]\n")
            for each in self._kept:
                self._file.write(each + "\n")
            self._kept.clear()
        self._file.write(line + "\n")  # line buffered: a line is on its way before the next thing happens

    def close(self) -> None:
        """End the file."""
        file, self._file, self._is_off = self._file, None, True
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # the disk is full: its last line is lost, which the emit before it has reported
        super().close()
