"""Write numbers and times as people read them."""

from __future__ import annotations

from math import isfinite, isnan


def number(value: float) -> str:
    """Return a number: ``12,345`` or ``0.01235`` or ``1.234e-07``."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= size < 1e15 else f"{value:.4g}"


def duration(seconds: float, *, whole: bool = False) -> str:
    """Return a time in its two largest units: ``2 h 3 min``, ``4 min 5 s``, ``12.3 s``, ``85 ms``.

    Args:
        seconds: The time.
        whole: Round to seconds: ``12 s``.
    """
    if seconds < 1 and not whole:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95 and not whole:
        return f"{seconds:.3g} s"
    rounded = round(seconds)
    for size, word, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if rounded >= size:
            return f"{rounded // size} {word} {rounded % size // part} {smaller}"
    return f"{rounded} s"
