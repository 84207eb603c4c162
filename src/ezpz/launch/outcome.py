"""What a run is allowed, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ezpz.launch.run.failures import Failure

__all__ = ["Limits", "Outcome"]


@dataclass(frozen=True)
class Limits:
    """Times that the user set, in seconds; None for no limit.

    Attributes:
        start: Until every rank has come up.
        run: Until the run has ended.
        idle: That a rank may show no progress.
        leave: For the other ranks when the first has ended with 0.
    """

    start: float | None = 600.0
    run: float | None = None
    idle: float | None = None
    leave: float | None = None


@dataclass
class Outcome:
    """How a run ended, for the exit code and run.json."""

    code: int = 0
    cause: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    hang: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
