"""Draw the charts of the report: lines, the band between extremes of ranks, shares of a step, start-up stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.quantities import duration, number
from ezpz.track.goodput_account import account, intervals, read_spans
from ezpz.track.intervals import one_after_another
from ezpz.track.launches import find_launch
from ezpz.track.names import PARTS, is_step_time, part_of_step
from ezpz.track.series import captions
from ezpz.view.report.markup import Chart, shown
from ezpz.view.report.svg import HALF, NARROW, WIDE, Frame, axis_x, axis_y, dots, marks, path, place, plot, with_room
from ezpz.view.report.thinned_lines import Line, bounds, bucket_means, deltas, line_of, rounded, widened
from ezpz.view.startup_stages import GROUPS, delays, host_intervals, read_startup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.intervals import Interval
    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series

_FEW = 40  # points up to which each gets a dot, so that a series of one can be seen
COLOURS = 8  # of the style sheet
_NARROW_BUCKETS = 120  # stretches of steps that a narrow chart has room for


class Axis(NamedTuple):
    """What all charts of a page share.

    Attributes:
        ends: First and last step.
        restarts: Steps at which the run was started again.
        buckets: Stretches of steps of which each line keeps the extremes.
    """

    ends: tuple[float, float]
    restarts: Sequence[int]
    buckets: int


def line_chart(
    title: str, series: Sequence[Series], axis: Axis, *, wide: bool = False, band: tuple[int, int] | None = None
) -> Chart:
    """Return a chart of lines; a wide one has a twin for narrow screens.

    Args:
        title: Its title.
        series: At least one.
        axis: What it shares with the other charts.
        wide: Whether it takes the page's whole width.
        band: Which two of the series enclose a shaded band.
    """
    chart = _lines(title, series, axis, WIDE if wide else HALF, band)
    few = axis._replace(buckets=min(axis.buckets, _NARROW_BUCKETS))
    return replace(chart, wide=True, twin=_lines(title, series, few, NARROW, band)) if wide else chart


def _lines(title: str, series: Sequence[Series], axis: Axis, frame: Frame, band: tuple[int, int] | None) -> Chart:
    lines = [line_of(item, axis.buckets) for item in series]
    colours = [_colour(index, band) for index in range(len(lines))]
    seen = bounds(series)
    values = widened(*seen) if seen else (0.0, 1.0)
    frame = with_room(frame, values)
    inside = [_band(lines, band, axis, values, frame)] if band else []
    inside += [_line(line, colour, axis, values, frame) for line, colour in zip(lines, colours, strict=True)]
    if seen is None:
        width, height = frame.inside
        inside.append(f'<text class="none" x="{width // 2}" y="{height // 2}">nothing finite was recorded</text>')
    svg = (
        (axis_y(frame, values) if seen else "")
        + axis_x(frame, axis.ends)
        + marks(frame, axis.ends, axis.restarts)
        + plot(frame, "".join(inside))
    )
    several = len(series) > 1
    return Chart(
        title,
        f"{title} over steps {axis.ends[0]:.0f} to {axis.ends[1]:.0f}: "
        + "; ".join(_describe(item) for item in series),
        svg,
        (frame.width, frame.height),
        {
            "kind": "lines",
            "title": title,
            "box": frame.box,
            "x": list(axis.ends),
            "y": rounded(values) if seen else None,
            "lines": [_data(line, colour) for line, colour in zip(lines, colours, strict=True)],
            **({"band": list(band)} if band else {}),
        },
        [(item.caption, colour) for item, colour in zip(series, colours, strict=True)] if several else [],
        [f"{item.caption}: {note}" if several else note for item in series for note in _notes(item)],
    )


def _notes(series: Series) -> list[str]:
    import numpy as np

    with np.errstate(over="ignore"):
        return captions(series)


def _describe(series: Series) -> str:
    import numpy as np

    finite = series.values[np.isfinite(series.values)]
    if not finite.size:
        return f"{series.caption} has no finite value"
    return (
        f"{series.caption} from {number(finite[0])} to {number(finite[-1])}, "
        f"lowest {number(finite.min())}, highest {number(finite.max())}"
    )


def _colour(index: int, band: tuple[int, int] | None) -> str:
    """Return the classes of a line: a colour of its own, or that of the band at whose edge it is."""
    if band is None:
        return f"s{index % COLOURS}"
    return "s0 edge" if index in band else "s0"


def _data(line: Line, colour: str) -> dict[str, object]:
    data: dict[str, object] = {"name": line.name, "c": colour, "x": deltas(line.steps), "y": rounded(line.values)}
    if line.means is not None:
        data["mx"], data["my"] = deltas(line.means[0]), rounded(line.means[1])
    return data


def _line(line: Line, colour: str, axis: Axis, values: tuple[float, float], frame: Frame) -> str:
    width, height = frame.inside
    xs, ys = place(line.steps, axis.ends, width), place(line.values, values, height, upward=True)
    drawn = f'<path class="line {colour}" d="{path(xs, ys)}"/>'
    if len(line.steps) <= _FEW:
        drawn += f'<path class="dots {colour}" d="{dots(xs, ys)}"/>'
    return drawn


def _band(lines: Sequence[Line], band: tuple[int, int], axis: Axis, values: tuple[float, float], frame: Frame) -> str:
    import numpy as np

    width, height = frame.inside
    low, high = (lines[index] for index in band)
    there, back = np.isfinite(high.values), np.isfinite(low.values)[::-1]
    xs = place(np.concatenate([high.steps[there], low.steps[::-1][back]]), axis.ends, width)
    ys = place(np.concatenate([high.values[there], low.values[::-1][back]]), values, height, upward=True)
    return f'<path class="band" d="{path(xs, ys)}"/>'


def area_chart(
    title: str, parts: Mapping[str, str], steps: Any, values: Any, axis: Axis, *, notes: list[str], unit: str = "%"
) -> Chart:
    """Return stacked parts, as a wide chart with a twin for narrow screens.

    Args:
        title: Its title.
        parts: Names of the parts, lowest first, and the class of each one's colour.
        steps: float64 array of shape (points,).
        values: float64 array of shape (parts, points): shares that sum up to one, or seconds.
        axis: What it shares with the other charts.
        notes: Sentences below it.
        unit: ``%`` for shares, ``s`` for seconds.
    """
    wide, narrow = (_areas(title, parts, steps, values, axis, notes, unit, frame) for frame in (WIDE, NARROW))
    return replace(wide, wide=True, twin=narrow)


def _areas(  # noqa: PLR0917  # those of `area_chart`, and the frame
    title: str,
    names: Mapping[str, str],
    steps: Any,
    values: Any,
    axis: Axis,
    notes: list[str],
    unit: str,
    frame: Frame,
) -> Chart:
    import numpy as np

    of_shares = unit == "%"
    high = 1.0 if of_shares else float(values.sum(axis=0).max()) or 1.0
    top_of_axis = (0.0, 100.0) if of_shares else (0.0, high)
    frame = frame if of_shares else with_room(frame, top_of_axis)
    shares = values / high
    width, height = frame.inside
    # The first and the last stretch reach to the ends of the axis, so that one point is a picture too.
    xs = np.concatenate([[0.0], place(steps, axis.ends, width), [float(width)]])
    tops = np.cumsum(shares, axis=0)
    tops = np.concatenate([tops[:, :1], tops, tops[:, -1:]], axis=1)
    floor = np.zeros(tops.shape[1])
    colours = list(names.values())
    parts = []
    for index, top in enumerate(tops):
        outline = np.concatenate([top, floor[::-1]])
        colour = colours[index]
        parts.append(
            f'<path class="area {colour}" d="{path(np.concatenate([xs, xs[::-1]]), (1.0 - outline) * height)}z"/>'
        )
        floor = top
    svg = (
        plot(frame, "".join(parts))
        + f'<g class="over">{axis_y(frame, top_of_axis, f" {unit}")}</g>'
        + axis_x(frame, axis.ends)
        + marks(frame, axis.ends, axis.restarts)
    )
    means = np.mean(shares, axis=1) / (1.0 if of_shares else float(np.mean(shares.sum(axis=0))) or 1.0)
    texts = [f"{name} {100 * mean:.0f} %" for name, mean in zip(names, means.tolist(), strict=True)]
    data: dict[str, object] = {
        "kind": "shares",
        "title": title,
        "unit": unit,
        "box": frame.box,
        "x": list(axis.ends),
        "steps": deltas(steps),
        "lines": [
            {"name": name, "c": colour, "y": rounded(np.round(row * 100, 2) if of_shares else row)}
            for (name, colour), row in zip(names.items(), values, strict=True)
        ],
    }
    legend = list(zip(texts, colours, strict=True))
    return Chart(title, f"{title}: {', '.join(texts)}", svg, (frame.width, frame.height), data, legend[::-1], notes)


def _part_colour(name: str) -> str:
    """Return the colour of a part of a step: the same in every run, whichever parts it records."""
    order = ("forward", "data", "optimizer", "comm", "backward")
    return f"s{order.index(name)}" if name in order else "rest"


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
    coloured = {name: _part_colour(name) for name in names}
    return area_chart("Where a step's time goes", coloured, steps[there], shares, axis, notes=notes)


_ROW = 26  # pixels
_LETTER = 7.4  # pixels of a letter of a stage's name
_MOST = 40  # stages


def startup_chart(run: Run) -> Chart | None:
    """Return a bar for each stage, from the end of the one before to its own; None where no stage was recorded."""
    known = [(stage, float(seconds)) for stage, seconds in run.record.timeline.items() if seconds >= 0]
    stages = one_after_another("stage", sorted(known, key=lambda each: each[1])[:_MOST])
    if not stages:
        return None
    text = f"{duration(stages[-1].end or 0.0)} from the start of the process to {stages[-1].name}"
    rows = [(each.name, [each]) for each in stages]
    note = f"{text}; seconds since the process began"
    return _interval_chart("Start-up", f"Start-up stages: {text}", rows, [note])


def goodput_chart(run: Run) -> Chart | None:
    """Return a bar for each row of the account of a run's time; None where nothing is known of it."""
    spans = read_spans(run)
    made = account(spans)
    if made.granted <= 0 or not any(span.born for span in spans):  # rows alone tell no start
        return None
    rows = [(each.name, [each]) for each in intervals(made)]
    if not rows:
        return None
    share = f"{made.goodput:.1%}".replace("%", " %")
    text = f"{share} of {duration(made.granted)} went into steps that count"
    besides = made.besides and f"besides, not granted: {made.besides}"
    note = "; ".join(filter(None, (text, besides, made.advice)))
    return _interval_chart("Where the time went", text, rows, [note])


