"""A run in one line: ``train: finished, 300 rows, steps 0 to 299, 5 min 12 s``."""

from __future__ import annotations

from datetime import datetime
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.track.run import Run

__all__ = ["duration", "ending", "headline", "spoken"]


def headline(run: Run, rows: int, steps: tuple[int, int] | None, last: float) -> str:
    """Return name, state with its cause, rows, steps and duration.

    Args:
        run: The run.
        rows: How many rows it has.
        steps: Its smallest and largest step; None without rows.
        last: Time of its last row, in epoch seconds.
    """
    parts = [ending(run), f"{rows} row{'s' * (rows != 1)}"]
    if steps:
        parts.append(f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}")
    lasted = duration(run, last)
    if lasted is not None:
        parts.append(spoken(lasted))
    return f"{run.name}: {', '.join(parts)}"


def ending(run: Run) -> str:
    """Return the state of a run, and its cause where there is one."""
    return f"{run.state} ({run.cause})" if run.cause else run.state


def duration(run: Run, last: float) -> float | None:
    """Return seconds from a run's start to its end, or to now; of one that died, to its last row. None if not known."""
    started = _epoch(run.facts.get("started"))
    if started is None:
        return None
    ended = _epoch(run.facts.get("ended")) or (time() if run.state == "running" else last)
    return max(0.0, ended - started) if ended else None


def _epoch(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def spoken(seconds: float) -> str:
    """Return a duration in its two largest units: ``2 h 5 min``, ``5 min 12 s``, ``12 s``."""
    whole = round(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {smaller}"
    return f"{whole} s"
