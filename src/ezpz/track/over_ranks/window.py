"""Compute statistics of a window of steps over all ranks, and make their records for the journal.

    {"world":2,"every":1,"steps":[0,1],"held":[2,2],"keys":{"loss":{"mean":[2.5,"NaN"],"min":[2.0,1.0],
     "max":[3.0,1.0],"std":[0.5,"NaN"],"argmin":[0,1],"argmax":[1,1],"ranks":[[2.0,"NaN"],[3.0,1.0]]}}}

``held`` says of each step how many ranks' rows are in the record. ``batches``, where it is there, has for some steps 13
hexadecimal digits of each rank, for its place among data-parallel ranks and the sum of its batch
(`ezpz.track.step_states.packed`), or ``-`` as often where these are not known. ``weights``, ``where``, ``gradients``
and ``inputs`` have as many of a look at the weights (`ezpz.track.over_ranks.replica_looks`): 20 bits of its layout, for
``inputs`` of the place, and the sum.

Of each step: the mean and the standard deviation (of the population) of the ranks that recorded the key, in float64
around their own centre; where all of them gave a weight, weighted by it, ``sum(w x) / sum(w)``. A rank of weight 0 does
not count, even if its value is NaN; where all weights are 0, none is used. NaN is carried into mean and standard
deviation. The extremes are those of the numbers; they are NaN only where there is nothing else. ``argmin`` and
``argmax`` are the lowest rank that has it. Where no rank recorded a key, everything is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.track.journal_reader import MOST_NUMBERS
from ezpz.track.step_states import NO_BATCH, SUM_COLUMNS
from ezpz.track.values import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.track.over_ranks.slices import Slice

__all__ = ["MOST_RANKS", "records", "statistics"]

MOST_RANKS = 64  # whose values are all kept; of larger worlds the mean of each rank over the window


def statistics(values: Any, mask: Any, weights: Any = None) -> dict[str, tuple[Any, Any]]:
    """Compute the statistics of one key over the ranks.

    Args:
        values: float64 array of shape (world, n).
        mask: bool array of that shape: where there is a value.
        weights: float64 array of that shape, NaN where none was given; or None.

    Returns:
        Name to an array of shape (n,) and a bool mask that tells where it is defined; names as in a
        record.
    """
    import numpy as np

    w = _shares(mask, weights)
    clean = np.where(w > 0, values, 0.0)
    finite = np.where(np.isfinite(clean), clean, 0.0)
    # Scaled by a power of two, which is exact: then neither the largest nor the smallest numbers overflow in a square.
    power = np.frexp(np.abs(finite).max(axis=0, initial=0.0))[1]
    with np.errstate(all="ignore"):  # infinities and NaN among the values are results, not mistakes
        scaled = np.ldexp(clean, -power)
        total = w.sum(axis=0)
        centre = scaled[(w > 0).argmax(axis=0), np.arange(scaled.shape[1])]
        centre = np.where(np.isfinite(centre), centre, 0.0)
        centre += (w * (scaled - centre)).sum(axis=0) / total
        std = np.sqrt((w * (scaled - centre) ** 2).sum(axis=0) / total)
        results = {"mean": np.ldexp(centre, power), "std": np.ldexp(std, power)}
    number = mask & ~np.isnan(values)
    for name, fill in (("min", np.inf), ("max", -np.inf)):
        filled = np.where(number, values, fill)
        best = filled.min(axis=0) if name == "min" else filled.max(axis=0)
        # An infinity may equal what fills the gaps; where all are NaN, the first of them represents all.
        holders = np.where(number.any(axis=0), number & (filled == best), mask)
        at = results[f"arg{name}"] = holders.argmax(axis=0)
        results[name] = np.take_along_axis(values, at[None], axis=0)[0]
    return {name: (array, mask.any(axis=0)) for name, array in results.items()}


def _shares(mask: Any, weights: Any) -> Any:
    """Return what each value counts for, scaled so that the largest of a step is at most 1."""
    import numpy as np

    equal = mask.astype(np.float64)
    if weights is None:
        return equal
    sound = np.isfinite(weights) & (weights >= 0)
    given = np.where(mask & sound, weights, 0.0)
    most = given.max(axis=0, initial=0.0)
    usable = (sound | ~mask).all(axis=0) & (most > 0)
    return np.where(usable, given / np.where(most > 0, most, 1.0), equal)


def records(
    slices: Mapping[int, Sequence[Slice]], world: int, most_ranks: int = MOST_RANKS
) -> Iterator[dict[str, Any]]:
    """Yield the records of one window: one, or several of fewer steps (of fewer keys in a large world).

    Python's JSON encoder keeps all other threads waiting, 1 µs for each number, so that none gets more than 8192 of
    them.

    Args:
        slices: What each rank sent of this window, in its order; a later value of a step counts.
        world: World size.
        most_ranks: The largest world of which all values are kept.

    Yields:
        The ``m`` of a journal record of kind ``ranks``, ready for JSON, in the order of steps.
    """
    import numpy as np

    pieces = [piece for rank in sorted(slices) for piece in slices[rank] if len(piece.steps)]
    if not pieces:
        return
    steps = np.unique(np.concatenate([piece.steps for piece in pieces]))
    places = [(piece, np.searchsorted(steps, piece.steps)) for piece in pieces]
    names = list(dict.fromkeys(key for piece in pieces for key in piece.columns if key not in SUM_COLUMNS))
    recorded: Any = np.zeros((world, len(steps)), dtype=bool)
    for piece, place in places:
        recorded[piece.rank, place] = True
    count = recorded.sum(axis=0).tolist()
    every = world <= most_ranks
    weights = _weights(places, world, len(steps))
    sums = _sums(places, world)
    built = (_key(name, places, weights, (world, len(steps)), every=every) for name in names)
    if not every:
        for name, columns in zip(names, built, strict=True):
            yield _record(world, steps, count, {name: _as_json(columns)}, None) | sums
            sums = {}
        return
    keys = {name: _as_json(columns) for name, columns in zip(names, built, strict=True)}
    width = max(1, MOST_NUMBERS // max(1, len(keys) * (world + 6)))
    for first in range(0, len(steps), width):
        yield _record(world, steps, count, keys, slice(first, first + width)) | sums
        sums = {}


def _record(
    world: int, steps: Any, count: Sequence[int], keys: Mapping[str, Any], part: slice | None
) -> dict[str, Any]:
    """Return one record: of some steps, or of all steps with one value per rank where ``part`` is None."""
    some = slice(None) if part is None else part
    content = {
        name: {**{what: values[some] for what, values in statistic.items()}, "ranks": [each[some] for each in ranks]}
        for name, (statistic, ranks) in keys.items()
    }
    head = {"world": world, "every": int(part is not None), "steps": steps[some].tolist(), "held": count[some]}
    return {**head, "keys": content}


def _as_json(columns: tuple[Any, Any]) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """Return what `_key` does as lists for JSON, once for all records of a window."""
    statistic, ranks = columns
    return {what: _json(*values) for what, values in statistic.items()}, [_json(*values) for values in ranks]


def _key(
    name: str, places: Sequence[tuple[Slice, Any]], weights: Any, shape: tuple[int, int], *, every: bool
) -> tuple[Any, Any]:
    """Return the statistics of one key, and each rank's values and mask: of all steps, or the mean alone."""
    import numpy as np

    values: Any = np.full(shape, np.nan)
    mask: Any = np.zeros(shape, dtype=bool)
    for piece, place in places:
        if name in piece.columns:
            column, there = piece.columns[name]
            chosen = slice(None) if there is None else there
            values[piece.rank, place[chosen]] = column[chosen]
            mask[piece.rank, place[chosen]] = True
    ranks = list(zip(values, mask, strict=True)) if every else _means(values, mask)
    return statistics(values, mask, weights), ranks


