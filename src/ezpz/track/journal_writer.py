"""Write a journal: one row is one JSON line is one ``write``, so that a killed process loses nothing.

Rows that cannot be written, because the disk is full, wait in memory until there is space again.
`ezpz.track.journal_reader` describes its format.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]  # not in its stubs
from pathlib import Path
from threading import Event, RLock, Thread
from time import monotonic, time
from typing import TYPE_CHECKING
from weakref import WeakSet

from ezpz.errors import TrackError, UsageError
from ezpz.files import make_closed_folder, open_regular
from ezpz.log import get_logger
from ezpz.track.guard import guarded
from ezpz.track.journal_reader import VERSION, last_row
from ezpz.track.open_file_path import copy_whole, free_folders, is_at, path_of
from ezpz.track.recorded_rows import Columns
from ezpz.track.values import Value, encode
from ezpz.track.writer_lock import hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# The thread that puts a journal on the disk once a second, so that no step of the training waits for a disk.

_EVERY = 1.0  # seconds: what a crash of the host may cost


class PeriodicCall:
    """Calls a function once a second, two more while there is something to do; `sync` may set ``due`` again.

    The thread starts with the first row, so a history that records nothing has none, and ends with the program.

    Attributes:
        due: Whether there is something to do; set by the writer.
        is_on: Whether `start` was called.
    """

    def __init__(self, sync: Callable[[], None], work: Callable[[], None], look: Callable[[], None]) -> None:
        self.due = False
        self.is_on = False
        self._sync = sync
        self._work = work
        self._look = look
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
            self._look()
            if self.due:
                self.due = False  # before the sync: a row that is written meanwhile is due again
                self._sync()
                self._work()

    def end(self) -> None:
        """Let the thread end, and wait for a sync that is under way."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()


# Strings with lone surrogates pass as escapes; NaN is already a string here, so a bare one would be our own mistake.
_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
# What its `encode` makes for each row anew, at 1 µs of 3; not every Python has it.
_parts = c_make_encoder and c_make_encoder(
    None, _encoder.default, encode_basestring_ascii, None, *(":", ","), *(False, False, False)
)


def _dumps(content: Mapping[str, object]) -> str:
    return "".join(_parts(content, 0)) if _parts else _encoder.encode(content)


_KINDS = {"": "", "late": '"k":"late",', "ranks": '"k":"ranks",', "sections": '"k":"sections",', "seen": '"k":"seen",'}

_MOST_WAITING = 64 << 20  # bytes of memory for rows that wait for space on the disk
_OVERHEAD = 200  # bytes that Python takes for each row besides
_QUIET = 60.0  # seconds between two warnings about the disk: one that fills and empties by the row shall not fill a log


