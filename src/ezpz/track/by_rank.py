"""Read what each rank recorded: a matrix of rank by step out of the journal's windows.

    {"v":1,"t":…,"step":99,"k":"ranks","m":{"world":4,"every":1,"steps":[0,…,99],"keys":{
        "loss":{"mean":[…],"min":[…],"max":[…],"std":[…],"argmin":[…],"argmax":[…],"ranks":[[…],[…],[…],[…]]}}}}

``ranks`` holds a list for each rank: a value for each step of the window, or their mean alone in large worlds
(``"every":0``). A value that a rank did not record is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.names import BEFORE_COLLECTIVE, is_step_time, is_time, main_loss, part_of_step
from ezpz.track.series import Series
from ezpz.track.table import first_steps
from ezpz.track.values import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.track.run import Run

__all__ = ["Matrix", "counting_windows", "loss_band", "matrices", "slowest_key"]


class Matrix(NamedTuple):
    """One metric of all ranks.

    Attributes:
        name: Its name.
        steps: float64 array of shape (steps,), ascending; in large worlds the middle step of each window.
        values: float64 array of shape (ranks, steps), NaN where a rank recorded nothing.
    """

    name: str
    steps: Any
    values: Any


def counting_windows(run: Run) -> list[Mapping[str, Any]]:
    """Return what the windows hold that no later attempt recorded again and that have the shape above, oldest first."""
    first = first_steps(run.rows)
    windows = []
    for row in run.windows:
        bound = min((step for attempt, step in first.items() if attempt > row["a"]), default=None)
        window = row["m"]
        steps, keys = window.get("steps"), window.get("keys")
        if not isinstance(keys, dict) or not isinstance(steps, list) or not steps:
            continue  # a version that is not known here, or somebody's own
        if all(type(step) is int for step in steps) and (bound is None or steps[-1] < bound):
            windows.append(window)
    return sorted(windows, key=lambda window: window["steps"][0])


def _floats(values: Any, length: int) -> Any:
    """Return a list of the journal as float64, filled up or cut to a length."""
    import numpy as np

    known = [decode(value) for value in values[:length]] if isinstance(values, list) else []
    numbers = [float(value) if isinstance(value, (int, float)) else np.nan for value in known]
    return np.array(numbers + [np.nan] * (length - len(numbers)), dtype=np.float64)


def matrices(windows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[Matrix]:
    """Return the matrix of each of some metrics; the windows of a world that changed its size are filled up."""
    import numpy as np

    made = []
    for key in keys:
        blocks, steps = [], []
        for window in windows:
            entry = window["keys"].get(key)
            ranks = entry.get("ranks") if isinstance(entry, dict) else None
            if not isinstance(ranks, list) or not ranks:
                continue
            each = window["steps"] if window.get("every") else [window["steps"][len(window["steps"]) // 2]]
            blocks.append(np.stack([_floats(row, len(each)) for row in ranks]))
            steps.append(np.array(each, dtype=np.float64))
        if blocks:
            height = max(map(len, blocks))
            full = [np.pad(b, ((0, height - len(b)), (0, 0)), constant_values=np.nan) for b in blocks]
            made.append(Matrix(key, np.concatenate(steps), np.concatenate(full, axis=1)))
    return made


def slowest_key(windows: Sequence[Mapping[str, Any]]) -> Matrix | None:
    """Return the time that tells ranks apart best.

    That is one taken before the first collective of a step, after which all ranks have waited for the slowest; among
    several the one in which the ranks lie the most seconds apart. Else the time of whole steps, else any other time.
    """
    keys = list(dict.fromkeys(key for window in windows for key in window["keys"]))
    early = [key for key in keys if part_of_step(key) in BEFORE_COLLECTIVE]
    whole = [key for key in keys if is_step_time(key)]
    times = [key for key in keys if is_time(key)]
    times_by_rank = matrices(windows, early) or matrices(windows, whole) or matrices(windows, times)
    return max(times_by_rank, key=_apart, default=None)


def _apart(matrix: Matrix) -> float:
    typical = typical_of_rank(matrix)
    return float(typical.max() - typical.min()) if len(typical) else 0.0


def typical_of_rank(matrix: Matrix) -> Any:
    """Return each rank's median over the steps, 0 for a rank without values, as an array of shape (ranks,)."""
    import numpy as np

    return np.array(
        [np.median(known) if (known := row[np.isfinite(row)]).size else 0.0 for row in matrix.values], dtype=np.float64
    )


def loss_band(windows: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the least, the mean and the greatest loss over all ranks; empty where ranks recorded no loss."""
    import numpy as np

    key = main_loss(dict.fromkeys(key for window in windows for key in window["keys"]))
    parts: dict[str, list[Any]] = {"min": [], "mean": [], "max": []}
    steps: list[float] = []
    for window in windows:
        entry = window["keys"].get(key)
        if isinstance(entry, dict):
            steps += window["steps"]
            for part, values in parts.items():
                values.append(_floats(entry.get(part), len(window["steps"])))
    if key is None or not steps:
        return []
    x = np.array(steps, dtype=np.float64)
    return [Series(key, x, np.concatenate(values), f"{key} ({part} of ranks)") for part, values in parts.items()]
