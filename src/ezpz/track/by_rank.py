"""Read what each rank recorded: a matrix of rank by step out of the journal's windows.

    {"v":1,"t":…,"step":99,"k":"ranks","m":{"world":4,"every":1,"steps":[0,…,99],"held":[4,…,4],"keys":{
        "loss":{"mean":[…],"min":[…],"max":[…],"std":[…],"argmin":[…],"argmax":[…],"ranks":[[…],[…],[…],[…]]}}}}

``ranks`` holds a list for each rank: a value for each step of the window, or their mean alone in large worlds
(``"every":0``). A value that a rank did not record is null. ``held`` says of each step how many ranks' rows are in the
record. The export, the plots and the report read them here.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import TrackError
from ezpz.track.names import BEFORE_COLLECTIVE, is_step_time, is_throughput, is_time, main_loss, part_of_step, unit
from ezpz.track.series import Series, stretch_means
from ezpz.track.table import first_steps
from ezpz.track.values import decode
from ezpz.why.straggler_rules import CHANCE, LAG, chance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.track.journal_reader import Row
    from ezpz.track.run_reader import Run


class Matrix(NamedTuple):
    """One metric of all ranks.

    Attributes:
        name: Its name.
        steps: float64 array of shape (steps,), ascending; in large worlds the last step of each window.
        values: float64 array of shape (ranks, steps), NaN where a rank recorded nothing.
    """

    name: str
    steps: Any
    values: Any


def counting_windows(run: Run) -> list[Row]:
    """Return the records over all ranks, oldest first, without the steps that a later attempt recorded again."""
    first = first_steps(run.rows)
    windows = []
    for row in run.windows:
        steps, keys = row["m"].get("steps"), row["m"].get("keys")
        if not isinstance(keys, dict) or not isinstance(steps, list) or not all(type(step) is int for step in steps):
            continue  # a version that is not known here, or somebody's own
        bound = min((step for attempt, step in first.items() if attempt > row["a"]), default=None)
        number = len(steps) if bound is None else bisect_left(steps, bound)
        if number:
            windows.append(row if number == len(steps) else _until(row, number))
    return sorted(windows, key=lambda row: row["m"]["steps"][0])


def _until(row: Row, number: int) -> Row:
    """Return the first steps of a record; means over all of its steps are left out."""
    steps = row["m"]["steps"]

    def cut(values: Any) -> Any:
        if not isinstance(values, list):
            return values
        if len(values) == len(steps) and not isinstance(values[0], list):
            return values[:number]
        return [each[:number] for each in values if isinstance(each, list) and len(each) == len(steps)]

    keys = {
        key: {part: cut(values) for part, values in entry.items()} if isinstance(entry, dict) else entry
        for key, entry in row["m"]["keys"].items()
    }
    return {**row, "m": {**row["m"], "steps": steps[:number], "held": held(row)[:number], "keys": keys}}


def rank_keys(windows: Sequence[Row]) -> list[str]:
    """Return the metrics of which the ranks' own values are known."""
    return list(
        dict.fromkeys(key for row in windows for key, entry in row["m"]["keys"].items() if _ranks_of(entry) is not None)
    )


def _ranks_of(entry: Any) -> Any:
    return (entry.get("ranks") or None) if isinstance(entry, dict) else None


def rank_values(row: Row, key: str) -> tuple[Any, Any] | None:
    """Return one metric of all ranks in one record; None where it holds none.

    Returns:
        Steps, a float64 array of shape (n,), and values, of shape (ranks, n), NaN where a rank recorded nothing. The
        means of a large world count for the last step of their window.

    Raises:
        TrackError: The record is not as described above.
    """
    import numpy as np

    ranks = _ranks_of(row["m"]["keys"].get(key))
    if ranks is None:
        return None
    try:
        steps = np.array(row["m"]["steps"], dtype=np.float64)
        values = np.array(ranks, dtype=np.float64)  # null becomes NaN, and "NaN" or "Infinity" are read as numbers are
        steps = steps[-1:] if values.shape[1] == 1 else steps
        if values.shape[1] != len(steps):
            raise ValueError(f"{values.shape[1]} values for {len(steps)} steps")  # noqa: TRY301  # shown below
    except (ValueError, TypeError, IndexError) as error:
        raise TrackError(
            f"cannot read {key!r} of all ranks at step {row['step']} (from the journal): {error}; "
            "expected a list of numbers for each rank. Another version of ezpz may have written it."
        ) from error
    return steps, values


