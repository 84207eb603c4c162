"""Read the first rows and the last ones of a journal: what a list of thousands of runs shows of their rows.

A run notes it in ``run.json`` when it ends, with the size of its journal: as long as that is the same, the list reads
no journal.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice

from ezpz.errors import TrackError
from ezpz.files import open_regular
from ezpz.records.run_record import JournalEnds
from ezpz.track.journal_reader import parse
from ezpz.track.names import main_loss, main_throughput, unit
from ezpz.track.steps import last_of_training, steps_reached
from ezpz.track.values import encode

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from ezpz.records.run_record import RunRecord
    from ezpz.track.at_end import End
    from ezpz.track.journal_reader import Row

_HEAD = 1 << 14  # bytes
_TAIL = 1 << 14
_LONGEST_TAIL = 1 << 22  # where a window over many ranks, or long arrays, fill the end
_ENOUGH = 20  # rows from which a rate is worked out


def ends_of(record: RunRecord, folder: Path) -> JournalEnds:
    """Return the ends of a run's journal: those that the run has noted, where they are still true, else by reading it.

    Args:
        record: The ``run.json`` of the run.
        folder: The run folder.
    """
    path = folder / "metrics.jsonl"
    noted = record.journal
    with suppress(OSError):
        if record.state != "running" and noted.size and noted.size == path.stat().st_size:
            return noted
    return JournalEnds.of(_read(path))


def note_ends(end: End) -> None:
    """Note the ends of a run's journal in ``run.json``."""
    read = _read(end.folder / "metrics.jsonl")
    if read.get("size"):
        end.facts["journal"] = {name: value for name, value in read.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    """Return the fields of `JournalEnds`."""
    rows, size = _tail(path)
    first = _head(path)
    if first is None and not rows:
        return {}
    last = rows[-1] if rows else first
    trained = last_of_training(rows) if rows else first
    metric, loss = _loss(rows)
    rate, rate_unit = _rate(rows)
    return {
        "size": size,
        "first_step": first["step"] if first else None,
        "first_time": first["t"] if first else None,
        "last_step": trained["step"] if trained else None,
        "last_time": last["t"] if last else None,
        "steps": steps_reached(first, rows or ([first] if first else [])),
        "metric": metric,
        "loss": None if loss is None else encode(loss),
        "rate": rate,
        "rate_unit": rate_unit,
    }


def _head(path: Path) -> Row | None:
    try:
        with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
            return next(_rows(iter(lambda: file.readline(max(0, _HEAD - file.tell())), b"")), None)
    except OSError:
        return None


def _tail(path: Path) -> tuple[list[Row], int]:
    """Return the last rows of metrics, and the file's bytes; more is read where its end holds too few for a rate."""
    size = _TAIL
    while True:
        try:
            with open(path, "rb", opener=open_regular) as file:  # as above
                length = os.fstat(file.fileno()).st_size
                file.seek(max(0, length - size))
                lines = file.read(size).split(b"\n")[:-1]  # what follows the last newline is a row in the making
        except OSError:
            return [], 0
        rows = _last_rows(lines if length <= size else lines[1:])
        if len(rows) >= _ENOUGH or size >= min(length, _LONGEST_TAIL):
            return rows, length
        size *= 8


def _last_rows(lines: list[bytes]) -> list[Row]:
    """Return the last rows of these lines, and of those before them one for each number of metrics not seen so far.

    A rate needs a few rows, and a loss may be recorded now and then.
    """
    latest = list(islice(_rows(reversed(lines)), _ENOUGH))
    seen = {line.count(b'":') for line in lines[-_ENOUGH:]}
    rare = {line.count(b'":'): line for line in lines[:-_ENOUGH]}
    others = _rows(line for count, line in rare.items() if count not in seen)
    return [*others, *reversed(latest)] if len(latest) == _ENOUGH else latest[::-1]


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    for line in lines:
        # Torn lines, those of a later version, and windows over ranks are not what is looked for here.
        if b'"k":"ranks"' in line[:120]:
            continue
        with suppress(ValueError, TrackError):
            row = parse(line, "") if line else None
            if row is not None and row["k"] == "":
                yield row


def _loss(rows: list[Row]) -> tuple[str | None, float | None]:
    """Return the run's loss: its name and its last value."""
    numbers = {name: value for row in rows for name, value in row["m"].items() if isinstance(value, (int, float))}
    name = main_loss(numbers)
    return (None, None) if name is None else (name, float(numbers[name]))


def _rate(rows: list[Row]) -> tuple[float | None, str | None]:
    """Return the median rate of the last rows and its unit: what was recorded, else steps by the times of rows."""
    known = main_throughput(dict.fromkeys(name for row in rows for name in row["m"]))
    if known is not None:
        name, is_time = known
        values = [row["m"][name] for row in rows if isinstance(row["m"].get(name), (int, float))]
        values = [value for value in values if 0 < value < float("inf")]
        if values:
            from statistics import median  # 3 ms

            return (1.0 / median(values), "it/s") if is_time else (median(values), unit(name))
    if len(rows) > 1 and rows[-1]["t"] > rows[0]["t"] and rows[-1]["step"] > rows[0]["step"]:
        return (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["t"] - rows[0]["t"]), "it/s"
    return None, None
