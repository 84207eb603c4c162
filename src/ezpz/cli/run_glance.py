"""One run at a glance: its ``run.json``, the head and the tail of its journal, and what its launcher says of its end."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError
from ezpz.files import read_object
from ezpz.track.names import main_loss, main_throughput, unit
from ezpz.track.records import parse
from ezpz.track.run import open_run
from ezpz.track.values import encode

if TYPE_CHECKING:
    from ezpz.track.records import Row
    from ezpz.track.run import Run

__all__ = ["glance"]

_HEAD = 1 << 14  # bytes
_TAIL = 1 << 15
_LONGEST_TAIL = 1 << 22  # where a window over many ranks, or long arrays, fill the end
_ENOUGH = 20  # rows from which a rate is told


def glance(folder: Path, root: Path) -> dict[str, Any]:
    """Return what a line of ``ezpz runs`` tells, as JSON can hold it.

    Args:
        folder: A run folder.
        root: The folder that was searched; the run is named relative to it.

    Returns:
        ``name state cause started ended seconds attempt steps first_step last_step last_row loss metric rate rate_unit
        folder run``; times in epoch seconds, None where something is not known.
    """
    run = open_run(folder)
    rows = _tail(run.folder / "metrics.jsonl")
    first = _head(run.folder / "metrics.jsonl")
    last = rows[-1] if rows else first
    metric, loss = _loss(rows)
    rate, unit = _rate(rows)
    started = _epoch(run.facts.get("started")) or (first["t"] if first else None)
    ended = _epoch(run.facts.get("ended")) or (last["t"] if last and run.state != "running" else None)
    until = ended if ended is not None else time.time()
    return {
        "name": run.name,
        "state": run.state,
        "cause": _cause(run),
        "started": started,
        "ended": ended,
        "seconds": None if started is None else round(max(0.0, until - started), 3),
        "attempt": run.facts.get("attempt") or len(run.facts.get("earlier") or []) + 1,
        "first_step": first["step"] if first else None,
        "last_step": last["step"] if last else None,
        "last_row": last["t"] if last else None,
        "metric": metric,
        "loss": None if loss is None else encode(loss),
        "rate": rate,
        "rate_unit": unit,
        "folder": str(run.folder),
        "run": _below(folder, root),
    }


def _below(folder: Path, root: Path) -> str:
    name = os.path.relpath(folder, root)
    return root.absolute().name if name == "." else name


def _epoch(text: object) -> float | None:
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    return None


def _head(path: Path) -> Row | None:
    try:
        with path.open("rb") as file:
            lines = file.read(_HEAD).split(b"\n")[:-1]
    except OSError:
        return None
    return next(iter(_rows(lines)), None)


def _tail(path: Path) -> list[Row]:
    """Return the last rows of metrics; more of the file is read where its end holds fewer than a rate needs."""
    size = _TAIL
    while True:
        try:
            with path.open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                file.seek(max(0, length - size))
                lines = file.read(size).split(b"\n")[:-1]  # what follows the last newline is a row in the making
        except OSError:
            return []
        rows = _rows(lines if length <= size else lines[1:])
        if len(rows) >= _ENOUGH or size >= min(length, _LONGEST_TAIL):
            return rows
        size *= 8


def _rows(lines: list[bytes]) -> list[Row]:
    rows = []
    for line in lines:
        # Torn lines, those of a later version, and windows over ranks are not what is looked for here.
        if b'"k":"ranks"' in line[:120]:
            continue
        with suppress(ValueError, TrackError):
            row = parse(line, "") if line else None
            if row is not None and row["k"] == "":
                rows.append(row)
    return rows


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
            return (1.0 / median(values), "it/s") if is_time else (median(values), unit(name))
    if len(rows) > 1 and rows[-1]["t"] > rows[0]["t"] and rows[-1]["step"] > rows[0]["step"]:
        return (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["t"] - rows[0]["t"]), "it/s"
    return None, None


def _cause(run: Run) -> str:
    """Return why a run ended early: what it said itself; where it could not, what its launch has seen from outside.

    A run that was stopped knows the signal only, and its launch whose failure that was for.
    """
    if run.state not in {"died", "failed", "stopped"}:
        return ""
    launch = run.facts.get("launch")
    name = str((launch.get("EZPZ_LAUNCH_ID") or launch.get("launch_id") or "") if isinstance(launch, dict) else "")
    told = _launch_cause(name) if name else ""
    return run.cause or told if run.state == "failed" else told or run.cause


def _launch_cause(name: str) -> str:
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()  # noqa: PTH117  # as ezpz.launch.record
    for path in (state / "ezpz" / "launches").glob(f"*-{name.rpartition('/')[2][:8]}/run.json"):
        launch = read_object(path)
        if launch.get("launch_id") == name:
            cause = launch.get("cause")
            text = cause.get("text") if isinstance(cause, dict) else None
            return str(text or "")
    return ""
