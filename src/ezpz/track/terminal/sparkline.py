"""A curve in one line of text: ``▇▅▃▂▂▁▁``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.track.series import limits

if TYPE_CHECKING:
    from ezpz.track.series import Series

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-~=+*#"
_HOLE = "x"  # nothing finite here


def sparkline(series: Series, width: int, *, ascii_only: bool = False) -> str:
    """Draw a series in one line.

    Args:
        series: Points in the order of steps.
        width: Most characters.
        ascii_only: Use no character beyond ASCII.

    Returns:
        A character for each stretch of equally many points, as high as their mean stands in the range of values (as
        `ezpz.track.series.limits` has it), or ``x`` where none is finite.
    """
    import numpy as np

    shown = limits(series)
    number = min(width, len(series.values))
    if number <= 0:
        return ""
    if shown is None:
        return _HOLE * number
    levels = _ASCII if ascii_only else _BLOCKS
    low, high = shown
    values = np.where(np.isfinite(series.values), np.clip(series.values, low, high), np.nan)
    # As shares of the range: the sum and the distance of the largest floats are none.
    shares = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else values * 0 + 0.5
    means = _means(shares, number)
    places = np.where(np.isnan(means), 0, means * len(levels)).astype(int).clip(0, len(levels) - 1)
    return "".join(
        _HOLE if hole else levels[place] for hole, place in zip(np.isnan(means), places.tolist(), strict=True)
    )


def _means(values: Any, number: int) -> Any:
    import numpy as np

    starts: Any = np.arange(number) * len(values) // number
    held = ~np.isnan(values)
    counts = np.add.reduceat(held.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(held, values, 0.0), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
