"""Thin out and round metrics for the page, with means where a smoothed line needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.series import limits, thin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.track.series import Series

_MOST_MEANS = 200  # points of a smoothed line


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        name: What the legend calls it.
        steps: float64 array of whole numbers, shape (points,).
        values: float64 array, NaN where there is a gap, shape (points,).
        means: Steps and means of the stretches that were thinned out, from which a smoothed line is made; the points
            themselves where none was left out.
    """

    name: str
    steps: Any
    values: Any
    means: tuple[Any, Any] | None


def line_of(series: Series, buckets: int) -> Line:
    """Return a line of at most ``2 * buckets`` points: the extremes of each stretch of steps."""
    points = thin(series, buckets)
    means = None
    if len(points.steps) < len(series.steps):
        means = bucket_means(series, min(buckets, _MOST_MEANS))
    return Line(series.caption, points.steps, points.values, means)


def bucket_means(series: Series, buckets: int, ends: tuple[float, float] | None = None) -> tuple[Any, Any]:
    """Return the middle steps and the means of ``buckets`` stretches of steps.

    Args:
        series: Points in the order of steps; what is not finite does not count.
        buckets: How many stretches.
        ends: First and last step of all stretches together; otherwise those of the series.

    Returns:
        Two float64 arrays of shape (buckets,): whole steps, and means with NaN where a stretch holds nothing.
    """
    import numpy as np

    first, last = ends or (series.steps[0], series.steps[-1])
    width = ((last - first) or 1.0) / buckets
    middles = np.round(first + (np.arange(buckets) + 0.5) * width)
    finite = np.isfinite(series.values)
    place = ((series.steps[finite] - first) / width).astype(np.int64).clip(0, buckets - 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a mean that is no float is a gap
        number = np.bincount(place, minlength=buckets)
        means = np.bincount(place, weights=series.values[finite], minlength=buckets) / number
    return middles, np.where(np.isfinite(means), means, np.nan)


def bounds(series: Iterable[Series]) -> tuple[float, float] | None:
    """Return the range of values that shows all of several series; None if nothing is finite."""
    import numpy as np

    with np.errstate(over="ignore"):  # 1e308 and its opposite
        ranges = [shown for item in series if (shown := limits(item)) is not None]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def widened(low: float, high: float, margin: float = 0.05) -> tuple[float, float]:
    """Return a range with some room at both ends, which has a length also when all values are one."""
    from math import isfinite

    room = (high / 2 - low / 2) * 2 * margin or abs(low) * 0.1 or 1.0
    ends = low - room, high + room
    return ends if all(map(isfinite, ends)) and ends[0] < ends[1] else (low, high)


def rounded(values: Sequence[float] | Any) -> list[float | None]:
    """Return values with 6 significant digits in the fewest characters of JSON; None where not finite."""
    import numpy as np

    shown: list[float | None] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        if value - value != 0.0:
            shown.append(None)
        else:
            short = float(f"{value:.6g}")
            shown.append(int(short) if abs(short) < 1e9 and short == int(short) else short)
    return shown


def deltas(steps: Any) -> list[int]:
    """Return steps as the first one and the distances that follow, which are short."""
    whole = [int(step) for step in steps.tolist()]
    return [now - before for before, now in zip([0, *whole], whole, strict=False)]
