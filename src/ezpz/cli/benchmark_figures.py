"""The figures of one trainer, read from its run folder; what the run did not record is None, never a guess.

Rows of steps hold ``dt`` and its parts in seconds, ``sps``, ``tps``, ``mfu`` in percent, ``memory_gib`` now and then. A
trainer that records a row per epoch has ``epoch`` and the ``dt`` of all its steps instead; its configuration tells how many these
are: ``epoch_steps``, or ``steps`` and ``epochs``.
"""

from __future__ import annotations

from math import isfinite
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError, UsageError
from ezpz.track.run import open_run
from ezpz.track.table import Table
from ezpz.track.values import decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ezpz.track.run import Run

__all__ = ["NOTHING", "read_figures"]

_RATES = ("sps", "tps", "mfu")
_PARTS = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer"}
NOTHING = dict.fromkeys(
    (
        "ranks",
        "parameters",
        "steps",
        "sps",
        "tps",
        "mfu",
        "memory_gib",
        "first_step",
        "step_median",
        "step_p95",
        "time_to_first_step",
    )
)


def read_figures(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a run's figures, and why it ended early in its own words; empty for a run that did not, or is not there.

    The figures: ``ranks parameters steps``; ``sps tps mfu`` (medians of the steady steps); ``memory_gib`` (the largest of all
    ranks); ``first_step step_median step_p95`` and ``time_to_first_step`` (since the process began) in seconds; ``parts``, the
    median seconds of each part of a step.
    """
    try:
        run = open_run(folder)
        table = run.table
    except UsageError:
        return {**NOTHING, "parts": {}}, ""
    except TrackError:  # it ended before its first row
        table = Table()
        run.__dict__["windows"] = []
    config = run.facts.get("config")
    config = config if isinstance(config, dict) else {}
    effective = run.facts.get("effective")
    effective = effective if isinstance(effective, dict) else {}
    ranks = run.facts.get("ranks")
    told = {
        "ranks": ranks.get("world_size") if isinstance(ranks, dict) else None,
        "parameters": config.get("parameters") or effective.get("model.parameters"),
        "memory_gib": _memory(run, table),
    }
    figures = _of_epochs(table, config) if "epoch" in table.cells else _of_steps(run, table, config)
    return {**NOTHING, **told, **figures}, run.cause


def _of_steps(run: Run, table: Table, config: dict[str, Any]) -> dict[str, Any]:
    seconds = _column(table, "dt")
    skip = _warmup(len(seconds), config)
    timeline = run.facts.get("timeline")
    start = timeline.get("first_step") if isinstance(timeline, dict) else None
    rest = seconds[skip:]
    return {
        "steps": len(seconds) or None,
        **{name: _middle(_column(table, name)[skip:]) for name in _RATES},
        "first_step": seconds[0] if seconds else None,
        "step_median": _middle(rest),
        "step_p95": quantiles(rest, n=20, method="inclusive")[-1] if len(rest) > 1 else None,
        "time_to_first_step": start if seconds and isinstance(start, (int, float)) else None,
        "parts": {
            part: middle
            for name, part in _PARTS.items()
            if (middle := _middle(_column(table, name)[skip:])) is not None
        },
    }


def _of_epochs(table: Table, config: dict[str, Any]) -> dict[str, Any]:
    """Return what rows of whole epochs tell: neither a first step nor a spread of steps can be seen in them."""
    seconds = _column(table, "dt")
    skip = 1 if len(seconds) > 1 else 0
    rates = {name: _middle(_column(table, name)[skip:]) for name in _RATES}
    steps, epoch = _epoch_steps(config), _middle(seconds[skip:])
    if steps is None or not epoch:
        return {**rates, "parts": {}}
    samples = config.get("samples_per_step")
    if rates["sps"] is None and isinstance(samples, (int, float)):
        rates["sps"] = samples * steps / epoch
    return {**rates, "steps": steps * len(seconds), "step_median": epoch / steps, "parts": {}}


def _epoch_steps(config: dict[str, Any]) -> int | None:
    """Return the steps of an epoch: as the run says, or its steps by its epochs where that is a whole number."""
    told, steps, epochs = (config.get(name) for name in ("epoch_steps", "steps", "epochs"))
    if isinstance(told, int) and told > 0:
        return told
    if isinstance(steps, int) and isinstance(epochs, int) and 0 < epochs <= steps and steps % epochs == 0:
        return steps // epochs
    return None


def _warmup(steps: int, config: dict[str, Any]) -> int:
    """Return how many steps at the start are no steady ones: a tenth, at least two, and those that the run called so."""
    told = config.get("warmup")
    wanted = max(2, steps // 10, told if isinstance(told, int) else 0)
    return wanted if wanted < steps else max(0, steps - 1)


def _column(table: Table, name: str) -> list[float]:
    cells = table.cells.get(name)
    return list(_numbers(cells.values)) if cells else []


def _numbers(values: Iterable[Any]) -> Iterable[float]:
    return (float(value) for value in values if type(value) in {int, float} and isfinite(value))


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None


def _memory(run: Run, table: Table) -> float | None:
    """Return the largest memory of all ranks: rank 0's own rows, and the windows over all."""
    known = _column(table, "memory_gib")
    for window in run.windows:
        keys = window["m"].get("keys")
        entry = keys.get("memory_gib") if isinstance(keys, dict) else None
        largest = entry.get("max") if isinstance(entry, dict) else None
        if isinstance(largest, list):
            known += _numbers(decode(value) for value in largest)
    return max(known, default=None)
