"""Tell which of two runs is better at the end, by the metrics that the card shows: losses and accuracies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ezpz.track.names import is_loss, is_validation, main_loss
from ezpz.view.compare.divergence import window_of
from ezpz.view.compare.paired_curves import pair
from ezpz.view.run_summary import accuracies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.series import Series
    from ezpz.view.compare.paired_curves import Pair

_LEAST = 1e-3  # relative difference below which neither is better: rounding alone moves a mean by as much
_ERRORS = 4.0  # standard errors of the mean difference, likewise


@dataclass(frozen=True)
class Reached:
    """What two runs have reached in one metric, over the last steps that both have.

    Attributes:
        metric: Its name.
        a: Mean of the first run over the last window; of validation the last value.
        b: That of the second run.
        better: The letter of the better run; empty where they differ by no more than noise.
        is_share: Whether 1 is all.
    """

    metric: str
    a: float
    b: float
    better: str
    is_share: bool


def which_is_better(
    first: Mapping[str, Series], second: Mapping[str, Series], letters: tuple[str, str]
) -> list[Reached]:
    """Compare what two runs have reached, by each metric of the card that both have at a common step."""
    names = [name for name in first if name in second]
    main = main_loss(names)
    rising = accuracies(names)
    losses = dict.fromkeys([*([main] if main else []), *(n for n in names if is_loss(n) and is_validation(n))])
    found = []
    for name in [*losses, *rising]:
        both = pair(first[name], second[name])
        if both.finite.any():
            found.append(_reached(both, letters, rises=name in rising))
    return found


def _reached(both: Pair, letters: tuple[str, str], *, rises: bool) -> Reached:
    width = 1 if is_validation(both.metric) else window_of(int(both.finite.sum()))
    a, b = both.a[both.finite][-width:], both.b[both.finite][-width:]
    apart = b - a
    mean = float(apart.mean())
    error = float(apart.std()) / width**0.5
    is_noise = abs(mean) <= max(_LEAST * max(abs(float(a.mean())), abs(float(b.mean()))), _ERRORS * error)
    better = "" if is_noise else letters[(mean > 0) == rises]
    is_share = rises and float(min(a.min(), b.min())) >= 0.0 and float(max(a.max(), b.max())) <= 1.0
    return Reached(both.metric, float(a.mean()), float(b.mean()), better, is_share)