def _sums(places: Sequence[tuple[Slice, Any]], world: int) -> dict[str, Any]:
    """Return what stands for the batches and weights of all ranks: by kind, a string for each step that has some."""
    sums: dict[str, Any] = {}
    for name, kind in SUM_COLUMNS.items():
        found: dict[int, list[str]] = {}
        for piece, _ in places:
            column, there = piece.columns.get(name, ((), None))
            for at, number in enumerate(column):
                if there is None or there[at]:
                    texts = found.setdefault(int(piece.steps[at]), [NO_BATCH] * world)
                    texts[piece.rank] = f"{int(number):013x}"
        if found:
            sums[kind] = {str(step): "".join(found[step]) for step in sorted(found)}
    return sums


def _weights(places: Sequence[tuple[Slice, Any]], world: int, count: int) -> Any:
    import numpy as np

    if all(piece.weights is None for piece, _ in places):
        return None
    weights = np.full((world, count), np.nan)
    for piece, place in places:
        if piece.weights is not None:
            weights[piece.rank, place] = piece.weights
    return weights


def _means(values: Any, mask: Any) -> list[tuple[Any, Any]]:
    """Return each rank's mean over the steps that it recorded, as arrays of one."""
    import numpy as np

    count = mask.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):  # as in `statistics`
        means = (np.where(mask, values, 0.0) / np.maximum(count, 1)).sum(axis=1, keepdims=True)
    return list(zip(means, count > 0, strict=True))


def _json(array: Any, there: Any) -> list[Any]:
    import numpy as np

    numbers: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(array)).tolist():
            numbers[place] = encode(numbers[place])
    for place in np.flatnonzero(~there).tolist():
        numbers[place] = None
    return numbers
