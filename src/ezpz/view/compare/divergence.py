"""Find the step from which two curves differ: to the last bit, beyond rounding, and so that it matters.

r is the log ratio of the two curves. Runs that differ only by rounding begin with a tiny r, which grows slowly; its
mean over a window stays small. Signs say that they are not such runs, and the earliest counts:

    start   root mean square of r over the first 10 steps, before runs can drift apart, above the tolerance of a step;
            or both curves go up and down by more than that tolerance, but not together
    jump    median of |r| over 10 steps above 4 times the 90th percentile of the 25 steps before
    drift   mean of r over a window above its tolerance and above 4 standard errors

Rounding can also delay or hasten a steep fall of the loss. So a window's tolerance is m (1 + t |slope|), with m the
tolerance of a mean, t the steps so far and the slope that of the log loss: m in height, or m of the steps in time.

Tolerances are of the log ratio, so 1e-3 is one part in a thousand. They come from measurements on small networks
(docs/compare.md): weights rounded by 4e-3 give at most 6e-4 over the first 10 steps; in means over 50 steps they reach
0.5 of the tolerance in float32 and 0.7 in bfloat16, a learning rate that is 3 % higher 3 and more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.view.compare.paired_curves import Pair

MATERIAL = 0.02
_DEFAULT = 1e-3
_HALF = 2e-3  # of a mean, where weights are rounded to 8 bits at every step
_LONGEST_WINDOW = 50
_ENOUGH = 20  # values from which on it can be seen that they were rounded
_MANTISSAS = (8, 11)  # bits of bfloat16 and float16, the leading one included
_START = 10  # steps in which equal runs cannot have drifted apart
_BEFORE, _AFTER, _LEAST, _FACTOR = 25, 10, 5, 4.0
_CHUNK = 1 << 15  # places that are looked at together: 25 values of each are held
_SD = 4.0
_EXACT = 10  # steps equal to the last bit, after which the first that is not is where it began
_FEWEST = 20  # points from which on a correlation says something
_TOGETHER = 0.5  # correlation from step to step; with the same batches it is 0.9 and more, even with other weights


@dataclass(frozen=True)
class Tolerance:
    """By how much two equal runs may differ.

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


def tolerance(pair: Pair, *, half: bool = False) -> Tolerance:
    """Return the tolerance for a pair of runs; it is larger where the values were rounded when they were recorded.

    Args:
        pair: The runs.
        half: Whether one of them computes in half precision.
    """
    rounded = max(_resolution(pair.a[pair.finite]), _resolution(pair.b[pair.finite]))
    mean = max(_HALF if half else _DEFAULT, rounded / 2)
    source = "default of half precision" if half else "default"
    if rounded > _DEFAULT:
        source += f"; values are recorded to {rounded:.0e} of their size"
    return Tolerance(max(_DEFAULT, rounded), mean, max(MATERIAL, mean), source)


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


@dataclass(frozen=True)
class Divergence:
    """How two curves part.

    Attributes:
        points: Steps that both runs have.
        first: The first of them.
        last: The last of them.
        window: Steps in a window.
        first_different: First step at which the values are not the same to the last bit; None if there is none.
        at_start: Relative difference at the first step.
        numerics: Step from which on the curves differ by more than rounding.
        how: By what sign: ``start``, ``jump`` or ``drift``; empty if they do not.
        material: Last step of the first window whose mean difference matters.
        largest: Largest mean of a window, of either sign.
        final: Mean of the last window; 0.044 is 4.4 % above the first run.
        final_a: Mean of the first run over the last window.
        final_b: Mean of the second run over it.
        shared: Correlation of what goes up and down from step to step, from where they part on; near 1 where both see
            the same batches.
        missing: First step from which on one run has no finite value to the end, by ``a`` and ``b``.
        holes: Steps before that at which only one of the runs has a finite value.
    """

    points: int
    first: int
    last: int
    window: int
    first_different: int | None
    at_start: float
    numerics: int | None
    how: str
    material: int | None
    largest: float
    final: float
    final_a: float
    final_b: float
    shared: float | None
    missing: dict[str, int | None]
    holes: int


