"""Turn values over all ranks into variables of the export.

    <key>_mean  _min  _max  _std    float64 (draw), NaN at steps that no window holds
    <key>_ranks                     float64 (rank_step, rank), each rank's own values; NaN where it recorded none
    rank_step                       int64 (rank_step), the steps of those rows; of a world of more than 64 ranks,
                                    which keeps one mean per window, the last step of each window

Counters (``iter``, ``epoch``, …) have none. Where a metric of the user has one of these names already, that metric
stays: the derived one is left out, a dimension gets ``_`` behind its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.track.by_rank import rank_values, statistic
from ezpz.track.columns import Column, export_name
from ezpz.track.names import is_counter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ezpz.track.records import Row
    from ezpz.track.table import Table

__all__ = ["rank_columns"]

_STATISTICS = ("mean", "min", "max", "std")


def rank_columns(windows: Sequence[Row], rows: Table, taken: Collection[str]) -> list[Column]:
    """Build the variables.

    Args:
        windows: Records over all ranks, in the order of writing.
        rows: The rows to whose steps statistics belong.
        taken: Names that other variables have.

    Returns:
        The columns, none for a world of one.
    """
    import numpy as np

    if not windows:
        return []
    stepwise, rankwise = (_free(name, taken) for name in ("rank_step", "rank"))
    draws = {key: number for number, key in enumerate(zip(rows.attempts, rows.steps, strict=True))}
    moments = _moments(windows)
    world = max(window["m"]["world"] for window in windows)
    columns = [Column(stepwise, np.array([step for _, step in moments], dtype=np.int64), {}, (stepwise,))]
    for key in dict.fromkeys(key for window in windows for key in window["m"]["keys"] if not is_counter(key)):
        name = export_name(key)
        lines = {what: np.full(len(rows.steps), np.nan) for what in _STATISTICS}
        matrix = np.full((len(moments), world), np.nan)
        for window in windows:
            if key not in window["m"]["keys"]:
                continue
            at = [draws.get((window["a"], step)) for step in window["m"]["steps"]]
            there = [index for index, draw in enumerate(at) if draw is not None]
            for what, line in lines.items():
                line[[at[index] for index in there]] = statistic(window, key, what)[there]
            by_rank = rank_values(window, key)
            if by_rank is not None:
                steps, values = by_rank
                matrix[[moments[window["a"], int(step)] for step in steps], : len(values)] = values.T
        columns += [
            Column(f"{name}_{what}", line, {"key": key, "over": "ranks", "statistic": what})
            for what, line in lines.items()
        ]
        columns.append(Column(f"{name}_ranks", matrix, {"key": key, "over": "ranks"}, (stepwise, rankwise)))
    return [column for column in columns if column.name not in taken]


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _of(window: Row) -> list[tuple[int, int]]:
    """Return (attempt, step) of each value that a window keeps of a rank."""
    steps = window["m"]["steps"] if window["m"]["every"] else window["m"]["steps"][-1:]
    return [(window["a"], step) for step in steps]


def _moments(windows: Sequence[Row]) -> dict[tuple[int, int], int]:
    every = dict.fromkeys(moment for window in windows for moment in _of(window))
    return {moment: number for number, moment in enumerate(every)}
