"""Choose round ticks for an axis, and their labels."""

from __future__ import annotations

from math import ceil, floor, isfinite, log10

_MOST = 6  # ticks beyond the first
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def nice_ticks(low: float, high: float, *, whole: bool = False, most: int = _MOST) -> tuple[list[float], list[str]]:
    """Return round positions between two different numbers, and a label for each.

    Args:
        low: Smaller end of the axis.
        high: Larger end of the axis.
        whole: Use whole numbers only, as steps are.
        most: About how many ticks beyond the first there may be.

    Returns:
        1 to ``most + 2`` positions, or up to 9 where fewer than two of them were round, ascending, as 1, 2 or 5 times a
        power of ten allow, and labels with the same number of decimals. Numbers too close for that get the two ends.
    """
    for number in range(most, max(most, _MOST) + 1):
        raw = (high - low) / number
        if not isfinite(raw) or raw <= 0:  # too far apart, or so near that the distance is no float
            break
        power = 10.0 ** floor(log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
        step = max(1.0, step) if whole else step
        ticks = [place * step for place in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
        if len(ticks) >= 2 and ticks[0] != ticks[-1]:
            return ticks, _labels(ticks, step, max(abs(low), abs(high)))
        if whole and step == 1.0:
            return [(low + high) / 2], [f"{(low + high) / 2:.0f}"]
    return [low, high], [f"{low:.3g}", f"{high:.3g}"]


def _labels(ticks: list[float], step: float, largest: float) -> list[str]:
    if step >= 1e-5 and largest < 1e7:
        decimals = max(0, -floor(log10(step) + 1e-9))
        return [f"{tick:.{decimals}f}" for tick in ticks]
    for digits in (6, 9, 12, 17):  # as few as tell one from the other
        labels = [f"{tick:.{digits}g}" for tick in ticks]
        if len(set(labels)) == len(labels):
            break
    return labels


def step_ticks(low: float, high: float, room: int) -> tuple[list[float], list[str]]:
    """Return whole positions whose labels stand side by side in ``room`` columns; none where not one fits."""
    for most in range(_MOST, 0, -1):
        ticks, labels = nice_ticks(low, high, whole=True, most=most)
        if sum(len(label) + 2 for label in labels) <= room + 2:
            return ticks, labels
    return [], []


def log_ticks(low: float, high: float, *, most: int = _MOST) -> tuple[list[float], list[str]]:
    """Return positions for an axis of decimal logarithms, and labels that are the numbers themselves.

    Args:
        low: Logarithm of the smaller end.
        high: Logarithm of the larger end.
        most: About how many ticks beyond the first there may be.

    Returns:
        Powers of ten, with 2 and 5 times them where the axis is short, or the ticks of `nice_ticks` where it is
        shorter.
    """
    for factors in ((1, 2, 5), (1,)):
        powers = range(floor(low), ceil(high) + 1)
        places = [power + log10(factor) for power in powers for factor in factors]
        ticks = [tick for tick in places if low - 1e-9 <= tick <= high + 1e-9]
        if 2 < len(ticks) <= most + 2:
            return ticks, [_power_label(tick) for tick in ticks]
    if len(ticks) > 2:
        ticks = ticks[:: ceil(len(ticks) / (most + 2))]
        return ticks, [_power_label(tick) for tick in ticks]
    values, labels = nice_ticks(10.0**low, 10.0**high, most=most)
    pairs = [(log10(value), label) for value, label in zip(values, labels, strict=True) if value > 0]
    return [tick for tick, _ in pairs], [label for _, label in pairs]


def _power_label(tick: float) -> str:
    power = floor(tick + 1e-9)
    factor = round(10.0 ** (tick - power))
    return f"{factor}e{power}" if abs(power) > 4 else f"{factor * 10.0**power:g}"


def shortened(ticks: list[float], labels: list[str], room: int) -> tuple[list[float], list[str]]:
    """Return ticks whose labels take at most ``room`` columns: fewer digits where these still differ, else none."""
    if max(map(len, labels), default=0) <= room:
        return ticks, labels
    for digits in (3, 2):
        short = [f"{float(label):.{digits}g}" for label in labels]
        if len(set(short)) == len(short) and max(map(len, short)) <= room:
            return ticks, short
    return [], []


def compacted(ticks: list[float], labels: list[str]) -> list[str]:
    """Return labels in few letters: 150k for 150000; as they were where none is that large, or two would be alike."""
    if max(map(abs, ticks)) < 1e4:
        return labels
    short = [_with_unit(tick, label) for tick, label in zip(ticks, labels, strict=True)]
    return short if len(set(short)) == len(short) else labels


def _with_unit(value: float, label: str) -> str:
    if abs(value) >= 1e18 or abs(value) < 1e4:
        return label
    size, unit = next(each for each in _UNITS if abs(value) >= each[0])
    return f"{value / size:.6g}{unit}"