class Journal:
    """The writing end of a journal.

    A folder that somebody renames takes the journal along. Where somebody removes it, the journal is made again in a
    folder of the same name, or ``-2`` where that is another's, with all rows: an open file can be read as long as it is
    open.

    A write that fails (disk full, quota) does not stop the training that it observes. Its row and those after it wait
    in memory, 64 MB of them at most, and are written in their order when a write succeeds again; with each row, and
    once a second, one is tried. What finds no room in memory is lost. Any thread may write.

    Opening one raises UsageError when another process writes it, OSError when the file cannot be made.

    Attributes:
        path: The file, which may become another one.
        attempt: 1, and one more each time that a journal with rows is opened again.
        next_step: One more than the step of the last row.
        show: Called once a second from the first row on, in the thread that syncs.
    """

    def __init__(self, path: str | os.PathLike[str], on_folder: Callable[[str], object] | None = None) -> None:
        """Open a journal.

        Args:
            path: The file.
            on_folder: Takes the folder where that becomes another one, in any thread.
        """
        self._on_folder = on_folder
        self.show: Callable[[], object] = dict
        self._rows = 0  # handed over
        self._not_before = -_QUIET  # the next try to begin anew
        self.path = os.fspath(path)
        self._waiting: deque[tuple[int, bytes]] = deque()  # step, and what of the line is not in the file yet
        self._bytes_waiting = 0
        self._is_emptying = False
        self._lost: dict[str, int] = {}  # "rows", and the steps of the "first" and the "last", where there are any
        self._problem = ""  # why the last write failed
        self._is_told = False  # that rows wait
        self._is_full = False  # the memory for them
        self._told_at = -_QUIET
        self._has_warned = False  # that the file cannot be synced
        self._lock = RLock()  # a signal's handler may come in the middle of a write of its own thread
        self._fd = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
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
        self._attempt = f'"a":{self.attempt},' if self.attempt > 1 else ""
        self._columns = Columns(self._fd)
        self._folder = os.stat(os.path.dirname(self.path) or ".")  # noqa: PTH116, PTH120  # strings are all there is
        self._keeper = PeriodicCall(self._sync_once, lambda: self._columns.grow(self.path), self._look)
        _open_here.add(self)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Append one row; it outlives this process as soon as this returns, unless the disk is full.

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
        self._append(step, "", values)

    def write_late(self, step: int, values: Mapping[str, Value]) -> None:
        """Append values of an earlier row of this step."""
        self._append(step, "late", {key: encode(value) for key, value in values.items()})

    def write_ranks(self, step: int, content: Mapping[str, object]) -> None:
        """Append a window over all ranks, as `ezpz.track.over_ranks.across` hands it over: JSON already."""
        self._append(step, "ranks", content)

    def write_sections(self, step: int, seconds: Mapping[str, float], more: Mapping[str, object] | None = None) -> None:
        """Append what sections have taken since the last such record (`ezpz.progress.take_spent`), by name.

        Args:
            step: The step of the last row that it tells of.
            seconds: The seconds.
            more: What else there is to say of them, not as numbers.
        """
        self._append(step, "sections", {**{name: round(taken, 6) for name, taken in seconds.items()}, **(more or {})})

    def write_seen(self, step: int, content: Mapping[str, object]) -> None:
        """Append what steps up to this one saw, as `ezpz.track.step_states` hands it over: JSON already."""
        self._append(step, "seen", content)

    def _append(self, step: int, kind: str, content: Mapping[str, object]) -> None:
        """Append a line whose metrics are ``content``."""
        now = time()
        try:
            text = f'{{"v":{VERSION},"t":{now!r},"step":{step},{self._attempt}{_KINDS[kind]}"m":{_dumps(content)}}}\n'
        except ValueError as error:
            raise TrackError(
                f"cannot record step {step} (from History.update): {error}; expected shorter ints."
            ) from error
        with self._lock:
            if self._fd < 0:  # another thread's, after the end of the run, which has said what is missing
                return
            self._rows += not kind
            data = b"\n" * self._torn + text.encode()
            self._torn = False
            if self._waiting:
                self._empty()
            rest = data if self._waiting else self._put(data)
            if rest:
                self._hold(step, rest)
                self._tell_waiting()
        self._keeper.due = True
        if not self._keeper.is_on:
            self._keeper.start()

    def _put(self, data: bytes) -> bytes:
        """Write what the disk takes, and return the rest, with which the line continues."""
        done = 0
        try:
            while done < len(data):  # once, except on a disk that is filling up
                done += os.write(self._fd, data[done:])
        except OSError as error:
            self._problem = error.strerror or str(error)
        return data[done:]

    def _hold(self, step: int, data: bytes) -> None:
        """Have a row wait for space. The first one has room always: a part of it may be in the file."""
        if self._waiting and self._bytes_waiting + len(data) + _OVERHEAD > _MOST_WAITING:
            first, last = self._lost.get("first", step), self._lost.get("last", step)
            self._lost = {"rows": self._lost.get("rows", 0) + 1, "first": min(first, step), "last": max(last, step)}
            if not self._is_full:
                self._is_full = self._is_told = True
                get_logger(__name__).warning(
                    f"cannot write {self.path}: {self._problem}. {len(self._waiting)} rows wait in memory, which is "
                    f"all that is kept there: rows from step {step} on are lost until there is space."
                )
            return
        self._waiting.append((step, data))
        self._bytes_waiting += len(data) + _OVERHEAD

    def _empty(self) -> None:
        """Write the rows that wait, in their order, as far as the disk takes them."""
        if self._is_emptying:  # a signal's handler, in the middle of this
            return
        self._is_emptying = True
        first, count = self._waiting[0][0], 0
        try:
            while self._waiting:
                step, data = self._waiting[0]
                rest = self._put(data)
                self._bytes_waiting -= len(data) - len(rest)
                if rest:
                    self._waiting[0] = step, rest
                    return
                self._waiting.popleft()
                self._bytes_waiting -= _OVERHEAD
                count += 1
        finally:
            self._is_emptying = False
        if self._is_told:
            lost = f" {self.missing()}." if self._lost else ""
            rows = f"{count} rows, from step {first} on, were" if count > 1 else f"the row of step {first} was"
            get_logger(__name__).warning(f"{self.path}: there is space again; {rows} written.{lost}")
        self._is_told = self._is_full = False

    def _tell_waiting(self) -> None:
        """Say that rows wait, once until they are written, and not again and again where space comes and goes."""
        now = monotonic()
        if self._is_told or now - self._told_at < _QUIET:
            return
        self._is_told, self._told_at = True, now
        get_logger(__name__).warning(
            f"cannot write {self.path}: {self._problem}. Training continues; rows from step {self._waiting[0][0]} on "
            f"wait in memory, at most {_MOST_WAITING >> 20} MB of them, until there is space."
        )

    @property
    def waits(self) -> bool:
        """Whether rows wait for space on the disk."""
        return bool(self._waiting)

    def missing(self) -> str:
        """Say which rows are not in the file, those that wait for space too; "" if there are none."""
        with self._lock:
            steps = [step for step, _ in self._waiting]
            steps += [self._lost["first"], self._lost["last"]] if self._lost else []
            count = len(self._waiting) + self._lost.get("rows", 0)
        if not count:
            return ""
        which = f"of steps {min(steps)} to {max(steps)}" if min(steps) < max(steps) else f"of step {steps[0]}"
        return f"{count} row{'s' * (count > 1)} {which} could not be written"

    def rows_written(self) -> int:
        """Return how many rows of this process went into the file."""
        with self._lock:
            return self._rows - len(self._waiting) - self._lost.get("rows", 0)

    def _look(self) -> None:
        self.follow()
        self.show()

    def follow(self) -> None:
        """See whether the file is still at its path; go along with a folder that was renamed, on anew without one."""
        with guarded(f"look after {self.path}"):
            self._follow()

    def _follow(self) -> None:
        before, word = self.path, "removed"
        with self._lock:
            if self._fd < 0 or is_at(self._fd, before):
                return
            folder = os.path.dirname(before)  # noqa: PTH120  # as above
            word = "replaced" if os.path.exists(before) else word  # noqa: PTH110  # as above
            self.path = self._renamed() or before
            if self.path == before and not self._begin_anew(folder):
                return
        now = os.path.dirname(self.path)  # noqa: PTH120  # as above
        if self._on_folder is not None:
            self._on_folder(now)
        logger, rows = get_logger(__name__), self.rows_written()
        if os.path.samestat(os.stat(now), self._folder) and now != folder:  # noqa: PTH116  # as above
            logger.info(f"the run folder {folder} was renamed: the run goes on in {now}.")
        else:
            self._folder = os.stat(now)  # noqa: PTH116  # as above
            logger.warning(
                f"{before} was {word} during the run: all {rows} rows so far are in {now}, where the run goes on."
            )

    def _renamed(self) -> str:
        """Return the new path of a journal whose folder was renamed; empty where it was removed, alone or with it."""
        path = path_of(self._fd)
        folder, name = os.path.split(path)
        if name != "metrics.jsonl" or not os.path.samestat(os.stat(folder), self._folder):  # noqa: PTH116  # as above
            return ""
        return path

    def _begin_anew(self, folder: str) -> bool:
        """Make the journal again, with all rows, and let it take the place of the one that is gone."""
        if monotonic() < self._not_before + _QUIET:
            return False
        self._not_before = monotonic()
        path, made = "", -1
        try:
            for each in free_folders(folder):
                make_closed_folder(Path(each))
                path = os.path.join(each, "metrics.jsonl")  # noqa: PTH118  # as above
                with suppress(FileExistsError):  # somebody else's
                    made = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
                    break
            hold(made)
            copy_whole(self._fd, made)
            os.dup2(made, self._fd, inheritable=False)  # its number stays, which others use too
        except OSError as error:
            if made >= 0:
                os.unlink(path)  # noqa: PTH108  # as above
            get_logger(__name__).warning(
                f"{self.path} was removed during the run, and {folder} cannot be made again: {error.strerror}. "
                f"Training continues; it is tried again every {_QUIET:g} s, and its rows are lost if that fails until "
                "its end."
            )
            return False
        finally:
            if made >= 0:
                os.close(made)
        self.path = path
        self._keeper.due = True
        return True

    def sync(self) -> None:
        """Have the system put every row so far on the disk, so that it outlives a crash of the host."""
        self._keeper.due = False
        self._sync_once()

    def _sync_once(self) -> None:
        with self._lock:
            if self._waiting:
                self._empty()
            self._keeper.due = self._keeper.due or bool(self._waiting)
        try:
            os.fsync(self._fd)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                get_logger(__name__).warning(
                    f"cannot sync {self.path}: {error.strerror}; its last rows would not outlive a crash of the host."
                )

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd >= 0:
            self._keeper.end()
            self._not_before = -_QUIET
            self.follow()
            self.sync()
            self._columns.grow(self.path, at_end=True)
            with self._lock:
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
