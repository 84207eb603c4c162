"""What is drawn of a metric: its points, thinned out, a range that an outlier cannot flatten, and a caption in words.

A picture never hides: what was left out of the range, and every NaN, is told in the caption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ezpz.track.columns import Table

__all__ = ["Series", "captions", "limits", "numeric_series", "thin"]

_COUNTERS = {"iter", "iteration", "step", "epoch"}  # the x axis again, under another name
_FEWEST = 8  # points from which on one of them can be called an outlier
_FAR = 3.0  # times the distance between the 1st and the 99th percentile


class Series(NamedTuple):
    """The points of one metric.

    Attributes:
        name: The metric's own name.
        steps: float64 array of shape (points,).
        values: float64 array of shape (points,), NaN and infinities as recorded; steps without a record are not here.
    """

    name: str
    steps: Any
    values: Any


def numeric_series(table: Table) -> list[Series]:
    """Return what can be drawn: numbers and bools, in the order of steps; no text, lists or counters such as ``epoch``."""
    import numpy as np

    steps = np.array(table.steps, dtype=np.float64)
    result = []
    for key, cells in table.cells.items():
        if key.rpartition("/")[2] in _COUNTERS or not set(map(type, cells.values)) <= {float, int, bool}:
            continue
        x = steps[cells.index]
        order = np.argsort(x, kind="stable")  # a resumed run may step back
        result.append(Series(key, x[order], np.array(cells.values, dtype=np.float64)[order]))
    return result


def thin(series: Series, buckets: int) -> Series:
    """Thin a series out to its smallest and largest value in each of ``buckets`` ranges of steps.

    Args:
        series: Points in the order of steps.
        buckets: How many ranges; a drawing can show no more than its width.

    Returns:
        At most ``2 * buckets`` points in the order of steps; a spike of one point survives. Points that are not finite
        become NaN, and where a range holds nothing else, one NaN stays as the gap.
    """
    import numpy as np

    values = np.where(np.isfinite(series.values), series.values, np.nan)
    if len(values) <= 2 * buckets:
        return Series(series.name, series.steps, values)
    first, last = series.steps[0], series.steps[-1]
    place = ((series.steps - first) * (buckets / ((last - first) or 1.0))).astype(np.int64).clip(0, buckets - 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))  # steps are sorted, so each bucket is one stretch
    group: Any = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    # Sorted by bucket and then by value with NaN last: the first of a stretch is its minimum.
    lowest = np.lexsort((values, group))[starts]
    highest = np.lexsort((-values, group))[starts]
    keep = np.unique(np.concatenate([lowest, highest]))
    return Series(series.name, series.steps[keep], values[keep])


def limits(series: Series) -> tuple[float, float] | None:
    """Return the range of values to show, or None if no value is finite.

    It is the whole range, except that values are left out which lie further beyond the 1st or 99th percentile than
    three times the distance between these two, as the first step's ``dt`` does.
    """
    import numpy as np

    finite = series.values[np.isfinite(series.values)]
    if finite.size >= _FEWEST:
        # Not interpolated: with few points that would pull the percentile towards the outlier itself.
        low = float(np.percentile(finite, 1, method="higher"))
        high = float(np.percentile(finite, 99, method="lower"))
        far = _FAR * (high - low)
        if far > 0:
            finite = finite[(finite >= low - far) & (finite <= high + far)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def captions(series: Series) -> list[str]:
    """Return what the drawing does not show, a sentence each: ``3 NaN, first at step 412``, ``1 point above, max …``."""
    import numpy as np

    values, steps = series.values, series.steps
    notes = []
    for what, mask in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
        if mask.any():
            notes.append(f"{int(mask.sum())} {what}, first at step {steps[mask.argmax()]:.0f}")
    shown = limits(series)
    if shown is None:
        return notes
    finite = np.where(np.isfinite(values), values, np.nan)
    for side, mask, extreme in (
        ("above, max", finite > shown[1], np.nanargmax(finite)),
        ("below, min", finite < shown[0], np.nanargmin(finite)),
    ):
        number = int(mask.sum())
        if number:
            points = "1 point" if number == 1 else f"{number} points"
            notes.append(f"{points} {side} {values[extreme]:.6g} at step {steps[extreme]:.0f}")
    return notes
