"""Assemble ``report.html`` of a run: one file with everything inside, in the order in which people ask.

Pictures are drawn here as SVG, so the page reads with scripts off, prints, and needs no network; ``script.js`` adds
the values under the pointer, log scales, smoothing, themes and CSV. A policy in the page's head forbids every request
and every script but that one, so a metric's name that gets past the escaping could still do nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ezpz.files import write_whole
from ezpz.track.by_rank import counting_windows, lacking, loss_band, slowest_key, whole_step
from ezpz.track.names import group_names, unit
from ezpz.track.run_folder import now
from ezpz.track.run_reader import without_secrets
from ezpz.track.series import numeric_series
from ezpz.track.table import Table, restarts
from ezpz.view.hardware_rows import read_hardware
from ezpz.view.report.charts import Axis, breakdown, goodput_chart, hosts_startup_chart, line_chart, startup_chart
from ezpz.view.report.events import events, last_values
from ezpz.view.report.hardware_charts import hardware_charts, hardware_map
from ezpz.view.report.head import cards, header
from ezpz.view.report.heat import heat_chart
from ezpz.view.report.lags import lags_part
from ezpz.view.report.mark import marked
from ezpz.view.report.markup import document, figure, shown, slug
from ezpz.view.report.page_tables import PagePart, facts_part, raw_part
from ezpz.view.report.public import public_run
from ezpz.view.report.step_time_chart import not_told, step_time_chart
from ezpz.view.report.svg import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series
    from ezpz.view.report.markup import Chart

_POINTS = 4000  # stretches of steps that all lines together keep, so that 200 metrics make no huge page
_FINEST, _COARSEST = 400, 40
_LONG = 10.0  # seconds from the first row to the last
_OVERLAID = 6  # lines in one chart
_FACTS = (
    ("config", "Configuration", True),
    ("effective", "Effective configuration", False),
    ("environment", "Environment", False),
    ("versions", "Versions", False),
    ("launch", "Launch", False),
    ("ranks", "Ranks of the process that recorded", False),
)


def write_report(run: Run, path: Path | None = None, *, public: bool = False) -> Path:
    """Write the report of a run, also of one that still runs or was killed.

    Args:
        run: The run, from `ezpz.track.run_reader.open_run`.
        path: The file; otherwise ``report.html`` in the run's folder, of a public report ``report-public.html``.
        public: Leave out hosts, paths, users and arguments.

    Returns:
        The file, which appears in one move.

    Raises:
        TrackError: The journal cannot be read.
        OSError: The file cannot be written.
    """
    target = run.folder / ("report-public.html" if public else "report.html") if path is None else path
    page = build_page(run, public=public).encode("utf-8", "replace")
    # One that is to be elsewhere is for whom the umask lets read it.
    write_whole(target, page if public else marked(page), closed=path is None, sync=True)
    return target


def build_page(run: Run, *, public: bool = False) -> str:
    """Return the page as text, without secrets; a public one without hosts, paths, users and arguments too.

    Raises:
        TrackError: The journal cannot be read.
    """
    run = without_secrets(run)
    if not (run.folder / "metrics.jsonl").is_file():  # lost, or never written: the facts are a report too
        run = run.changed()
        vars(run).update(rows=Table(), table=Table(), windows=[])
    run = public_run(run) if public else run
    series = [item for item in numeric_series(run.table) if len(item.steps)]
    charts = [part for part in _chart_parts(run, series) if part.inside]
    others = [part for part in _other_parts(run, series) if part.inside]
    main = header(run) + cards(run, series)
    main += "".join(part.render() for part in charts) or '<p class="none">No number was recorded.</p>\n'
    main += "".join(part.render() for part in others)
    links = [(part.name, part.title) for part in (*charts, *others) if part.is_linked]
    footer = (
        f"Written by ezpz, {shown(now())}. Long curves show the extremes of each stretch of steps; "
        "the rows themselves are in <code>metrics.jsonl</code>."
    )
    footer += " This copy leaves out hosts, paths, users and arguments." if public else ""
    return document(run.name, main, footer, links, [data for part in charts for data in part.charts])


def _chart_parts(run: Run, series: Sequence[Series]) -> Iterator[PagePart]:
    """Yield the parts that hold charts, in the order of the page."""
    known = {item.name: item for item in series}
    buckets = max(_COARSEST, min(_FINEST, _POINTS // max(1, len(series))))
    ends = span(chain.from_iterable((item.steps[0], item.steps[-1]) for item in series))
    axis = Axis(ends, restarts(run.rows), buckets)
    taken: set[str] = set()

    def part(name: str, title: str, charts: Iterable[Chart | None], *, is_open: bool = True) -> PagePart:
        there = [chart for chart in charts if chart is not None]
        figures = "".join(figure(chart, slug(chart.title, taken)) for chart in there)
        grid = f'<div class="grid">\n{figures}</div>\n' if there else ""
        return PagePart(name, title, grid, is_open, None if is_open else len(there), [chart.data for chart in there])

    def each(several: Sequence[Series]) -> list[Chart]:
        return [line_chart(_titled(item.name), [item], axis) for item in several]

    groups = {group: [known[name] for name in names] for group, names in group_names(known).items()}
    times = groups["time"]
    yield part("loss", "Loss", _overlaid("Loss", groups["loss"], axis, wide=True))
    yield part("throughput", "Throughput", each(groups["throughput"]))
    seconds = _overlaid("Seconds per step", times, axis, wide=len(times) > 1)
    of_steps = step_time_chart(run, axis)
    time = part("time", "Step time", [breakdown(times, axis), of_steps, *seconds])
    yield time if of_steps or not _is_long(run) else replace(time, inside=time.inside + not_told(run))
    yield part("ranks", "Across ranks", _across_ranks(run, axis))
    yield part("memory", "Memory", _overlaid("Memory", groups["memory"], axis))
    yield part("optimizer", "Optimizer", each(groups["optimizer"]))
    yield part("other", "Other metrics", each(groups["other"]), is_open=False)
    sampled = read_hardware(run)
    hardware = part("hardware", "Hardware", hardware_charts(sampled))
    yield replace(hardware, inside=hardware.inside + hardware_map(sampled))
    yield part("goodput", "Goodput", [goodput_chart(run)])
    yield part("startup", "Start-up", [startup_chart(run), hosts_startup_chart(run)])


def _is_long(run: Run) -> bool:
    """Tell whether a run took so long that people ask where its time went."""
    first, last = run.table.time_range
    return first is not None and last is not None and last - first >= _LONG


def _other_parts(run: Run, series: Sequence[Series]) -> Iterator[PagePart]:
    """Yield the parts that hold no charts, in the order of the page."""
    yield events(run, series)
    yield last_values(run, series)
    yield lags_part(run)
    for name, title, is_open in _FACTS:
        yield facts_part(name, title, run.facts.get(name) or {}, is_open=is_open)
    yield raw_part(run)


def _overlaid(title: str, series: Sequence[Series], axis: Axis, *, wide: bool = False) -> Iterator[Chart]:
    for start in range(0, len(series), _OVERLAID):
        several = series[start : start + _OVERLAID]
        units = {unit(item.name) for item in several} - {""}
        shared = f" ({units.pop()})" if title == "Memory" and len(units) == 1 else ""
        name = f"{title}{shared}" if len(series) > 1 else _titled(several[0].name)
        yield line_chart(name, several, axis, wide=wide)


def _titled(name: str) -> str:
    """Return a metric with its unit, ``dt (s)`` or ``tps (tok/s)``; what is in percent may be a share as well."""
    return f"{name} ({unit(name)})" if unit(name) not in {"", "%"} else name


def _across_ranks(run: Run, axis: Axis) -> Iterator[Chart]:
    windows = counting_windows(run)
    matrix = slowest_key(windows)
    if matrix is not None:
        yield heat_chart(matrix, axis, whole_step(windows))
    band = loss_band(windows)
    if band:
        chart = line_chart("Loss over all ranks", band, axis, wide=True, band=(0, 2))
        short = lacking(windows)
        yield replace(chart, notes=[*chart.notes, short]) if short else chart
