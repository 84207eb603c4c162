"""``report.html`` of a run: one file with everything inside, in the order in which people ask.

Pictures are drawn here as SVG, so the page reads with scripts off, prints, and needs no network; ``script.js`` adds
the values under the pointer, log scales, smoothing, themes and CSV. A policy in the page's head forbids every request
and every script but that one, so a metric's name that gets past the escaping could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING

from ezpz.files import write_whole
from ezpz.track.folder import now
from ezpz.track.names import group_names
from ezpz.track.report.breakdown import breakdown
from ezpz.track.report.by_rank import counting_windows, loss_band, slowest_key
from ezpz.track.report.charts import Axis, line_chart
from ezpz.track.report.events import events, last_values
from ezpz.track.report.head import cards, header
from ezpz.track.report.heat import heat_chart
from ezpz.track.report.markup import embedded, figure, shown, slug
from ezpz.track.report.startup import startup_chart
from ezpz.track.report.svg import span
from ezpz.track.report.tables import facts_table, raw, section
from ezpz.track.series import numeric_series
from ezpz.track.table import Table, restarts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ezpz.track.report.markup import Chart
    from ezpz.track.run import Run
    from ezpz.track.series import Series

__all__ = ["build_page", "write_report"]

_POINTS = 4000  # stretches of steps that all lines together keep, so that 200 metrics make no huge page
_FINEST, _COARSEST = 400, 40
_OVERLAID = 6  # lines in one chart
_FACTS = (
    ("config", "Configuration", True),
    ("effective", "Effective configuration", False),
    ("environment", "Environment", False),
    ("versions", "Versions", False),
    ("launch", "Launch", False),
    ("ranks", "Ranks of the process that recorded", False),
)


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a run, also of one that goes on or was killed.

    Args:
        run: The run, from `ezpz.track.run.open_run`.
        path: The file; otherwise ``report.html`` in the run's folder.

    Returns:
        The file, which appears in one move.

    Raises:
        TrackError: The journal cannot be read.
        OSError: The file cannot be written.
    """
    target = run.folder / "report.html" if path is None else path
    write_whole(target, build_page(run).encode("utf-8", "replace"), sync=True)
    return target


def build_page(run: Run) -> str:
    """Return the page as text.

    Raises:
        TrackError: The journal cannot be read.
    """
    if not (run.folder / "metrics.jsonl").is_file():  # lost, or never written: the facts are a report too
        run = replace(run)
        vars(run).update(rows=Table(), table=Table(), windows=[])
    series = [item for item in numeric_series(run.table) if len(item.steps)]
    groups = group_names(item.name for item in series)
    parts = list(_parts(run, series, groups))
    taken: set[str] = set()
    charts = [chart for _, _, each, _ in parts for chart in each]
    body = "".join(
        section(title, _grid(each, taken), name=name, open_=open_, count=None if open_ else len(each))
        for name, title, each, open_ in parts
        if each
    )
    links = [(name, title) for name, title, each, _ in parts if each]
    facts = "".join(facts_table(title, run.facts.get(key), name=key, open_=open_) for key, title, open_ in _FACTS)
    happened = events(run, series)
    main = header(run) + cards(run, series, groups) + (body or '<p class="none">No number was recorded.</p>\n')
    main += happened + last_values(run, series) + facts + raw(run)
    links += [("events", "Events")] * bool(happened) + [("config", "Configuration")] * bool(run.facts.get("config"))
    return _document(run.name, links, main, [chart.data for chart in charts])


def _parts(
    run: Run, series: Sequence[Series], groups: dict[str, list[str]]
) -> Iterator[tuple[str, str, list[Chart], bool]]:
    """Yield the parts of the page that hold charts: id, title, charts, and whether it is unfolded."""
    known = {item.name: item for item in series}
    buckets = max(_COARSEST, min(_FINEST, _POINTS // max(1, len(series))))
    axis = Axis(
        span(chain.from_iterable((item.steps[0], item.steps[-1]) for item in series)), restarts(run.rows), buckets
    )
    of = {group: [known[name] for name in names] for group, names in groups.items()}
    yield "loss", "Loss", list(_overlaid("Loss", of["loss"], axis, wide=True)), True
    yield "throughput", "Throughput", [line_chart(item.name, [item], axis) for item in of["throughput"]], True
    shares = breakdown(of["time"], axis)
    times = list(_overlaid("Seconds per step", of["time"], axis, wide=len(of["time"]) > 1))
    yield "time", "Step time", ([shares] if shares else []) + times, True
    yield "ranks", "Across ranks", list(_across_ranks(run, axis)), True
    yield "memory", "Memory", list(_overlaid("Memory", of["memory"], axis)), True
    yield "optimizer", "Optimizer", [line_chart(i.name, [i], axis) for i in of["optimizer"]], True
    yield "other", "Other metrics", [line_chart(item.name, [item], axis) for item in of["other"]], False
    start = startup_chart(run)
    yield "startup", "Start-up", [start] if start else [], True


def _overlaid(title: str, series: Sequence[Series], axis: Axis, *, wide: bool = False) -> Iterator[Chart]:
    for start in range(0, len(series), _OVERLAID):
        several = series[start : start + _OVERLAID]
        yield line_chart(title if len(series) > 1 else several[0].name, several, axis, wide=wide)


def _across_ranks(run: Run, axis: Axis) -> Iterator[Chart]:
    windows = counting_windows(run)
    matrix = slowest_key(windows)
    if matrix is not None:
        yield heat_chart(matrix, axis)
    band = loss_band(windows)
    if band:
        yield line_chart("Loss over all ranks", band, axis, wide=True, band=(0, 2))


def _grid(charts: Sequence[Chart], taken: set[str]) -> str:
    return f'<div class="grid">\n{"".join(figure(chart, slug(chart.title, taken)) for chart in charts)}</div>\n'


def _document(title: str, links: Sequence[tuple[str, str]], main: str, data: list[dict[str, object]]) -> str:
    here = files("ezpz.track.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    anchors = "".join(f'<a href="#{name}">{shown(text)}</a>' for name, text in links)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{shown(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<nav><div>{anchors}<span id="tools"></span></div></nav>\n<main>\n{main}</main>\n'
        f"<footer>Written by ezpz, {shown(now())}. Long curves show the extremes of each stretch of steps; "
        f"every row is in <code>metrics.jsonl</code>.</footer>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )
