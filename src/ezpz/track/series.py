"""Prepare the points of a metric for drawing: thinned out, in a range that no outlier flattens, with a caption.

A picture never hides: what was left out of the range, and every NaN, is in the caption.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.names import is_counter, order_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.table import Table

_FEWEST = 8  # points from which on one of them can be called an outlier
_FAR = 3.0  # times the distance between the 1st and the 99th percentile


class Series(NamedTuple):
    """The points of one metric.

    Attributes:
        name: The metric's own name.
        steps: float64 array of shape (points,).
        values: float64 array of shape (points,), NaN and infinities as recorded; steps without a record are not here.
        label: What a legend calls it, such as the run that it is from; empty where that is its name.
    """

    name: str
    steps: Any
    values: Any
    label: str = ""

    @property
    def caption(self) -> str:
        """The label, or else the name."""
        return self.label or self.name


def numeric_series(table: Table, *, counters: bool = False) -> list[Series]:
    """Return what can be drawn: numbers and bools, in the order of steps; no text or lists.

    Args:
        table: A run's rows.
        counters: Return also what only counts steps, such as ``epoch``.
    """
    steps = table.step_array.astype("f8")  # of all, so that those without holes share one array
    return [
        series_of(table, key, steps)
        for key, cells in table.cells.items()
        if cells.are_numbers and (counters or not is_counter(key))
    ]


def series_of(table: Table, key: str, steps: Any = None) -> Series:
    """Return the points of one metric that holds numbers and bools, in the order of steps.

    Args:
        table: A run's rows.
        key: The metric.
        steps: The steps of all rows as float64, where they are known already.
    """
    import numpy as np

    cells = table.cells[key]
    x = cells.pick(table.step_array.astype(np.float64) if steps is None else steps)
    values = cells.floats()
    if (x[1:] < x[:-1]).any():  # a resumed run may step back
        order = np.argsort(x, kind="stable")
        x, values = x[order], values[order]
    return Series(key, x, values)


def ordered(series: Sequence[Series]) -> list[Series]:
    """Return series as people look at them: losses, throughput, times, then the rest; each group in its own order."""
    return sorted(series, key=lambda item: order_of(item.name))


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
        return series._replace(values=values)
    first, last = series.steps[0], series.steps[-1]
    edges = first + (last - first) * (np.arange(1, buckets) / buckets)
    # Steps are sorted, so each range is one stretch; the last point belongs to the last of them.
    bounds = np.unique(np.concatenate([[0], np.searchsorted(series.steps, edges), [len(values)]])).tolist()
    holes = np.isnan(values)
    lowest = np.where(holes, np.inf, values) if holes.any() else values
    highest = np.where(holes, -np.inf, values) if holes.any() else values
    keep = set()
    for start, stop in pairwise(bounds):
        keep.add(start + int(lowest[start:stop].argmin()))
        keep.add(start + int(highest[start:stop].argmax()))
    index = np.array(sorted(keep))
    return series._replace(steps=series.steps[index], values=values[index])


def stretch_means(values: Any, starts: Any) -> Any:
    """Return the means of stretches of an array.

    Args:
        values: float64 array of shape (..., n).
        starts: Where each stretch begins, ascending; it ends where the next one begins.

    Returns:
        float64 array of shape (..., stretches): the mean of what is finite, NaN where nothing is.
    """
    import numpy as np

    held = np.isfinite(values)
    counts = np.add.reduceat(held, starts, axis=-1, dtype=np.int64)
    sums = np.add.reduceat(np.where(held, values, 0.0), starts, axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def logged(series: Series) -> Series:
    """Return the decimal logarithms of a series; what is not above 0, or not finite, becomes NaN."""
    import numpy as np

    drawn = np.isfinite(series.values) & (series.values > 0)
    return series._replace(values=np.log10(np.where(drawn, series.values, np.nan)))


def limits(series: Series) -> tuple[float, float] | None:
    """Return the range of values to show, or None if no value is finite.

    It is the whole range, except that values are left out which lie further beyond the 1st or 99th percentile than
    three times the distance between these two, as the first step's ``dt`` does.
    """
    import numpy as np

    whole = np.isfinite(series.values)
    finite = series.values if whole.all() else series.values[whole]
    if not finite.size:
        return None
    least, largest = float(finite.min()), float(finite.max())
    if finite.size >= _FEWEST:
        # Not interpolated: with few points that would pull the percentile towards the outlier itself.
        places = -(-(finite.size - 1) // 100), (finite.size - 1) * 99 // 100
        low, high = (float(value) for value in np.partition(finite, places)[list(places)])
        far = _FAR * (high - low)
        if far > 0 and (least < low - far or largest > high + far):
            finite = finite[(finite >= low - far) & (finite <= high + far)]
            return float(finite.min()), float(finite.max())
    return least, largest


def captions(series: Series, shown: tuple[float, float] | None = None, *, log: bool = False) -> list[str]:
    """Return what the drawing does not show, a sentence each: ``3 NaN, first at step 412``, ``1 point above, max …``.

    Args:
        series: All points.
        shown: The range that is drawn; by default that of `limits`.
        log: The drawing has a logarithmic axis, which shows no value up to 0 and leaves no other out.
    """
    import numpy as np

    values, steps = series.values, series.steps
    whole = np.isfinite(values)
    notes = []
    if not whole.all():
        for what, mask in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
            if mask.any():
                notes.append(f"{int(mask.sum())} {what}, first at step {steps[mask.argmax()]:.0f}")
    if log:
        low = whole & (values <= 0)
        return [*notes, f"{_points(low)} not above 0, first at step {steps[low.argmax()]:.0f}"] if low.any() else notes
    shown = limits(series) if shown is None else shown
    if shown is None or not whole.any():
        return notes
    for side, mask, argument in (
        ("above, max", whole & (values > shown[1]), np.argmax),
        ("below, min", whole & (values < shown[0]), np.argmin),
    ):
        if mask.any():
            extreme = np.flatnonzero(mask)[argument(values[mask])]
            notes.append(f"{_points(mask)} {side} {values[extreme]:.6g} at step {steps[extreme]:.0f}")
    return notes


def _points(mask: Any) -> str:
    number = int(mask.sum())
    return "1 point" if number == 1 else f"{number} points"
