"""Hold what a reader of another tool's run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ezpz.track.journal_reader import Row
    from ezpz.track.values import Value


@dataclass
class Reading:
    """A run as another tool recorded it; see `ezpz.view.foreign.ForeignRun`."""

    source: str
    name: str
    rows: list[Row]
    facts: dict[str, Any] = field(default_factory=dict)
    state: str = "unknown"
    cause: str = ""


def make_row(step: int, when: float, values: dict[str, Value], attempt: int = 1) -> Row:
    """Return a row as a journal would hold it."""
    return {"v": 1, "t": when, "step": step, "a": attempt, "k": "", "m": values}
