"""Draw the charts of the report: lines, the band between extremes of ranks, shares of a step, start-up stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.goodput import account, read_spans
from ezpz.track.launches import find_launch
from ezpz.track.names import PARTS, is_step_time, part_of_step
from ezpz.track.quantities import duration, number
from ezpz.track.report.lines import Line, bounds, bucket_means, deltas, line_of, rounded, widened
from ezpz.track.report.markup import Chart, shown
from ezpz.track.report.svg import HALF, NARROW, WIDE, Frame, axis_x, axis_y, dots, marks, path, place, plot, with_room
from ezpz.track.series import captions
from ezpz.track.startup import delays, read_startup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.run import Run
    from ezpz.track.series import Series
    from ezpz.track.startup import Startup

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


def area_chart(title: str, names: Sequence[str], steps: Any, shares: Any, axis: Axis, *, notes: list[str]) -> Chart:
    """Return stacked shares that sum up to one, as a wide chart with a twin for narrow screens.

    Args:
        title: Its title.
        names: The parts, lowest first.
        steps: float64 array of shape (points,).
        shares: float64 array of shape (parts, points).
        axis: What it shares with the other charts.
        notes: Sentences below it.
    """
    wide, narrow = (_areas(title, names, steps, shares, axis, notes, frame) for frame in (WIDE, NARROW))
    return replace(wide, wide=True, twin=narrow)


def _areas(  # noqa: PLR0917  # those of `area_chart`, and the frame
    title: str, names: Sequence[str], steps: Any, shares: Any, axis: Axis, notes: list[str], frame: Frame
) -> Chart:
    import numpy as np

    width, height = frame.inside
    # The first and the last stretch reach to the ends of the axis, so that one point is a picture too.
    xs = np.concatenate([[0.0], place(steps, axis.ends, width), [float(width)]])
    tops = np.cumsum(shares, axis=0)
    tops = np.concatenate([tops[:, :1], tops, tops[:, -1:]], axis=1)
    floor = np.zeros(tops.shape[1])
    parts = []
    for index, top in enumerate(tops):
        outline = np.concatenate([top, floor[::-1]])
        colour = _part_colour(names[index])
        parts.append(
            f'<path class="area {colour}" d="{path(np.concatenate([xs, xs[::-1]]), (1.0 - outline) * height)}z"/>'
        )
        floor = top
    svg = (
        plot(frame, "".join(parts))
        + f'<g class="over">{axis_y(frame, (0.0, 100.0), " %")}</g>'
        + axis_x(frame, axis.ends)
        + marks(frame, axis.ends, axis.restarts)
    )
    means = np.mean(shares, axis=1)
    texts = [f"{name} {100 * mean:.0f} %" for name, mean in zip(names, means.tolist(), strict=True)]
    data: dict[str, object] = {
        "kind": "shares",
        "title": title,
        "box": frame.box,
        "x": list(axis.ends),
        "steps": deltas(steps),
        "lines": [
            {"name": name, "c": _part_colour(name), "y": rounded(np.round(row, 2))}
            for name, row in zip(names, shares * 100, strict=True)
        ],
    }
    legend = [(text, _part_colour(name)) for name, text in zip(names, texts, strict=True)]
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
    return area_chart("Where a step's time goes", names, steps[there], shares, axis, notes=notes)


_ROW = 26  # pixels
_LETTER = 7.4  # pixels of a letter of a stage's name
_MOST = 40  # stages
_LEAST = 0.0005  # of the whole: a shorter row of the account has no bar


def startup_chart(run: Run) -> Chart | None:
    """Return a bar for each stage, from the end of the one before to its own; None where no stage was recorded."""
    stages = _stages(run.record.timeline)
    if not stages:
        return None
    text = f"{duration(stages[-1][1])} from the start of the process to {stages[-1][0]}"
    return _waterfall("Start-up", f"Start-up stages: {text}", stages, f"{text}; seconds since the process began")


def goodput_chart(run: Run) -> Chart | None:
    """Return a bar for each row of the account of a run's time; None where nothing is known of it."""
    spans = read_spans(run)
    made = account(spans)
    if made.granted <= 0 or not any(span.born for span in spans):  # rows alone tell no start
        return None
    ends, end = [], 0.0
    for name, seconds in made.rows.items():
        if seconds >= _LEAST * made.granted:
            end += seconds
            ends.append((name, end))
    if not ends:
        return None
    share = f"{made.goodput:.1%}".replace("%", " %")
    text = f"{share} of {duration(made.granted)} went into steps that count"
    more = [f"{duration(made.queue)} between jobs were not granted"] * (made.queue >= 1) + [made.advice] * bool(
        made.advice
    )
    return _waterfall("Where the time went", text, ends, "; ".join([text, *more]))


def _waterfall(title: str, text: str, ends: Sequence[tuple[str, float]], note: str) -> Chart:
    """Return a bar for each name, from the end of the one before to its own, in two widths."""
    high = len(ends) * _ROW + 44
    wide = _bars(title, text, ends, note, Frame(1180, high, left=200, right=90, bottom=36))
    narrow = _bars(title, text, ends, note, Frame(400, high, left=112, right=66, bottom=36))
    return replace(wide, wide=True, twin=narrow)


