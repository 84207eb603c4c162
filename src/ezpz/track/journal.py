"""The journal ``metrics.jsonl``: one row is one JSON line is one ``write``, so that a killed process loses nothing.

    {"v":1,"t":1795194001.25,"step":3,"m":{"train/loss":0.25,"lr":"NaN","tokens":9007199254740993}}

``v`` is the version of this format, ``t`` the time in epoch seconds, ``step`` the caller's step, ``m`` the metrics with
`ezpz.track.values.encode` applied. A line that a crash tore is no JSON; readers pass over it. One process writes a
journal; it is only ever appended to.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from time import monotonic, time
from typing import TYPE_CHECKING, TypedDict

from ezpz.errors import TrackError
from ezpz.log import get_logger
from ezpz.track.values import Value, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Journal", "Row", "iter_journal", "last_step", "read_journal"]

VERSION = 1
_SYNC_EVERY = 1.0  # seconds: what a crash of the host may cost
_TAIL = 1 << 20  # bytes read from the end to find the last row; a row of 1024 floats has 20 KiB

# Strings with lone surrogates pass as escapes; NaN is already a string here, so a bare one would be our own mistake.
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class Row(TypedDict):
    """One line of a journal, decoded."""

    v: int
    t: float
    step: int
    m: dict[str, Value]


class Journal:
    """The writing end of a journal.

    A write that fails (disk full, quota) does not stop the training that it observes: the first failure is one
    warning, later rows are tried again, and ``lost`` and ``first_lost`` say what is missing.

    Attributes:
        path: The file.
        rows: Rows written by this object.
        lost: Rows that could not be written.
        first_lost: Step of the first of them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.rows = 0
        self.lost = 0
        self.first_lost: int | None = None
        self._synced = float("-inf")
        self._warned = False
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._fd).st_size
        # A writer that was killed inside its last write left a line without end: finish it, so that ours starts anew.
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

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
            if (kind is float and value - value != 0.0) or (kind is not float and kind is not int and kind is not bool):  # type: ignore[operator]  # kind is float: NaN and infinity differ from themselves
                values = {key: encode(item) for key, item in values.items()}  # type: ignore[misc]  # JSON's own types
                break
        try:
            text = _dumps({"v": VERSION, "t": time(), "step": step, "m": values})
        except ValueError as error:
            raise TrackError(
                f"cannot record step {step} (from History.update): {error}; expected shorter ints."
            ) from error
        data = b"\n" * self._torn + text.encode() + b"\n"
        done = 0
        try:
            while done < len(data):  # once, except on a disk that is filling up
                done += os.write(self._fd, data[done:])
        except OSError as error:
            self._torn = self._torn or done > 0
            self._lose(step, error)
            return
        self._torn = False
        self.rows += 1
        if monotonic() - self._synced >= _SYNC_EVERY:
            self.sync()

    def _lose(self, step: int, error: OSError) -> None:
        self.lost += 1
        if self.first_lost is None:
            self.first_lost = step
            self._warn(
                f"cannot write {self.path}: {error.strerror}; training goes on, rows are missing from step {step}."
            )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            get_logger(__name__).warning(text)

    def sync(self) -> None:
        """Have the system put every row so far on the disk, so that it outlives a crash of the host."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._warn(
                f"cannot sync {self.path}: {error.strerror}; its last rows would not outlive a crash of the host."
            )
        self._synced = monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1


def read_journal(path: str | os.PathLike[str]) -> list[Row]:
    """Read a journal, also while another process writes it or after that process was killed.

    Args:
        path: A ``metrics.jsonl``, or the run folder that holds one.

    Returns:
        Rows in the order in which they were written. Bytes after the last newline are a row in the making and are
        left out. Lines that a crash tore are left out with one warning that counts them.

    Raises:
        TrackError: There is no such file, or it holds something else than a journal of a version known here.
    """
    return list(iter_journal(path))


def iter_journal(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Yield the rows of `read_journal` one by one, for journals too long to hold."""
    name = os.fspath(path)
    if os.path.isdir(name):  # noqa: PTH112  # a string is all that is needed
        name = os.path.join(name, "metrics.jsonl")  # noqa: PTH118  # as above
    torn = 0
    try:
        with open(name, "rb") as file:  # noqa: PTH123  # as above
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n") or raw == b"\n":
                    continue
                row = _row(raw, f"{name}:{number}")
                if row is None:
                    torn += 1
                else:
                    yield row
    except OSError as error:
        raise TrackError(f"cannot read the journal {name}: {error.strerror}; expected a metrics.jsonl.") from error
    if torn:
        get_logger(__name__).warning(f"{name}: passed over {torn} torn line(s), each left by a write that was cut off.")


def _row(raw: bytes, place: str) -> Row | None:
    """Decode a line; None for one that is no JSON, as only a cut-off write leaves behind."""
    try:
        row = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(row, dict) or row.keys() != Row.__annotations__.keys() or row["v"] != VERSION:
        raise TrackError(
            f"cannot read {raw[:60].decode(errors='replace')!r} (from {place}); expected a row of version {VERSION}, "
            f'{{"v":1,"t":…,"step":…,"m":{{…}}}}. Read it with the ezpz that wrote it.'
        )
    metrics = row["m"]
    for key, value in metrics.items():
        if type(value) is str or type(value) is list:
            metrics[key] = decode(value)
    return row  # type: ignore[return-value]  # its keys were compared above


def last_step(path: str | os.PathLike[str]) -> int | None:
    """Return the step of a journal's last whole row, or None if there is none."""
    with open(path, "rb") as file:  # noqa: PTH123  # takes any path
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().split(b"\n")[:-1]  # the piece after the last newline is no row
    for raw in reversed(lines):
        with suppress(ValueError):  # a torn line, or the first one, of which the tail may hold half
            row = json.loads(raw)
            if isinstance(row, dict) and type(row.get("step")) is int:
                step: int = row["step"]
                return step
    return None