def hosts_startup_chart(run: Run) -> Chart | None:
    """Return a bar of stages for each host, by the record of the launch; None for one host, or without a record."""
    found = find_launch(run.record.launch_id)
    startup = read_startup(found[1]) if found else None
    if startup is None or len(startup.hosts) < 2 or not startup.times or startup.total <= 0:
        return None
    rows = list(host_intervals(startup).items())
    more = len(startup.hosts) - len(rows)
    notes = [
        *(str(delay) for delay in delays(startup)),
        f"{duration(startup.total)} in all, by each host's last rank",  # three lines on a narrow screen, no more
        *([f"{more} more hosts were not later than these"] if more else []),
    ]
    text = (
        f"Start-up of {len(startup.hosts)} hosts: {duration(startup.total)} from `launch` until the last rank was ready"
    )
    colours = {name: f"s{index}" for index, name in enumerate(GROUPS)}
    return _interval_chart("Start-up by host", text, rows, notes, colours)


def _interval_chart(
    title: str,
    text: str,
    rows: Sequence[tuple[str, Sequence[Interval]]],
    notes: list[str],
    colours: Mapping[str, str] | None = None,
) -> Chart:
    """Return rows of bars from the begin to the end of each interval, in two widths.

    Args:
        title: The title of the chart.
        text: What it shows, for who cannot see it.
        rows: A label and its intervals, of which those with ``colours`` are several.
        notes: What stands below it.
        colours: Name of an interval to its colour; one for all where it is None.
    """
    high = len(rows) * _ROW + 44
    last = max((each.end or 0.0 for _, row in rows for each in row), default=0.0) or 1e-9
    used = {each.name for _, row in rows for each in row}
    lines = [
        {"name": f"{label}, {each.name}" if colours else label, "y": [round(each.end or 0.0, 4)]}
        for label, row in rows
        for each in row
    ]
    data: dict[str, object] = {"kind": "stages", "title": title.lower(), "lines": lines}
    legend = [(name, colour) for name, colour in (colours or {}).items() if name in used]

    def drawn(frame: Frame) -> Chart:
        bars = "".join(_bar_row(place, label, row, last, frame, colours) for place, (label, row) in enumerate(rows))
        size = (frame.width, frame.height)
        return Chart(title, text, bars + axis_x(frame, (0.0, last), whole=False), size, data, legend, notes)

    narrow = drawn(Frame(400, high, left=112, right=66, bottom=36))
    return replace(drawn(Frame(1180, high, left=200, right=90, bottom=36)), wide=True, twin=narrow)