def measure(pair: Pair, allowed: Tolerance) -> Divergence:
    """Measure where two curves part; there is at least one common step."""
    import numpy as np

    finite, r = pair.finite, pair.ratio
    steps = pair.steps[finite]
    width = window_of(len(r))
    means, sds = _windowed(r, width)
    errors = _SD * sds / np.sqrt(width)
    limits = np.maximum(allowed.mean * (1.0 + _steepness(pair.levels[0], width)), errors)
    differs = np.flatnonzero(~((pair.a == pair.b) | (np.isnan(pair.a) & np.isnan(pair.b))))
    place, how = _parting(pair.levels, means, limits, allowed)
    matters = np.flatnonzero(np.abs(means) > np.maximum(allowed.material, errors))
    tail = slice(-width, None)
    missing = {"a": _gone(pair.a, pair.steps), "b": _gone(pair.b, pair.steps)}
    begins = min((step for step in missing.values() if step is not None), default=np.inf)
    holes = (np.isfinite(pair.a) != np.isfinite(pair.b)) & (pair.steps < begins)
    return Divergence(
        points=len(pair.steps),
        first=int(pair.steps[0]),
        last=int(pair.steps[-1]),
        window=width,
        first_different=int(pair.steps[differs[0]]) if differs.size else None,
        at_start=abs(float(r[0])) if r.size else 0.0,
        numerics=None if place is None else int(steps[place]),
        how=how,
        material=int(steps[matters[0] + width - 1]) if matters.size else None,
        largest=float(means[np.argmax(np.abs(means))]) if means.size else 0.0,
        final=float(r[tail].mean()) if r.size else 0.0,
        final_a=float(pair.a[finite][tail].mean()) if r.size else float("nan"),
        final_b=float(pair.b[finite][tail].mean()) if r.size else float("nan"),
        shared=shared[0] if (shared := _shared(pair.levels, slice(place or 0, None))) else None,
        missing=missing,
        holes=int(holes.sum()),
    )


