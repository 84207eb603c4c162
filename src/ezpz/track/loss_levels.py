"""Find where a loss rose: a spike that came back, and a level that it kept to the end.

Losses differ in size and in noise, so they are compared by their logarithms: a rise counts in standard deviations of
what the rows before did, as their median absolute deviation tells them. Nothing is said of a rise that something
recorded explains (`known_changes`), or that the same curve has made before and recovered from: restarts of a schedule,
epochs that are learned by heart, tasks that take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.names import (
    is_accuracy,
    is_learning_rate,
    is_loss,
    is_loss_term,
    is_memory,
    is_optimizer,
    is_throughput,
    is_time,
    is_validation,
    weighs_a_term,
)
from ezpz.track.series import series_of

if TYPE_CHECKING:
    from ezpz.track.run_reader import Run

__all__ = ["STRETCH", "Curve", "KnownChanges", "Rise", "Spike", "known_changes", "middles", "rise_of", "spike_of"]

STRETCH = 25  # rows whose median and spread a row is compared with: those of the stretch before its own
_TO_SIGMA = 1.4826  # of a normal distribution: standard deviations in a median absolute deviation
_SPREADS = 12.0  # standard deviations of the values
_OF_LOGS, _OF_STEPS = 6.0, 15.0  # of their logarithms, and of these from row to row
_OF_PROGRESS = 0.25  # of the way from the first losses to the lowest
_TRIED = 50  # candidates, the highest first
_OTHERS, _ALONE = 3, 3.0  # a spike is thrice as far from its median as all but three others of its curve
_LASTS, _LIKE = 5, 1.5  # rows, times: a rise that lasts is a pattern of the training where another is as high
_BACK = 5  # rows whose median is low again where a spike is over

_FEWEST = 40  # rows of a loss that can have risen for good
_LEAST_BLOCK, _BLOCKS = 5, 40  # rows whose median is a level; and how many of them a long run has
_LAST_ROWS, _OF_ROWS = 20, 10  # the last 20 rows, or a tenth of all, are the end
_FAR, _NEAR = 2.0, 1.25  # times: how far the end is above the lowest level, or above the start
_SIGMAS, _OF_MEDIANS = 4.5, 8.0  # standard deviations of single rows, and of the difference of two medians
_OF_WALK = 2.2  # standard deviations of a random walk of so many blocks
_APART = 5  # blocks: two neighbours tell noise from a walk too poorly
_ABRUPT = 4.0  # times: where the end is as far above the very first row, that row alone is the start
_SUDDEN = 3  # rows
_FALLS = 1.05  # times: the third quarter over the last one, of a loss that goes down again


class Curve(NamedTuple):
    """One loss of one rank: float64 arrays of the steps at which it was recorded, and of its values."""

    key: str
    rank: int
    steps: Any
    values: Any


def middles(grid: Any) -> tuple[Any, Any]:
    """Return of each row of a matrix the median, and the spread as standard deviations of a normal distribution."""
    import numpy as np

    medians = np.median(grid, axis=-1)
    return medians, _TO_SIGMA * np.median(np.abs(grid - medians[..., None]), axis=-1)


# What is known to move a loss


class KnownChanges(NamedTuple):
    """What rank 0 has recorded that changes a loss by design, float64 arrays of steps, ascending.

    Attributes:
        borders: Where an epoch, a stage, a length of sequences or another setting changes.
        restarts: Where a learning rate goes up again to what it has been before.
        weights: Of metrics that weigh a term of a loss: their steps and values.
    """

    borders: Any
    restarts: Any
    weights: tuple[tuple[Any, Any], ...]

    def explain(self, steps: Any, at: Any) -> Any:
        """Tell of places of a curve whether it may rise there by design.

        Args:
            steps: Of the curve.
            at: Places, an array of ints.

        Returns:
            A mask: a border is at most two rows away, or a restart is in the stretch up to there.
        """
        last = len(steps) - 1
        border = _holds(self.borders, steps[(at - 2).clip(0)], steps[(at + 1).clip(0, last)])
        return border | _holds(self.restarts, steps[(at - STRETCH).clip(0)], steps[at])

    def grow(self, step: float) -> bool:
        """Tell whether a term weighs more at the end than at a step."""
        return any(
            len(values) > 0 and values[-1] > 1.1 * values[max(0, int(steps.searchsorted(step)) - 1)]
            for steps, values in self.weights
        )


def _holds(sorted_steps: Any, first: Any, last: Any) -> Any:
    """Tell of ranges of steps, both ends included, whether one of the steps is in it."""
    return sorted_steps.searchsorted(last, side="right") > sorted_steps.searchsorted(first, side="left")


def known_changes(run: Run) -> KnownChanges:
    """Return what the rows of a run tell of changes by design."""
    import numpy as np

    borders, restarts, weights = [np.empty(0)], [np.empty(0)], []
    for key, cells in run.table.cells.items():
        is_rate = is_learning_rate(key)
        if not cells.are_numbers or not (is_rate or weighs_a_term(key) or not _is_measured(key)):
            continue
        series = series_of(run.table, key)
        steps, values = series.steps, series.values
        moved: Any = np.flatnonzero(values[1:] != values[:-1]) + 1
        if is_rate:
            up = (values[1:] > 1.5 * values[:-1]) & (values[1:] <= 1.05 * np.maximum.accumulate(values)[:-1])
            restarts.append(steps[1:][up])
        elif weighs_a_term(key):
            weights.append((steps, values))
        elif len(moved) * 20 <= len(values):
            borders.append(steps[moved])
    return KnownChanges(np.unique(np.concatenate(borders)), np.unique(np.concatenate(restarts)), tuple(weights))


def _is_measured(key: str) -> bool:
    """Tell whether a metric is measured; others are set, or count."""
    kinds = (is_loss, is_loss_term, is_validation, is_accuracy, is_time, is_throughput, is_memory, is_optimizer)
    return any(is_kind(key) for is_kind in kinds)


# A spike


class Spike(NamedTuple):
    """The highest spike of a curve.

    Attributes:
        at: Its place among the rows.
        median: Of the stretch before.
        spread: Of the stretch before, as standard deviations.
        back: The place from which on the loss is low again; None where it is not.
    """

    at: int
    median: float
    spread: float
    back: int | None


def spike_of(curve: Curve, known: KnownChanges) -> Spike | None:
    """Return the highest spike of one rank.

    Every row is compared with median and spread of the stretch of rows before its own. It has to be above twice that
    median too, and to have lost a quarter of what was learned: near 0 losses are noisy.
    """
    import numpy as np

    values = curve.values
    rows = -(-len(values) // STRETCH) * STRETCH
    if rows < 2 * STRETCH:
        return None
    padded = np.full(rows, np.nan)
    padded[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    grid = padded.reshape(-1, STRETCH)
    whole = np.isfinite(grid).all(axis=1)
    if not whole[0]:
        return None
    medians, spreads = middles(grid)
    median, jump = medians[:-1, None], grid[1:] - medians[:-1, None]
    lowest = np.minimum.accumulate(np.where(whole, medians, np.inf))[:-1, None]
    is_high = whole[:-1, None] & (jump > np.abs(median)) & (jump > _OF_PROGRESS * (medians[0] - lowest))
    is_spike = is_high & (jump > _SPREADS * spreads[:-1, None])
    if not is_spike.any():
        return None
    heights = None
    if np.nanmin(padded) > 0:
        logs = _without_jumps(np.log(padded), curve.steps.searchsorted(known.borders)).reshape(grid.shape)
        far = logs[1:] - np.median(logs, axis=1)[:-1, None]
        is_high &= far > np.log(2)
        of_steps = _usual(middles(np.diff(logs, axis=1))[1]) / np.sqrt(2)
        is_spike &= is_high & (far > np.maximum(_OF_LOGS * _usual(middles(logs)[1]), _OF_STEPS * of_steps)[:-1, None])
        heights = _Heights(far)
    places = np.flatnonzero(is_spike)
    first = np.maximum.accumulate(np.where(np.diff(is_high.ravel(), prepend=False), np.arange(is_high.size), 0))
    places = places[~known.explain(curve.steps, first[places] + STRETCH)]  # by where it begins
    for place in places[np.argsort(-jump.ravel()[places], kind="stable")][:_TRIED]:
        if heights is None or heights.is_rare(int(place)):
            at = int(place) + STRETCH
            usual, spread = float(medians[place // STRETCH]), float(spreads[place // STRETCH])
            return Spike(at, usual, spread, _back(values, at, usual + max(_SPREADS * spread, abs(usual))))
    return None


def _usual(spreads: Any) -> Any:
    """Return of each stretch the median spread of the three up to it, or of all where that is more."""
    import numpy as np

    before = np.stack([spreads, np.roll(spreads, 1), np.roll(spreads, 2)])
    before[1:, 0], before[2, 1] = spreads[0], spreads[0]
    return np.maximum(np.median(before, axis=0), np.nanmedian(spreads))


class _Heights:
    """How high all rows of a curve are, to tell a spike from what it does again and again.

    Args:
        far: Logarithms of the rows over the median of the stretch before, of shape (stretches, rows).
    """

    def __init__(self, far: Any) -> None:
        import numpy as np

        self._far = np.nan_to_num(far, nan=0.0).ravel()
        self._highest = self._far.reshape(far.shape).max(axis=1)
        self._order = np.argsort(-self._highest)[: _OTHERS + 3]

    def is_rare(self, place: int) -> bool:
        """Tell whether a row is far above all but a few others, and no rise that lasts and comes again."""
        stretch, height = place // STRETCH, self._far[place]
        others = [self._highest[each] for each in self._order.tolist() if abs(each - stretch) > 1]
        if len(others) >= _OTHERS and height < _ALONE * others[_OTHERS - 1]:
            return False
        around = self._far[max(0, place - _LASTS + 1) : place + _LASTS] > height / 2
        lasts = any(around[at : at + _LASTS].all() for at in range(len(around) - _LASTS + 1))
        return not (lasts and bool(others) and bool(others[0] * _LIKE > height))


def _back(values: Any, at: int, limit: float) -> int | None:
    """Return the first place after `at` from which on the median of a few rows is not above a limit."""
    import numpy as np

    for place in (np.flatnonzero(values[at:] <= limit) + at).tolist():
        if np.nanmedian(values[place : place + _BACK]) <= limit:
            return int(place)
    return None


# A level that is kept


class Rise(NamedTuple):
    """A loss that rose and did not come back.

    Attributes:
        at: The place of the first row that is high.
        low: The level from which it rose.
        start: The level at which it began.
        end: Its median over the last rows.
        rows: How many rows these are.
    """

    at: int
    low: float
    start: float
    end: float
    rows: int

    @property
    def is_above_start(self) -> bool:
        """Whether it ended well above its start."""
        return self.end > _NEAR * self.start


def rise_of(curve: Curve, known: KnownChanges) -> Rise | None:
    """Return where one rank's loss rose for good; a loss that is not above 0 may be meant to rise.

    Its end is above twice the lowest level before, by 4.5 standard deviations of single rows and a quarter of what was
    learned; or a quarter above its start, by 2 of them and by 8 standard deviations of a median. It was not as high
    before, and does not go down again.
    """
    import numpy as np

    finite = np.isfinite(curve.values)
    values, steps = (curve.values, curve.steps) if finite.all() else (curve.values[finite], curve.steps[finite])
    rows = len(values)
    if rows < _FEWEST or values.min() <= 0 or _begins_at_0(values):
        return None
    logs = np.log(values)
    levels = _levels_of(logs)
    if levels is None:
        return None
    is_noisy = levels.end - levels.low < 6 * levels.spread
    size = max(STRETCH, levels.size) if is_noisy else levels.size
    middle = (levels.low + levels.end) / 2
    at = _rises_at(logs, min(middle, levels.low + max(3 * levels.noise, float(np.log(_NEAR)))), size)
    if rows - at < _LAST_ROWS or _falls_again(logs, at, levels) or _was_high_before(logs[:at], middle, levels, size):
        return None
    if known.explain(steps, np.array([at]))[0] or known.grow(steps[at]):
        return None
    if len(known.borders) and _levels_of(_without_jumps(logs, steps.searchsorted(known.borders))) is None:
        return None
    place = at if finite.all() else int(np.flatnonzero(finite)[at])
    low, start, end = np.exp([levels.low, levels.start, levels.end]).tolist()
    return Rise(place, low, start, end, levels.rows)


class _Levels(NamedTuple):
    """Logarithms of a curve's levels, how the lowest spreads, and the last; how many rows the last has, and others."""

    start: float
    low: float
    end: float
    noise: float
    spread: float
    rows: int
    size: int