def _bars(title: str, text: str, stages: Sequence[tuple[str, float]], note: str, frame: Frame) -> Chart:
    longest = int((frame.left - 10) / _LETTER)
    last = max(stages[-1][1], 1e-9)
    width, _ = frame.inside
    bars, before = [], 0.0
    for row, (name, seconds) in enumerate(stages):
        x, end = place([before, seconds], (0.0, last), width).tolist()
        top = frame.top + row * _ROW
        took = duration(max(0.0, seconds - before))
        label = name if len(name) <= longest else f"{name[: longest - 1]}…"
        bars.append(
            f"<g><title>{shown(name)}: {took}</title>"
            f'<text x="{frame.left - 10}" y="{top + 17}" text-anchor="end">{shown(label)}</text>'
            f'<rect class="bar" x="{frame.left + x:.1f}" y="{top + 4}" width="{max(1.5, end - x):.1f}" '
            f'height="{_ROW - 8}" rx="2"/>'
            f'<text x="{frame.left + end + 8:.1f}" y="{top + 17}">{took}</text></g>'
        )
        before = seconds
    seconds_axis = axis_x(frame, (0.0, last), whole=False)
    return Chart(
        title,
        text,
        "".join(bars) + seconds_axis,
        (frame.width, frame.height),
        {
            "kind": "stages",
            "title": title.lower(),
            "lines": [{"name": name, "y": [round(seconds, 4)]} for name, seconds in stages],
        },
        [],
        [note],
    )


_GROUPS = (  # what a host is doing, and the stages at whose end it has done it
    ("start", ("shim", "process", "interpreter")),
    ("imports", ("torch", "setup")),
    ("rendezvous", ("met", "group")),
    ("model and data", ("model", "data")),
    ("first step", ("step",)),
)
_HOSTS = 32  # bars; of more hosts those that were last at a stage


def hosts_startup_chart(run: Run) -> Chart | None:
    """Return a bar of stages for each host, by the record of the launch; None for one host, or without a record."""
    found = find_launch(run.record.launch_id)
    startup = read_startup(found[1]) if found else None
    if startup is None or len(startup.hosts) < 2 or not startup.times or startup.total <= 0:
        return None
    rows = [(host, _ends(startup, host)) for host in _latest(startup)]
    high = len(rows) * _ROW + 44
    wide = _host_bars(startup, rows, Frame(1180, high, left=200, right=90, bottom=36))
    narrow = _host_bars(startup, rows, Frame(400, high, left=112, right=66, bottom=36))
    return replace(wide, wide=True, twin=narrow)


def _ends(startup: Startup, host: str) -> list[tuple[str, float]]:
    """Return when the last rank of a host had done with each group of stages, in seconds since the launch."""
    by_stage = {stage: startup.by_host(stage) for stage in startup.times}
    ends = []
    for name, stages in _GROUPS:
        lasts = [by_stage[stage][host][2] for stage in stages if host in by_stage.get(stage, {})]
        ends += [(name, max(lasts))] if lasts else []
    return ends


def _latest(startup: Startup) -> list[str]:
    """Return the hosts in their order; of many those that came last to any stage."""
    late = dict.fromkeys(startup.hosts, 0.0)
    for arrival in startup.arrivals:
        for host, (_, _, last, _) in startup.by_host(arrival.stage.name).items():
            late[host] = max(late.get(host, 0.0), last - arrival.median)
    chosen = set(sorted(late, key=lambda host: -late[host])[:_HOSTS])
    return [host for host in late if host in chosen]


def _host_bars(startup: Startup, rows: Sequence[tuple[str, list[tuple[str, float]]]], frame: Frame) -> Chart:
    longest = int((frame.left - 10) / _LETTER)
    width, _ = frame.inside
    colours = {name: f"s{index}" for index, (name, _) in enumerate(_GROUPS)}
    svg, used = [], dict.fromkeys(name for name, _ in _GROUPS if any(name in dict(ends) for _, ends in rows))
    for row, (host, ends) in enumerate(rows):
        top = frame.top + row * _ROW
        label = host if len(host) <= longest else f"{host[: longest - 1]}…"
        svg.append(f'<text x="{frame.left - 10}" y="{top + 17}" text-anchor="end">{shown(label)}</text>')
        before = 0.0
        for name, seconds in ends:
            x, end = place([before, max(before, seconds)], (0.0, startup.total), width).tolist()
            took = duration(max(0.0, seconds - before))
            svg.append(
                f'<g><title>{shown(host)}, {name}: {took}</title><rect class="area {colours[name]}" '
                f'x="{frame.left + x:.1f}" y="{top + 4}" width="{max(0.0, end - x):.1f}" height="{_ROW - 8}"/></g>'
            )
            before = max(before, seconds)
        svg.append(f'<text x="{frame.left + width + 8}" y="{top + 17}">{duration(before)}</text>')
    text = f"{duration(startup.total)} from `launch` until the last rank was ready"
    more = len(startup.hosts) - len(rows)
    return Chart(
        "Start-up by host",
        f"Start-up of {len(startup.hosts)} hosts: {text}",
        "".join(svg) + axis_x(frame, (0.0, startup.total), whole=False),
        (frame.width, frame.height),
        {
            "kind": "stages",
            "title": "start-up by host",
            "lines": [
                {"name": f"{host}, {name}", "y": [round(seconds, 3)]} for host, ends in rows for name, seconds in ends
            ],
        },
        [(name, colours[name]) for name in used],
        [
            *(str(delay) for delay in delays(startup)),
            f"{duration(startup.total)} in all, by each host's last rank",  # three lines on a narrow screen, no more
            *([f"{more} more hosts were not later than these"] if more else []),
        ],
    )


def _stages(timeline: Mapping[str, float]) -> list[tuple[str, float]]:
    known = [(stage, float(seconds)) for stage, seconds in timeline.items() if seconds >= 0]
    return sorted(known, key=lambda each: each[1])[:_MOST]
