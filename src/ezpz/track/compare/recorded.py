"""What the rows themselves say of a cause: the recorded learning rate, and the steps at which a run was started again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.track.compare.curves import pair
from ezpz.track.compare.differences import Difference
from ezpz.track.compare.kinds import Kind, words_of

if TYPE_CHECKING:
    from ezpz.track.series import Series
    from ezpz.track.table import Table

__all__ = ["rate_difference", "restarts"]

_SAME = 1e-6  # relative: rates are printed and read again


def rate_difference(first: dict[str, Series], second: dict[str, Series]) -> tuple[Difference | None, int | None]:
    """Compare the learning rates that two runs recorded.

    Returns:
        The difference at the first step at which they are not the same, and that step; None and None without one.
    """
    import numpy as np

    for name, ours in first.items():
        words = words_of(name)
        if name not in second or not ("lr" in words or ("learning" in words and "rate" in words)):
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
        return Difference(
            "recorded", f"{name} at step {step}", "changed", *values, "recorded", kind, material=True
        ), step
    return None, None


def restarts(table: Table) -> list[int]:
    """Return the steps at which later attempts of a run went on."""
    return [
        step
        for step, before, now in zip(table.steps[1:], table.attempts, table.attempts[1:], strict=False)
        if now != before
    ]
