"""Comparisons as JSON can hold them."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

from ezpz.track.values import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ezpz.track.compare.comparison import Comparison
    from ezpz.track.run import Run

__all__ = ["as_object", "exit_code"]


def exit_code(found: Sequence[Comparison]) -> int:
    """Return the exit code of several comparisons: the largest."""
    return max(item.verdict.exit_code for item in found)


def as_object(runs: Sequence[Run], places: Sequence[Path], found: Sequence[Comparison]) -> dict[str, Any]:
    """Return all that was found as one object; NaN and infinities are strings as in a journal."""
    told = []
    for item in found:
        likely = [(each.section, each.key) for each in item.verdict.likely]
        settings = [{**asdict(each), "likely_cause": (each.section, each.key) in likely} for each in item.differences]
        told.append(
            {
                "letters": list(item.letters),
                "verdict": item.verdict.text,
                "exit_code": item.verdict.exit_code,
                "step": item.verdict.step,
                "notes": item.verdict.notes,
                "metric": item.metric or None,
                "divergence": asdict(item.divergence) if item.divergence else None,
                "tolerance": asdict(item.allowed) if item.allowed else None,
                "differences": settings,
                "throughput": asdict(item.throughput) if item.throughput else None,
            }
        )
    shown = {
        chr(ord("A") + number): {"path": str(place), "name": run.name, "state": run.state}
        for number, (run, place) in enumerate(zip(runs, places, strict=True))
    }
    clean: dict[str, Any] = _clean({"runs": shown, "comparisons": told, "exit_code": exit_code(found)})
    return clean


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return encode(value) if isinstance(value, float) else value
