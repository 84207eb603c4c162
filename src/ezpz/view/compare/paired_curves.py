"""Pair one metric of two runs by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.track.names import is_counter, is_learning_rate, main_loss
from ezpz.track.series import Series, series_of
from ezpz.view.compare.differences import Difference
from ezpz.view.compare.kinds_of_settings import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.track.run_reader import Run


# What the rows themselves say of a cause: the recorded learning rate, and the steps at which a run was started again.

_SAME = 1e-6  # relative: rates are printed and read again


def rate_difference(
    first: Mapping[str, Series], second: Mapping[str, Series], letters: tuple[str, str]
) -> Difference | None:
    """Return how the learning rates that two runs recorded differ, at the first step at which they do; else None."""
    import numpy as np

    for name, ours in first.items():
        if name not in second or not is_learning_rate(name):
            continue
        both = pair(ours, second[name])
        apart = np.flatnonzero(~np.isclose(both.a, both.b, rtol=_SAME, atol=0.0, equal_nan=True))
        if not apart.size:
            continue
        place = int(apart[0])
        quotient = both.b[both.a != 0] / both.a[both.a != 0]
        is_factor = place == 0 and np.allclose(quotient, quotient[0], rtol=1e-4) if quotient.size else False
        kind = Kind.OPTIMIZER if is_factor else Kind.SCHEDULE
        step = int(both.steps[place])
        values = (float(both.a[place]), float(both.b[place]))
        who = [
            letter
            for letter, turns in zip(letters, (_turns(both.a, place), _turns(both.b, place)), strict=True)
            if turns
        ]
        only = f" in {who[0]} only" if len(who) == 1 else ""
        key = f"{name} at step {step}{only}"
        return Difference("recorded", key, "changed", *values, "recorded", kind, material=True, step=step)
    return None


def _turns(values: Any, place: int) -> bool:
    """Tell whether a rate is another one at a place than in the row before."""
    return place > 0 and bool(values[place] != values[place - 1])


_FLOOR = 1e-5  # share of where a curve begins below which its values count as equal: a loss of 0 has no logarithm


@dataclass(frozen=True)
class Pair:
    """A metric at the steps that two runs have in common.

    Attributes:
        metric: Its name.
        steps: float64 array of shape (points,), rising.
        a: float64 array of shape (points,), the first run's values as recorded.
        b: The second run's.
    """

    metric: str
    steps: Any
    a: Any
    b: Any

    @cached_property
    def finite(self) -> Any:
        """Mask of shape (points,): where both runs have a number."""
        import numpy as np

        return np.isfinite(self.a) & np.isfinite(self.b)

    @cached_property
    def is_positive(self) -> bool:
        """Whether all numbers allow a logarithm of their ratio."""
        return bool((self.a[self.finite] >= 0).all() and (self.b[self.finite] >= 0).all())

    @cached_property
    def levels(self) -> tuple[Any, Any]:
        """Both curves where both are finite: logarithms, or values over their typical size where some are negative.

        Before the logarithm, 1e-5 of where the first curve begins is added, so that a loss of 0 has one.
        """
        import numpy as np

        a, b = (self.a, self.b) if self.finite.all() else (self.a[self.finite], self.b[self.finite])
        if not self.is_positive:
            size = float(np.median(np.abs(a))) or float(np.max(np.abs(a), initial=0.0)) or 1.0
            return a / size, b / size
        floor = (_FLOOR * float(np.median(a[:5])) if a.size else 0.0) or np.finfo(np.float64).tiny
        return np.log(a + floor), np.log(b + floor)

    @property
    def ratio(self) -> Any:
        """log(b / a), or (b - a) over the typical size where some values are negative; NaN nowhere."""
        return self.levels[1] - self.levels[0]


class SeriesByName(Mapping[str, Series]):
    """What can be drawn of a run, each step once: of rows with one step the last counts.

    A series is made when it is asked for and not kept: of two long runs not all are in memory.
    """

    def __init__(self, run: Run) -> None:
        self._table = run.table
        self._names = [name for name, cells in run.table.cells.items() if cells.are_numbers and not is_counter(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Series:
        import numpy as np

        if name not in self._names:
            raise KeyError(name)
        item = series_of(self._table, name)
        last: Any = np.append(item.steps[1:] > item.steps[:-1], True)
        return item if last.all() else item._replace(steps=item.steps[last], values=item.values[last])


def choose_metric(all_series: Sequence[Mapping[str, Series]], wanted: str | None) -> str | None:
    """Return the metric to compare: ``wanted``, else the loss that all runs have; None where they have none.

    Raises:
        UsageError: No run has a metric of that name.
    """
    names = [name for name in all_series[0] if all(name in other for other in all_series[1:])]
    if wanted is not None:
        known = sorted({name for each in all_series for name in each})
        if wanted not in known:
            raise UsageError(
                f"no metric {wanted!r} (from --metric) in any of the runs; "
                f"expected one of {', '.join(known[:20]) or 'some'}."
            )
        return wanted if wanted in names else None
    return main_loss(names)


def pair(first: Series, second: Series) -> Pair:
    """Pair two series of one metric by step; steps that one of them lacks are left out."""
    import numpy as np

    if np.array_equal(first.steps, second.steps):
        return Pair(first.name, first.steps, first.values, second.values)
    steps, here, there = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    return Pair(first.name, steps, first.values[here], second.values[there])
