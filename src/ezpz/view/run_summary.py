"""Sum up how a run went: `RunSummary`, which the card, the report and ``ezpz runs`` show each in its way."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ezpz.track.names import is_accuracy, is_loss, is_validation, main_loss
from ezpz.track.run_reader import seconds_taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series


class Reached(NamedTuple):
    """What a metric has reached; ``best`` is None where no value is finite, ``is_share`` tells that 1 is all."""

    name: str
    points: int
    first: float
    last: float
    last_step: float
    best: float | None = None
    best_step: float = 0.0
    is_share: bool = False


class RunSummary:
    """How a run went; only what is asked for is computed. Its metrics may have been read already."""

    def __init__(self, run: Run, series: Iterable[Series] | None = None) -> None:
        self.run, self._given = run, series

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """All numeric metrics that have a value, by name."""
        from ezpz.track.series import numeric_series

        found = numeric_series(self.run.table) if self._given is None else self._given
        return {item.name: item for item in found if len(item.values)}

    @property
    def losses(self) -> list[Reached]:
        """The main loss, and those of validation."""
        main = main_loss(self.series)
        others = [name for name in self.series if is_loss(name) and is_validation(name) and name != main]
        return [_reached(self.series[name], rises=False) for name in ([main] if main else []) + others]

    @property
    def accuracies(self) -> list[Reached]:
        """The first accuracy of training, the first of validation, and all others."""
        return [_reached(self.series[name], rises=True) for name in accuracies(self.series)]

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        return seconds_taken(self.run, *self.run.rows.time_range)

    @property
    def first_step_seconds(self) -> float | None:
        """Seconds from the start of the program to the end of the first step."""
        stages = self.run.record.timeline.items()
        return next((float(taken) for name, taken in stages if "first" in name and "step" in name and taken >= 0), None)


def _reached(item: Series, *, rises: bool) -> Reached:
    import numpy as np

    values, steps = item.values, item.steps
    reached = Reached(item.name, len(values), float(values[0]), float(values[-1]), float(steps[-1]))
    finite = np.isfinite(values)
    if not finite.any():
        return reached
    place = np.flatnonzero(finite)[values[finite].argmax() if rises else values[finite].argmin()]
    best = float(values[place])
    return reached._replace(best=best, best_step=float(steps[place]), is_share=rises and best <= 1.0)


def accuracies(names: Iterable[str]) -> list[str]:
    """Return the metrics that say how much is right: the first of training, the first of validation, the others."""
    found = sorted(filter(is_accuracy, names), key=is_validation)
    return list(dict.fromkeys([*found[:1], *filter(is_validation, found), *found]))