def matrix(windows: Sequence[Row], key: str) -> Matrix | None:
    """Return one metric of all ranks over all windows, those of a world that changed its size filled up; None without.

    Steps at which no rank has recorded it are left out.

    Raises:
        TrackError: As `rank_values`.
    """
    import numpy as np

    parts = []
    for row in windows:
        part = rank_values(row, key)
        if part is not None:
            there = _recorded(row, key)
            parts.append(part if there.all() or len(there) != len(part[0]) else (part[0][there], part[1][:, there]))
    if not parts:
        return None
    world = max(len(values) for _, values in parts)
    full = [np.pad(v, ((0, world - len(v)), (0, 0)), constant_values=np.nan) for _, v in parts]
    return Matrix(key, np.concatenate([steps for steps, _ in parts]), np.concatenate(full, axis=1))


def _recorded(row: Row, key: str) -> Any:
    """Return at which steps of a record some rank has recorded a metric: a mask of shape (steps,).

    It tells a loss that is NaN from none at all, as at the step of an evaluation.
    """
    import numpy as np

    entry, length = row["m"]["keys"].get(key), len(row["m"]["steps"])
    least = entry.get("min") if isinstance(entry, dict) else None
    if not isinstance(least, list) or len(least) != length:
        return np.ones(length, dtype=bool)
    return np.array([value is not None for value in least])


def statistic(row: Row, key: str, part: str) -> Any:
    """Return ``mean``, ``min``, ``max`` or ``std`` of one metric over the ranks, a float64 array with a value for each
    step of the record, NaN where there is none.
    """
    import numpy as np

    entry, length = row["m"]["keys"].get(key), len(row["m"]["steps"])
    values = entry.get(part) if isinstance(entry, dict) else None
    if isinstance(values, list) and len(values) == length and set(map(type, values)) == {float}:  # nearly all
        return np.array(values, dtype=np.float64)
    known = [decode(value) for value in values[:length]] if isinstance(values, list) else []
    numbers = [float(value) if isinstance(value, (int, float)) else np.nan for value in known]
    return np.array(numbers + [np.nan] * (length - len(numbers)), dtype=np.float64)


def held(row: Row) -> list[int]:
    """Return of each step of a record how many ranks' rows are in it.

    A record from before ezpz counted them is asked for whose values it keeps: of each step, or in a large world of all
    its steps together.
    """
    held, count = row["m"].get("held"), len(row["m"]["steps"])
    if isinstance(held, list) and len(held) == count and all(type(number) is int for number in held):
        return held
    width = count if row["m"].get("every") else 1
    there: list[set[int]] = [set() for _ in range(width)]
    for ranks in map(_ranks_of, row["m"]["keys"].values()):
        for rank, values in enumerate(ranks if isinstance(ranks, list) else ()):
            for at, value in enumerate(values[:width] if isinstance(values, list) else ()):
                if value is not None:
                    there[at].add(rank)
    return [len(ranks) for ranks in there] * (1 if width == count else count)


def lacking(windows: Iterable[Row]) -> str:
    """Return in words how many steps hold fewer ranks than the run had; empty if none does."""
    least, fewer, steps, most = 0, 0, 0, 0
    for row in windows:
        there, world = held(row), row["m"].get("world")
        steps += len(there)
        missing = [ranks for ranks in there if type(world) is int and ranks < world]
        if missing:
            least = min([*missing, least or missing[0]])
            fewer += len(missing)
            most = max(most, world or 0)
    return f"{fewer} of {steps} steps hold fewer than all {most} ranks, {least} at least" if fewer else ""


def slowest_key(windows: Sequence[Row]) -> Matrix | None:
    """Return the time that tells ranks apart best.

    That is one taken before the first collective of a step, after which all ranks have waited for the slowest; among
    several the one in which the ranks lie the most seconds apart. Else the time of whole steps, else any other time.
    """
    keys = list(dict.fromkeys(key for row in windows for key in row["m"]["keys"]))
    early = [key for key in keys if part_of_step(key) in BEFORE_COLLECTIVE]
    whole = [key for key in keys if is_step_time(key)]
    times = [key for key in keys if is_time(key)]
    readable = (_readable(windows, some) for some in (early, whole, times))
    return max(next(filter(None, readable), []), key=_apart, default=None)


