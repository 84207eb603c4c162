"""Where an axis has its ticks, and what they say."""

from __future__ import annotations

from math import ceil, floor, isfinite, log10

__all__ = ["nice_ticks"]

_MOST = 6  # ticks beyond the first


def nice_ticks(low: float, high: float, *, whole: bool = False) -> tuple[list[float], list[str]]:
    """Return round positions between two different numbers, and a label for each.

    Args:
        low: Smaller end of the axis.
        high: Larger end of the axis.
        whole: Use whole numbers only, as steps are.

    Returns:
        2 to 8 positions, ascending, as 1, 2 or 5 times a power of ten allow, and labels with the same number of
        decimals. Numbers too close for that get the two ends.
    """
    raw = (high - low) / _MOST
    if not isfinite(raw) or raw <= 0:  # too far apart, or so near that the distance is no float
        return [low, high], [f"{low:.3g}", f"{high:.3g}"]
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    ticks = [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    if len(ticks) < 2 or ticks[0] == ticks[-1]:
        ticks = [low, high] if not whole else [(low + high) / 2]
    return ticks, [_label(tick, step, max(abs(low), abs(high))) for tick in ticks]


def _label(tick: float, step: float, largest: float) -> str:
    if step < 1e-5 or largest >= 1e7:
        return f"{tick:.6g}"
    return f"{tick:.{max(0, -floor(log10(step) + 1e-9))}f}"