def window_of(points: int) -> int:
    """Return the length of a window: 50 steps, a quarter of a shorter run, and at least 5."""
    return max(1, min(points, max(5, min(_LONGEST_WINDOW, points // 4))))


def _windowed(values: Any, width: int) -> tuple[Any, Any]:
    """Return mean and standard deviation of every ``width`` neighbours, each of shape (points - width + 1,)."""
    import numpy as np

    if len(values) < width:
        return np.empty(0), np.empty(0)
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    means = (sums[width:] - sums[:-width]) / width
    return means, np.sqrt(np.maximum((squares[width:] - squares[:-width]) / width - means**2, 0.0))


def _steepness(level: Any, width: int) -> Any:
    """Return t times the slope of a curve at t, a number for each window.

    The slope is that over a window, or over a tenth of t where that is longer, as noise would be multiplied with t.
    """
    import numpy as np

    smooth = _windowed(level, width)[0]
    place = np.arange(len(smooth))
    reach = np.maximum(width, place // 20)
    low, high = np.maximum(place - reach, 0), np.minimum(place + reach, len(smooth) - 1)
    return np.abs(smooth[high] - smooth[low]) / np.maximum(high - low, 1) * (place + width)


def _parting(levels: tuple[Any, Any], means: Any, limits: Any, allowed: Tolerance) -> tuple[int | None, str]:
    """Return the index at which the curves part and the sign that showed it."""
    import numpy as np

    r = levels[1] - levels[0]
    nonzero = np.flatnonzero(r)
    if not nonzero.size:
        return None, ""
    started = int(nonzero[0])
    jump = _jump(np.abs(r), allowed)
    if np.sqrt(np.mean(r[:_START] ** 2)) > allowed.step or _other_batches(levels, slice(0, jump), allowed):
        return started, "start"
    width = len(r) - len(means) + 1
    left = np.flatnonzero(np.abs(means) > limits)
    if jump is not None and (not left.size or jump <= left[0] + width - 1):
        return jump, "jump"
    if not left.size:
        return None, ""
    end = int(left[0]) + width - 1
    # Where many steps agree to the last bit, nothing but the first that does not can be the beginning.
    return (started, "jump") if started >= _EXACT else (end, "drift")


def _jump(size: Any, allowed: Tolerance) -> int | None:
    """Return the index at which |r| suddenly becomes larger and stays so for a while; one outlier does not count."""
    import numpy as np

    for places in _may_jump(size, allowed):
        inner = bool(places[0] >= _BEFORE and places[-1] <= len(size) - _AFTER)
        if inner:
            before = np.percentile(_windows(size, places - _BEFORE, _BEFORE), 90, axis=1)
            after = np.median(_windows(size, places, _AFTER), axis=1)
        else:  # fewer are behind, or ahead, at the ends
            before = np.array([np.percentile(size[max(0, at - _BEFORE) : at], 90) for at in places])
            after = np.array([np.median(size[at : at + _AFTER]) for at in places])
        found = np.flatnonzero((after > _FACTOR * before) & (after > allowed.step / 2))
        if found.size:
            start, low, high = int(places[found[0]]), before[found[0]], after[found[0]]
            between = np.clip(np.sqrt(low * high), 2.0 * low, 3.0 * low)  # up to half ahead may still be quiet
            return start + int(np.flatnonzero(size[start:] > between)[0])
    return None


def _may_jump(size: Any, allowed: Tolerance) -> Iterator[Any]:
    """Yield the indices where |r| may jump, ascending, in arrays that are not empty.

    Percentiles of a million windows take seconds. Where even the largest of the values ahead is no more than four times
    a value that the 90th percentile behind is not below, there is no jump: the least of the maxima of 5 times 5
    neighbours, because 5 of the 25 are as large.
    """
    import numpy as np

    count = len(size)
    first, last = _BEFORE, max(_BEFORE, count - _AFTER + 1)  # of the places with whole windows on both sides
    ends = [np.arange(_EXACT, min(first, count - _LEAST + 1)), np.arange(last, count - _LEAST + 1)]
    if len(ends[0]):
        yield ends[0]
    if last > first:
        maxima = _extremes(np.maximum, size, 5, 1)  # of 5 values from each on
        least = _extremes(np.minimum, maxima, 5, 5)[: last - first]
        ahead = np.maximum(maxima[:-5], maxima[5:])[first:last]
        places: Any = first + np.flatnonzero((ahead > _FACTOR * least) & (ahead > allowed.step / 2))
        yield from (places[start : start + _CHUNK] for start in range(0, len(places), _CHUNK))
    if len(ends[1]):
        yield ends[1]


def _extremes(pick: Any, values: Any, number: int, apart: int) -> Any:
    """Return for each place the extreme of ``number`` values, each ``apart`` places after the one before."""
    length = len(values) - (number - 1) * apart
    result = values[:length].copy()
    for turn in range(1, number):
        pick(result, values[turn * apart : turn * apart + length], out=result)
    return result


def _windows(values: Any, starts: Any, width: int) -> Any:
    import numpy as np

    return np.lib.stride_tricks.sliding_window_view(values, width)[starts]


def _gone(values: Any, steps: Any) -> int | None:
    """Return the step from which on a curve is not finite to its end."""
    import numpy as np

    finite = np.flatnonzero(np.isfinite(values))
    place = int(finite[-1]) + 1 if finite.size else 0
    return int(steps[place]) if place < len(values) else None


def _other_batches(levels: tuple[Any, Any], part: slice, allowed: Tolerance) -> bool:
    """Tell whether two curves go up and down on their own, each by more than noise, as with other batches.

    The first losses of a large model with a slow warm-up are all alike, whatever the batch is.
    """
    shared = _shared(levels, part)
    return shared is not None and shared[0] < _TOGETHER and shared[1] > allowed.step


def _shared(levels: tuple[Any, Any], part: slice) -> tuple[float, float] | None:
    """Return how far two curves go up and down together, and by how much the calmer one does from step to step.

    Second differences take the trend out; of independent noise they have 6 times the variance.
    """
    import numpy as np

    curves = [level[part] for level in levels]
    if len(curves[0]) < _FEWEST:
        return None
    one, two = (np.diff(curve, 2) for curve in curves)
    spread = float(one.std() * two.std())
    if spread == 0:
        return None
    together = float(np.mean((one - one.mean()) * (two - two.mean())) / spread)
    return together, float(min(one.std(), two.std())) / 6**0.5
