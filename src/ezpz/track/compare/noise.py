"""Set the tolerance for curves of two equal runs: from reruns where some were given, else by rule.

Tolerances are of the log ratio, so 1e-3 is one part in a thousand. They come from measurements on small networks
(docs/compare.md): weights rounded by 4e-3 give at most 6e-4 over the first 10 steps; in means over 50 steps they reach
0.5 of the tolerance in float32 and 0.7 in bfloat16, a learning rate that is 3 % higher 3 and more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.compare.curves import Pair

MATERIAL = 0.02
_DEFAULT = 1e-3
_HALF = 2e-3  # of a mean, where weights are rounded to 8 bits at every step
_SMALLEST = 1e-4  # whatever a few reruns say
_SD = 4.0
_LONGEST_WINDOW = 50
_ENOUGH = 20  # values from which on it can be seen that they were rounded
_MANTISSAS = (8, 11)  # bits of bfloat16 and float16, the leading one included


@dataclass(frozen=True)
class Tolerance:
    """What counts as noise.

    Attributes:
        step: Of the log ratio at single steps, before the runs have had time to drift apart.
        mean: Of its mean over a window.
        material: Of its mean over a window, from which on a difference matters.
        source: Where the numbers come from, in words.
    """

    step: float
    mean: float
    material: float
    source: str


def window_of(points: int) -> int:
    """Return the length of a window: 50 steps, a quarter of a shorter run, and at least 5."""
    return max(1, min(points, max(5, min(_LONGEST_WINDOW, points // 4))))


def windowed(values: Any, width: int) -> tuple[Any, Any]:
    """Return mean and standard deviation of every ``width`` neighbours, each of shape (points - width + 1,)."""
    import numpy as np

    if len(values) < width:
        return np.empty(0), np.empty(0)
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    means = (sums[width:] - sums[:-width]) / width
    return means, np.sqrt(np.maximum((squares[width:] - squares[:-width]) / width - means**2, 0.0))


def default_tolerance(pair: Pair, *, half: bool = False) -> Tolerance:
    """Return the tolerance without reruns; it is larger where the values were rounded when they were recorded.

    Args:
        pair: The runs in question.
        half: Whether one of them computes in half precision.
    """
    rounded = max(_resolution(pair.a[pair.finite]), _resolution(pair.b[pair.finite]))
    mean = _HALF if half else _DEFAULT
    source = "default of half precision" if half else "default"
    if rounded > _DEFAULT:
        source += f"; values are recorded to {rounded:.0e} of their size"
    return Tolerance(max(_DEFAULT, rounded), max(mean, rounded / 2), MATERIAL, source)


def tolerance(pair: Pair, reruns: Sequence[Pair], seeds: Sequence[Pair], *, half: bool = False) -> Tolerance:
    """Return the tolerance for a pair of runs.

    Args:
        pair: The runs in question.
        half: Whether one of them computes in half precision.
        reruns: The first run with reruns of it: the numerics null.
        seeds: The first run with runs of other seeds: the seed null.
    """
    import numpy as np

    default = default_tolerance(pair, half=half)
    step, mean, material, source = default.step, default.mean, default.material, default.source
    differing = [each for each in reruns if each.ratio.any()]
    if reruns and not differing:
        source += "; the reruns are identical"  # which says nothing about another kernel's rounding
    if differing:
        step = max(_SMALLEST, _SD * _size(np.concatenate([each.ratio for each in differing])))
        mean = max(_SMALLEST, _SD * _size(np.concatenate([_means(each) for each in differing])))
        source = f"{len(differing)} rerun{'s' * (len(differing) > 1)}"
    if seeds:
        material = max(material, _SD * _size(np.concatenate([_means(each) for each in seeds])))
        source += f"; {len(seeds)} other seed{'s' * (len(seeds) > 1)}"
    return Tolerance(step, mean, max(material, mean), source)


def _means(each: Pair) -> Any:
    return windowed(each.ratio, window_of(len(each.ratio)))[0]


def _size(values: Any) -> float:
    import numpy as np

    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _resolution(values: Any) -> float:
    """Return by what share of their size values were rounded, 0 if they were not: bfloat16, float16, few decimals."""
    import numpy as np

    values = np.unique(values[values != 0])
    if values.size < _ENOUGH:
        return 0.0
    mantissas = np.frexp(values)[0]
    for bits in _MANTISSAS:
        if (mantissas * 2**bits == np.round(mantissas * 2**bits)).all():
            return float(2.0**-bits)
    for decimals in range(7):
        if np.allclose(values, np.round(values, decimals), rtol=1e-12, atol=0.0):
            return float(10.0**-decimals / np.median(np.abs(values)))
    return 0.0