def _bar_row(  # noqa: PLR0917  # those of `_interval_chart`, and the place
    number: int, label: str, row: Sequence[Interval], last: float, frame: Frame, colours: Mapping[str, str] | None
) -> str:
    """Return a label, the bars of its intervals, and how long they took."""
    longest = int((frame.left - 10) / _LETTER)
    top = frame.top + number * _ROW
    name = label if len(label) <= longest else f"{label[: longest - 1]}…"
    svg = [f'<text x="{frame.left - 10}" y="{top + 17}" text-anchor="end">{shown(name)}</text>']
    at = 0.0
    for each in row:
        x, at = place([each.begin, each.end or 0.0], (0.0, last), frame.inside[0]).tolist()
        what = f"{label}, {each.name}" if colours else label
        style = f"area {colours[each.name]}" if colours else "bar"
        svg.append(
            f'<g><title>{shown(what)}: {duration(each.seconds or 0.0)}</title><rect class="{style}" '
            f'x="{frame.left + x:.1f}" y="{top + 4}" width="{max(0.0 if colours else 1.5, at - x):.1f}" '
            f'height="{_ROW - 8}" rx="{0 if colours else 2}"/></g>'
        )
    took = (row[-1].end or 0.0) - row[0].begin if row else 0.0
    end = frame.inside[0] if colours else at
    return "".join([*svg, f'<text x="{frame.left + end + 8:.1f}" y="{top + 17}">{duration(took)}</text>'])
