"""How fast two runs are, as one ratio with its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.track.series import Series
    from ezpz.track.table import Table

__all__ = ["Throughput", "compare_throughput", "rate_key"]

# Names under which trainers record it, in the order of trust; all but the last row are "more is faster".
_RATES = (
    *("tokens_per_second", "tokens_per_sec", "tok_per_sec", "tokens/s", "tps", "samples_per_second"),
    *("samples_per_sec", "samples/s", "sps", "throughput", "steps_per_second", "it/s", "sequences_per_second"),
)
_TIMES = ("dt", "step_time", "iter_time", "iteration_time", "dt_step", "time_per_step", "elapsed_time_per_iteration")
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


def rate_key(names: Iterable[str]) -> tuple[str, bool] | None:
    """Return the metric that tells a rate, and whether it is a time, which is the inverse of one; None without one."""
    by_last: dict[str, str] = {}
    for name in names:
        for end in (name.lower(), name.lower().rpartition("/")[2]):
            by_last.setdefault(end, name)
    for keys, is_time in ((_RATES, False), (_TIMES, True)):
        for key in keys:
            if key in by_last:
                return by_last[key], is_time
    return None


def compare_throughput(
    first: dict[str, Series], second: dict[str, Series], tables: tuple[Table, Table]
) -> Throughput | None:
    """Compare the rates of two runs; None where they tell too little."""
    found = rate_key([name for name in first if name in second])
    if found is None:
        rates, source = [_from_times(table) for table in tables], "steps per second, by the times of rows"
    else:
        name, is_time = found
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

    steps, times, attempts = (np.array(each, dtype=float) for each in (table.steps, table.times, table.attempts))
    apart, took = np.diff(steps), np.diff(times)
    good = (took > 0) & (apart > 0) & (np.diff(attempts) == 0)
    return _steady(apart[good] / took[good])


def _median(values: Any) -> tuple[float, float, float]:
    """Return the median and the order statistics that enclose it with 95 %."""
    import numpy as np

    ordered = np.sort(values)
    count = len(ordered)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(np.ceil(count / 2 + reach)))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])
