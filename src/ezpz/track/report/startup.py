"""From the start of the process to the first step: which stage took how long."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from ezpz.track.report.markup import Chart, duration, shown
from ezpz.track.report.svg import Frame, axis_x, place

if TYPE_CHECKING:
    from ezpz.track.run import Run

__all__ = ["startup_chart"]

_ROW = 26  # pixels
_LEFT = 200  # pixels for the stages' names
_LONGEST = 26  # letters of a name that fit there
_MOST = 40  # stages


def startup_chart(run: Run) -> Chart | None:
    """Return a bar for each stage, from the end of the one before to its own; None where no stage was recorded."""
    stages = _stages(run.facts.get("timeline"))
    if not stages:
        return None
    frame = Frame(1180, len(stages) * _ROW + 44, left=_LEFT, right=90, bottom=36)
    last = max(stages[-1][1], 1e-9)
    width, _ = frame.inside
    bars, before = [], 0.0
    for row, (name, seconds) in enumerate(stages):
        x, end = place([before, seconds], (0.0, last), width).tolist()
        top = frame.top + row * _ROW
        took = duration(max(0.0, seconds - before))
        label = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        bars.append(
            f'<g><title>{shown(name)}: {took}</title><text x="{_LEFT - 10}" y="{top + 17}" text-anchor="end">{shown(label)}</text>'
            f'<rect class="bar" x="{_LEFT + x:.1f}" y="{top + 4}" width="{max(1.5, end - x):.1f}" height="{_ROW - 8}" rx="2"/>'
            f'<text x="{_LEFT + end + 8:.1f}" y="{top + 17}">{took}</text></g>'
        )
        before = seconds
    seconds_axis = axis_x(frame, (0.0, last), whole=False)
    told = f"{duration(last)} from the start of the process to {stages[-1][0]}"
    return Chart(
        "Start-up",
        f"Start-up stages: {told}",
        "".join(bars) + seconds_axis,
        (frame.width, frame.height),
        {
            "kind": "stages",
            "title": "start-up",
            "lines": [{"name": name, "y": [round(seconds, 4)]} for name, seconds in stages],
        },
        [],
        [f"{told}; seconds since the process began"],
        wide=True,
    )


def _stages(timeline: Any) -> list[tuple[str, float]]:
    if not isinstance(timeline, dict):
        return []
    known = [
        (str(stage), float(seconds))
        for stage, seconds in timeline.items()
        if isinstance(seconds, (int, float)) and isfinite(seconds) and seconds >= 0
    ]
    return sorted(known, key=lambda each: each[1])[:_MOST]
