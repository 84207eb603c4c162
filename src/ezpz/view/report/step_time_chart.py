"""Draw where the time of steps went: the seconds of a step over steps, stacked by the parts that were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.track.series import Series
from ezpz.track.step_parts import COLLECTION, DATA, EVALUATION, LOGGING, SAVING, read_step_parts
from ezpz.view.report.charts import area_chart
from ezpz.view.report.svg import span
from ezpz.view.report.thinned_lines import bucket_means
from ezpz.view.slow_steps import part_in_words, steady_steps

if TYPE_CHECKING:
    from ezpz.track.run_reader import Run
    from ezpz.view.report.charts import Axis
    from ezpz.view.report.markup import Chart

__all__ = ["not_told", "step_time_chart"]

_STRETCHES = 120  # points; each is the mean of the steps around it
_COLOURS = {DATA: "s1", EVALUATION: "s2", SAVING: "s3", COLLECTION: "s4", LOGGING: "s5"}
_OTHERS = ("s6", "s7")  # of sections of other names
_MOST = 7  # parts beside the rest
_NOT_TOLD = (
    "Where the time of steps went is not known: there are fewer than three rows of training, each is an epoch, or they "
    "were recorded some at a time."
)
_NOTHING = (
    "Where the time of steps went is not known: no part of them was measured. Waits for a DataLoader of torch are, "
    "ezpz.train.evaluate, Checkpoints, and what stands inside <code>ezpz.section(NAME, timeout=None)</code>."
)


def step_time_chart(run: Run, axis: Axis) -> Chart | None:
    """Return the chart; None where rows do not tell how long steps took, or no part of them was measured.

    Args:
        run: The run.
        axis: What the charts of the page share.
    """
    import numpy as np

    told = read_step_parts(run)
    if told is None:
        return None
    told = steady_steps(told)
    if len(told.steps) < 2 or not any(held.any() for held in told.parts.values()):
        return None
    parts = sorted(told.parts, key=lambda name: -float(told.parts[name].sum()))[:_MOST]
    order = [*_COLOURS, *sorted(set(parts) - set(_COLOURS))]
    parts = [name for name in order if name in parts and told.parts[name].any()]
    rest = (told.seconds - sum(told.parts[name] for name in parts)).clip(0.0)
    steps = told.steps.astype(np.float64)
    ends = (float(steps.min()), float(steps.max()))
    number = max(1, min(_STRETCHES, len(steps)))
    means = [
        bucket_means(Series("", steps, values), number, ends)
        for values in (rest, *(told.parts[name] for name in parts))
    ]
    there = np.isfinite(means[0][1])
    others = iter(_OTHERS * len(parts))
    colours = {"the rest": "rest"}
    colours |= {part_in_words(name, told.workers): _COLOURS.get(name) or next(others) for name in parts}
    wide = span((*axis.ends, *ends))
    return area_chart(
        "Seconds of a step by part",
        colours,
        means[0][0][there],
        np.round(np.stack([values[there] for _, values in means]), 6),
        axis if wide == axis.ends else axis._replace(ends=wide),
        notes=["rank 0, without the first steps of each start"],
        unit="s",
    )


def not_told(run: Run) -> str:
    """Return what stands in the place of the chart where there is none: what is missing."""
    if not run.folder.is_absolute():  # a public report reads no journal
        return ""
    return f'<p class="none">{_NOTHING if read_step_parts(run) else _NOT_TOLD}</p>\n'
