"""Compare the speed of two runs: one ratio with its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ezpz.track.names import main_throughput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.series import Series
    from ezpz.track.table import Table

_WARM_UP = 0.1  # share of the steps that is left out at the start
_FEWEST = 5


@dataclass(frozen=True)
class Throughput:
    """Two rates.

    Attributes:
        source: What they come from: a metric, ``1/dt``, or the times of rows.
        a: Median rate of the first run over its steady steps.
        b: That of the second.
        ratio: b / a; 1.05 is 5 % faster.
        low: Lower end of the ratio's range, from 95 % intervals of both medians.
        high: Upper end.
    """

    source: str
    a: float
    b: float
    ratio: float
    low: float
    high: float


def compare_throughput(
    first: Mapping[str, Series], second: Mapping[str, Series], tables: tuple[Table, Table]
) -> Throughput | None:
    """Compare the rates of two runs; None where they tell too little."""
    known = main_throughput([name for name in first if name in second])
    if known is None:
        rates, source = [_from_times(table) for table in tables], "steps per second, by the times of rows"
    else:
        name, is_time = known
        values = [_steady(each[name].values) for each in (first, second)]
        rates, source = [1.0 / each if is_time else each for each in values], f"1/{name}" if is_time else name
    if min(len(each) for each in rates) < _FEWEST:
        return None
    (a, a_low, a_high), (b, b_low, b_high) = map(_median, rates)
    return Throughput(source, a, b, b / a, b_low / a_high, b_high / a_low)


def _steady(values: Any) -> Any:
    import numpy as np

    kept = values[int(len(values) * _WARM_UP) :]
    return kept[np.isfinite(kept) & (kept > 0)]


def _from_times(table: Table) -> Any:
    """Return steps per second between neighbouring rows; the pauses between attempts are none."""
    import numpy as np

    apart, took = np.diff(table.step_array.astype(np.float64)), np.diff(table.time_array)
    good = (took > 0) & (apart > 0) & (np.diff(table.attempt_array) == 0)
    return _steady(apart[good] / took[good])


def _median(values: Any) -> tuple[float, float, float]:
    """Return the median and the order statistics that enclose it with 95 %."""
    import numpy as np

    ordered = np.sort(values)
    count = len(ordered)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(np.ceil(count / 2 + reach)))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])
