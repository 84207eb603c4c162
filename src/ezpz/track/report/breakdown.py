"""Where the time of a step goes: the shares of data, forward, backward, optimizer, communication and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.track.names import PARTS, is_step_time, part_of_step
from ezpz.track.report.charts import area_chart
from ezpz.track.report.lines import bucket_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.report.charts import Axis
    from ezpz.track.report.markup import Chart
    from ezpz.track.series import Series

__all__ = ["breakdown"]

_STRETCHES = 120  # points of an area; shares are means over the steps between two of them


def breakdown(series: Sequence[Series], axis: Axis) -> Chart | None:
    """Return the stacked shares of a step's parts; None where no part was recorded.

    What is left of the whole step (``dt``) beyond its parts is ``other``. Where no whole was recorded, or the parts
    are longer than it, as when they overlap, the shares are those of the parts' sum.
    """
    import numpy as np

    parts = {part: item for item in reversed(series) if (part := part_of_step(item.name)) in PARTS and len(item.steps)}
    if not parts:
        return None
    total = next((item for item in series if is_step_time(item.name)), None)
    if total is None and len(parts) == 1:
        return None  # one part without a whole is all of itself
    names = [part for part in PARTS if part in parts]
    ends = (
        float(min(parts[part].steps[0] for part in names)),
        float(max(parts[part].steps[-1] for part in names)),
    )
    number = max(1, min(_STRETCHES, max(len(parts[part].steps) for part in names)))
    means = {part: bucket_means(parts[part], number, ends) for part in names}
    steps = means[names[0]][0]
    seconds = np.nan_to_num(np.stack([means[part][1] for part in names]).clip(0.0))
    summed = seconds.sum(axis=0)
    whole = summed
    if total is not None:
        whole = np.fmax(np.nan_to_num(bucket_means(total, number, ends)[1]), summed)
        seconds = np.concatenate([seconds, (whole - summed)[None]])
        names.append("other")
    there = (summed > 0) & np.isfinite(whole)
    if not there.any():
        return None
    shares = seconds[:, there] / whole[there]
    of = [f"{parts[part].name} is {part}" for part in names if part in parts and parts[part].name.lower() != part]
    notes = [", ".join(of)] if of else []
    notes += [f"other is the rest of {total.name}"] if total is not None else []
    return area_chart("Where a step's time goes", names, steps[there], shares, axis, notes=notes)
