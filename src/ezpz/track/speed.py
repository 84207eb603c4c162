"""Tell how fast a run is, in one figure that its card, its report and ``ezpz runs`` share.

The speed of a run is the median of its main throughput over the rows of its newest attempt that has any, without the
first of them, which pays for what is done once. It is of the whole job, not of one device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.names import main_throughput, unit

if TYPE_CHECKING:
    from ezpz.track.at_end import End
    from ezpz.track.table import Table

_SHARE = re.compile(r"_per_(gpu|device|rank)$")


class Speed(NamedTuple):
    """How fast a run is.

    Attributes:
        metric: The metric that it was worked out from.
        value: What is done per second.
        unit: Of what: ``tok/s``, ``samples/s``; ``it/s`` where only the time of a step was recorded.
        of_time: Whether the metric is that time.
    """

    metric: str
    value: float
    unit: str
    of_time: bool


def speed_of(table: Table) -> Speed | None:
    """Return the speed of a run; None where nothing tells.

    Args:
        table: The rows that count.
    """
    import numpy as np

    if not len(table):
        return None
    rows = table.of_attempt(int(table.attempt_array[-1]))
    chosen = main_throughput(
        name
        for name, cells in rows.cells.items()
        if cells.are_numbers and not _SHARE.search(name) and unit(name) != "%"
    )
    if chosen is None:
        return None
    name, of_time = chosen
    values = steady(rows, name)
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size:
        return None
    median = float(np.median(values))
    return Speed(name, 1 / median, "it/s", of_time) if of_time else Speed(name, median, unit(name), of_time)


def note_speed(end: End) -> None:
    """Note the speed of a run in ``run.json``, for who will not read its journal again."""
    speed = speed_of(end.rows.table) if end.rows is not None else None
    if speed is not None:
        end.facts["speed"] = speed._asdict()


def steady(rows: Table, name: str) -> Any:
    """Return the values of a metric without that of the first row, where there are others.

    Args:
        rows: The rows of one attempt.
        name: A metric of numbers.

    Returns:
        float64 array of shape (values,).
    """
    cells = rows.cells[name]
    values = cells.floats()
    later = values[cells.index_array > 0]
    return later if later.size else values