def _levels_of(logs: Any) -> _Levels | None:
    """Return the levels of a curve that ends well above the lowest, or above its start."""
    import numpy as np

    rows = len(logs)
    last, size = max(_LAST_ROWS, rows // _OF_ROWS), max(_LEAST_BLOCK, rows // _BLOCKS)
    end, spread = map(float, middles(logs[-last:]))
    first, usual = float(logs[0]), float(middles(logs[rows // 2 :])[1])
    if end - first >= max(np.log(_ABRUPT), _SIGMAS * usual) and first < np.quantile(logs[1:], 0.01):
        return _Levels(first, first, end, 0.0, spread, last, size)
    before = (rows - last) // size
    levels, spreads = middles(logs[: before * size].reshape(before, size))
    lowest, begun = int(levels.argmin()), max(10, size)
    low, of_low = float(levels[lowest]), float(spreads[lowest])
    spread = max(spread, of_low)
    start, noise = map(float, middles(logs[:begun]))
    is_far = end - low >= max(np.log(_FAR), _SIGMAS * spread)
    is_far = is_far and np.exp(end) - np.exp(low) >= _OF_PROGRESS * (np.exp(start) - np.exp(low))
    of_medians = 1.25 * np.hypot(noise / np.sqrt(begun), spread / np.sqrt(last))
    is_above = end - start >= max(np.log(_NEAR), 2 * max(noise, spread), _OF_MEDIANS * of_medians)
    if not (is_far or is_above) or (end - low < np.log(_ABRUPT) and end - low < _wander(logs, size)):
        return None
    return _Levels(start, low, end, of_low, spread, last, size)


def _wander(logs: Any, size: int) -> float:
    """Return how far a curve may get from one level by chance, as a random walk: a smoothed loss wanders.

    The levels of a walk part the more the further apart they are, those of noise do not.
    """
    import numpy as np

    levels = np.median(logs[: len(logs) // size * size].reshape(-1, size), axis=1)
    near, far = (float(middles(levels[apart:] - levels[:-apart])[1]) for apart in (1, _APART))
    return _OF_WALK * float(np.sqrt(max(0.0, far**2 - near**2) / (_APART - 1) * len(levels)))


def _without_jumps(logs: Any, places: Any) -> Any:
    """Return a curve without its jumps at some places, and with what it does between them."""
    import numpy as np

    if not len(places):
        return logs
    places = places[(places >= _BACK + 2) & (places <= len(logs) - _BACK - 1)][:, None]
    after, before = places + np.arange(1, _BACK + 1), places - np.arange(2, _BACK + 2)
    jumps = np.zeros(len(logs))
    np.add.at(jumps, places[:, 0], np.nan_to_num(np.median(logs[after], axis=1) - np.median(logs[before], axis=1)))
    return logs - np.cumsum(jumps)


def _begins_at_0(values: Any) -> bool:
    """Tell whether a curve is a sum, or a mean that began at 0: its first rows grow by as much as the first one is."""
    import numpy as np

    first = float(values[0])
    growth = np.median((values[1:6] - first) / (np.arange(1, 6) * first))
    grows = 0.45 <= growth <= 1.3 and (np.diff(values[:6]) > 0).all()
    return bool(grows and first < 0.25 * np.median(values))


def _rises_at(logs: Any, level: float, size: int) -> int:
    """Return the first row that is above a level, after the last stretch that is not."""
    import numpy as np

    blocks = len(logs) // size
    tail = len(logs) - blocks * size
    medians = np.median(logs[tail:].reshape(blocks, size), axis=1)
    low = np.flatnonzero(medians <= level)
    begin = tail + int(low[-1]) * size if len(low) else 0
    for place in range(begin, min(len(logs), begin + 2 * size)):
        if logs[place] > level and np.median(logs[place : place + _BACK]) > level:
            return place
    return begin


def _was_high_before(logs: Any, middle: float, levels: _Levels, size: int) -> bool:
    """Tell whether a curve has risen from below the middle to near its end before, and come back."""
    import numpy as np

    blocks = len(logs) // size
    medians = np.median(logs[: blocks * size].reshape(blocks, size), axis=1)
    low = np.flatnonzero(medians <= middle)
    return bool(len(low)) and bool((medians[low[0] :] > middle + 0.4 * (levels.end - middle)).any())


def _falls_again(logs: Any, at: int, levels: _Levels) -> bool:
    """Tell whether a curve that has not risen suddenly goes down again."""
    import numpy as np

    if logs[at : at + _SUDDEN].max() - logs[max(0, at - 1)] >= 0.7 * (levels.end - levels.low):
        return False
    quarter = max(1, (len(logs) - at) // 4)
    third, fourth = np.median(logs[-2 * quarter : -quarter]), np.median(logs[-quarter:])
    return bool(third - fourth >= max(np.log(_FALLS), 4 * 1.25 * levels.spread * np.sqrt(2 / quarter)))
