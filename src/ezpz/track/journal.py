"""Write a journal: one row is one JSON line is one ``write``, so that a killed process loses nothing.

`ezpz.track.records` describes its format.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from threading import Event, RLock, Thread
from time import time
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger
from ezpz.track.records import VERSION, last_row
from ezpz.track.values import Value, encode
from ezpz.track.writer_lock import hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# The thread that puts a journal on the disk once a second, so that no step of the training waits for a disk.

_EVERY = 1.0  # seconds: what a crash of the host may cost


class Keeper:
    """Calls a function once a second while there is something to do.

    The thread starts with the first row, so a history that records nothing has none, and ends with the program.

    Attributes:
        due: Whether there is something to do; set by the writer.
        is_on: Whether `start` was called.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self.due = False
        self.is_on = False
        self._sync = sync
        self._end = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        self.is_on = True
        self._thread = Thread(target=self._run, name="ezpz-journal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # Python is ending and starts no threads any more: closing the journal syncs it
            self._thread = None

    def _run(self) -> None:
        while not self._end.wait(_EVERY):
            if self.due:
                self.due = False  # before the sync: a row that is written meanwhile is due again
                self._sync()

    def end(self) -> None:
        """Let the thread end, and wait for a sync that is under way."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()


# Strings with lone surrogates pass as escapes; NaN is already a string here, so a bare one would be our own mistake.
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class Journal:
    """The writing end of a journal.

    A write that fails (disk full, quota) does not stop the training that it observes: the first failure is one
    warning, later rows are tried again, and ``lost`` and ``first_lost`` say what is missing. Any thread may write.

    Opening one raises UsageError when another process writes it, OSError when the file cannot be made.

    Attributes:
        path: The file.
        attempt: 1, and one more each time that a journal with rows is opened again.
        next_step: One more than the step of the last row.
        lost: Rows that could not be written.
        first_lost: Step of the first of them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.lost = 0
        self.first_lost: int | None = None
        self._warned = False
        self._lock = RLock()  # a signal's handler may come in the middle of a write of its own thread
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o660)
        if not hold(self._fd):
            os.close(self._fd)
            raise UsageError(
                f"cannot record in {self.path}: another process writes it (from a lock on it); expected one writer for "
                f"each run folder. Use History(outdir=...) with another folder, or wait for that process to end."
            )
        size = os.fstat(self._fd).st_size
        # A writer that was killed inside its last write left a line without end: finish it, so that ours starts anew.
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        step, attempt = last_row(self.path) or (-1, 0)
        self.next_step, self.attempt = step + 1, attempt + 1
        self._attempt: dict[str, object] = {"a": self.attempt} if self.attempt > 1 else {}
        self._keeper = Keeper(self._fsync)
        _open_here.add(self)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Append one row; it outlives this process as soon as this returns.

        Args:
            step: The caller's step.
            values: Plain values, as `ezpz.track.values.plain` returns them.

        Raises:
            TrackError: An int has so many digits that Python refuses to print it.
        """
        # Encoding walks over the metrics once more; rows of finite numbers, nearly all, can do without.
        for value in values.values():
            kind = type(value)
            # Of a float: NaN and infinity differ from themselves.
            if (kind is float and value - value != 0.0) or (kind is not float and kind is not int and kind is not bool):  # type: ignore[operator]
                values = {key: encode(item) for key, item in values.items()}  # type: ignore[misc]  # JSON's own types
                break
        self._append({"v": VERSION, "t": time(), "step": step, **self._attempt, "m": values})

    def write_late(self, step: int, values: Mapping[str, Value]) -> None:
        """Append values of an earlier row of this step."""
        content = {key: encode(value) for key, value in values.items()}
        self._append({"v": VERSION, "t": time(), "step": step, **self._attempt, "k": "late", "m": content})

    def write_ranks(self, step: int, content: Mapping[str, object]) -> None:
        """Append a window over all ranks, as `ezpz.track.over_ranks.across` hands it over: JSON already."""
        self._append({"v": VERSION, "t": time(), "step": step, **self._attempt, "k": "ranks", "m": content})

    def _append(self, row: Mapping[str, object]) -> None:
        try:
            text = _dumps(row)
        except ValueError as error:
            raise TrackError(
                f"cannot record step {row['step']} (from History.update): {error}; expected shorter ints."
            ) from error
        with self._lock:
            data = b"\n" * self._torn + text.encode() + b"\n"
            done = 0
            try:
                while done < len(data):  # once, except on a disk that is filling up
                    done += os.write(self._fd, data[done:])
            except OSError as error:
                self._torn = self._torn or done > 0
                self._lose(row["step"], error)
                return
            self._torn = False
        self._keeper.due = True
        if not self._keeper.is_on:
            self._keeper.start()

    def _lose(self, step: Any, error: OSError) -> None:
        self.lost += 1
        if self.first_lost is None:
            self.first_lost = step
            self._warn(
                f"cannot write {self.path}: {error.strerror}; training continues, rows are missing from step {step}."
            )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            get_logger(__name__).warning(text)

    def sync(self) -> None:
        """Have the system put every row so far on the disk, so that it outlives a crash of the host."""
        self._keeper.due = False
        self._fsync()

    def _fsync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._warn(
                f"cannot sync {self.path}: {error.strerror}; its last rows would not outlive a crash of the host."
            )

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd >= 0:
            self._keeper.end()
            self.sync()
            self._forget()

    def _forget(self) -> None:
        """Close without a word to the disk, as a forked child must: the lock stays with the parent."""
        with suppress(OSError):
            os.close(self._fd)
        self._fd = -1


_open_here: WeakSet[Journal] = WeakSet()


def _forked() -> None:
    """Let go, in a child, of journals that are the parent's: who holds one keeps it locked."""
    for journal in list(_open_here):
        if journal._fd >= 0:  # noqa: SLF001  # of this module
            journal._forget()  # noqa: SLF001  # as above


os.register_at_fork(after_in_child=_forked)