def _readable(windows: Sequence[Row], keys: Iterable[str]) -> list[Matrix]:
    found = []
    for key in keys:
        with suppress(TrackError):  # what cannot be read is no reason to draw nothing
            found.append(matrix(windows, key))
    return [each for each in found if each is not None]


def _apart(matrix: Matrix) -> float:
    typical = typical_of_rank(matrix)
    return float(typical.max() - typical.min()) if len(typical) else 0.0


def typical_of_rank(matrix: Matrix) -> Any:
    """Return each rank's median over the steps, 0 for a rank without values, as an array of shape (ranks,)."""
    import numpy as np

    return np.array(
        [np.median(known) if (known := row[np.isfinite(row)]).size else 0.0 for row in matrix.values], dtype=np.float64
    )


_STRETCHES, _FEWEST = 20, 8  # stretches of steps whose lags are compared, and fewer of which say nothing
_STEPS = 24  # steps below which nothing is said: those of three windows of the straggler watcher


class Slowest(NamedTuple):
    """A rank that is slower than the others.

    Attributes:
        rank: The rank.
        value: Its median.
        times: How many times as slow it is as the others.
        others: These in words: ``the median of the others``, ``rank 0``.
    """

    rank: int
    value: float
    times: float
    others: str


def slowest(of: Matrix, whole: Matrix | None = None) -> Slowest | None:
    """Return the rank that is slower than the others; None where none is, or where chance explains it.

    As of `ezpz.why.straggler_rules`, which tells the same while a run goes on: it has to be a tenth slower, by a tenth
    of a whole step where that is known, and ranks that are alike would show its lags in less than 1 of 10,000 runs.

    Args:
        of: A time, of which much is slow, or a throughput.
        whole: The time of whole steps; None where it was not recorded.
    """
    import numpy as np

    typical, sign = typical_of_rank(of), -1.0 if is_throughput(of.name) else 1.0
    known = np.isfinite(of.values).any(axis=1)
    if known.sum() < 2 or of.steps[-1] - of.steps[0] + 1 < _STEPS:
        return None
    worst = int(np.where(known, sign * typical, -np.inf).argmax())
    others = known & (np.arange(len(typical)) != worst)
    usual = float(np.median(typical[others]))
    slow, fast = (typical[worst], usual) if sign > 0 else (usual, typical[worst])
    if not fast > 0 or slow < (1 + LAG) * fast:
        return None
    if whole is not None and unit(whole.name) == unit(of.name) and slow - fast < LAG * _middle(whole):
        return None
    number = min(of.values.shape[1], _STRETCHES)
    means = stretch_means(of.values, np.arange(number) * of.values.shape[1] // number)
    means = means[:, np.isfinite(means[worst]) & np.isfinite(means[others]).any(axis=0)]
    lags = sign * (means[worst] - np.nanmedian(means[others], axis=0))
    if len(lags) < _FEWEST or chance(lags.tolist()) >= CHANCE / known.sum():
        return None
    words = f"rank {int(others.argmax())}" if others.sum() == 1 else "the median of the others"
    return Slowest(worst, float(typical[worst]), float(slow / fast), words)


def whole_step(windows: Sequence[Row]) -> Matrix | None:
    """Return the time of whole steps of all ranks; None where it was not recorded."""
    keys = dict.fromkeys(key for row in windows for key in row["m"]["keys"] if is_step_time(key))
    return next(iter(_readable(windows, keys)), None)


def _middle(of: Matrix) -> float:
    import numpy as np

    finite = of.values[np.isfinite(of.values)]
    return float(np.median(finite)) if finite.size else 0.0


def loss_band(windows: Sequence[Row]) -> list[Series]:
    """Return the least, the mean and the greatest loss over all ranks; empty where ranks recorded no loss."""
    import numpy as np

    key = main_loss(dict.fromkeys(key for row in windows for key in row["m"]["keys"]))
    there = [row for row in windows if key is not None and isinstance(row["m"]["keys"].get(key), dict)]
    if key is None or not there:
        return []
    masks = [_recorded(row, key) for row in there]
    x = np.concatenate(
        [np.array(r["m"]["steps"], dtype=np.float64)[mask] for r, mask in zip(there, masks, strict=True)]
    )
    return [
        Series(
            key,
            x,
            np.concatenate([statistic(row, key, part)[mask] for row, mask in zip(there, masks, strict=True)]),
            f"{key} ({part} of ranks)",
        )
        for part in ("min", "mean", "max")
    ]
