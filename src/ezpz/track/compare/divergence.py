"""Find the step from which two curves differ: to the last bit, beyond rounding, and so that it matters.

r is the log ratio of the two curves. Runs that differ only by rounding begin with a tiny r, which grows slowly; its
mean over a window stays small. Signs say that they are not such runs, and the earliest counts:

    start   root mean square of r over the first 10 steps, before runs can drift apart, above the tolerance of a step;
            or both curves go up and down by more than that tolerance, but not together
    jump    median of |r| over 10 steps above 4 times the 90th percentile of the 25 steps before
    drift   mean of r over a window above its tolerance and above 4 standard errors

Rounding can also delay or hasten a steep fall of the loss. So a window's tolerance is m (1 + t |slope|), with m the
tolerance of a mean, t the steps so far and the slope that of the log loss: m in height, or m of the steps in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ezpz.track.compare.noise import window_of, windowed

if TYPE_CHECKING:
    from ezpz.track.compare.curves import Pair
    from ezpz.track.compare.noise import Tolerance

_START = 10  # steps in which equal runs cannot have drifted apart
_BEFORE, _AFTER, _LEAST, _FACTOR = 25, 10, 5, 4.0
_CHUNK = 1 << 15  # steps that are looked at together: 25 copies of each are held
_SD = 4.0
_EXACT = 10  # steps equal to the last bit, after which the first that is not is where it began
_FEWEST = 20  # points from which on a correlation says something
_TOGETHER = 0.5  # correlation from step to step; with the same batches it is 0.9 and more, even with other weights


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
    means, sds = windowed(r, width)
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


def _steepness(level: Any, width: int) -> Any:
    """Return t times the slope of a curve at t, a number for each window.

    The slope is that over a window, or over a tenth of t where that is longer, as noise would be multiplied with t.
    """
    import numpy as np

    smooth = windowed(level, width)[0]
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

    count = len(size)
    before, after = np.full(count, np.inf), np.zeros(count)
    for first in range(0, count, _CHUNK):
        last = min(first + _CHUNK, count)
        behind = slice(max(first, _BEFORE), last)
        if last > behind.start:
            before[behind] = _rolling(np.percentile, size[behind.start - _BEFORE : last - 1], _BEFORE, 90)
        ahead = slice(first, min(last, count - _AFTER + 1))
        if ahead.stop > first:
            after[ahead] = _rolling(np.median, size[first : ahead.stop + _AFTER - 1], _AFTER)
    for place in range(_EXACT, min(_BEFORE, count)):  # fewer are behind, or ahead, at the ends
        before[place] = np.percentile(size[:place], 90)
    for place in range(max(0, count - _AFTER + 1), count - _LEAST + 1):
        after[place] = np.median(size[place:])
    places = np.flatnonzero((after > _FACTOR * before) & (after > allowed.step / 2))
    if not places.size:
        return None
    start = int(places[0])  # up to half of the steps ahead may still be quiet
    between = np.clip(np.sqrt(before[start] * after[start]), 2.0 * before[start], 3.0 * before[start])
    return start + int(np.flatnonzero(size[start:] > between)[0])


def _rolling(function: Any, values: Any, width: int, *more: float) -> Any:
    import numpy as np

    return function(np.lib.stride_tricks.sliding_window_view(values, width), *more, axis=1)


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
