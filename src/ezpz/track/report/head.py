"""The top of the page: what ran, how it ended, and the numbers that people ask for first."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ezpz.track.names import is_loss, is_validation, main_loss, unit
from ezpz.track.report.markup import duration, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.track.run import Run
    from ezpz.track.series import Series

__all__ = ["cards", "header"]

_GIB = 2.0**30


def header(run: Run) -> str:
    """Return the head of the page: name, state and cause, and when, where and how it was run."""
    cause = f'<p class="cause">{shown(run.cause)}</p>' if run.cause else ""
    pairs = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in _when_and_where(run))
    command = _command(run)
    code = f'<p class="command"><code>{shown(command)}</code></p>' if command else ""
    return (
        f'<header><h1>{shown(run.name)} <span class="state {shown(run.state)}">{shown(run.state)}</span></h1>{cause}'
        f"<dl>{pairs}</dl>{code}</header>\n"
    )


def _when_and_where(run: Run) -> Iterator[tuple[str, str]]:
    started, ended = _moment(run.facts.get("started")), _moment(run.facts.get("ended"))
    times = run.rows.times
    if started is None and times:
        started = datetime.fromtimestamp(times[0]).astimezone()
    if ended is None and times:
        ended = datetime.fromtimestamp(times[-1]).astimezone()
    if started is not None:
        yield "started", started.strftime("%Y-%m-%d %H:%M:%S")
    if started is not None and ended is not None and ended >= started:
        seconds = (ended - started).total_seconds()
        if seconds < 2 and times:  # both are whole seconds; the rows know better
            seconds = max(times) - min(times)
        yield "duration", duration(seconds) + _until(run)
    steps = run.table.steps
    if steps:
        yield "steps", f"{len(set(steps)):,} ({min(steps):,} to {max(steps):,})"
    ranks = _dict(run.facts.get("ranks"))
    world, local = ranks.get("world_size"), ranks.get("local_world_size")
    if type(world) is int:
        hosts = -(-world // local) if type(local) is int and local > 0 else 1
        yield "ranks", f"{world:,} on {hosts:,} host{'s' if hosts > 1 else ''}"
    if run.facts.get("host"):
        yield "rank 0 on", str(run.facts["host"])
    if type(run.facts.get("attempt")) is int and run.facts["attempt"] > 1:
        yield "attempt", str(run.facts["attempt"])
    if run.facts.get("git_commit"):
        yield "commit", str(run.facts["git_commit"])[:12]
    yield "folder", str(run.folder)


def _until(run: Run) -> str:
    """Return what is to be added to a duration whose end nobody wrote down."""
    if run.facts.get("ended"):
        return ""
    return " so far" if run.state == "running" else " until the last row"


def _command(run: Run) -> str:
    argv = run.facts.get("argv")
    launched = _dict(run.facts.get("launch")).get("EZPZ_LAUNCH_CMD")
    if launched:
        return str(launched)
    return shlex.join(map(str, argv)) if isinstance(argv, list) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone()
    except ValueError:
        return None


def cards(run: Run, series: Sequence[Series], groups: dict[str, list[str]]) -> str:
    """Return the summary: a card for each of last and best loss, throughput, MFU, first step, and peak memory."""
    known = {item.name: item for item in series}
    told = [
        *_loss_cards(known),
        *_rate_cards([known[name] for name in groups["throughput"]]),
        *_first_step(run),
        *_memory_card([known[name] for name in groups["memory"]]),
    ]
    boxes = "".join(
        f'<div class="card"><span class="what">{shown(what)}</span><strong>{shown(value)}</strong>'
        f'<span class="how">{shown(how)}</span></div>'
        for what, value, how in told
    )
    return f'<div class="cards">{boxes}</div>\n' if boxes else ""


def _finite(series: Series) -> tuple[Any, Any]:
    import numpy as np

    mask = np.isfinite(series.values)
    return series.steps[mask], series.values[mask]


def _loss_cards(known: dict[str, Series]) -> Iterator[tuple[str, str, str]]:
    validation = next((name for name in known if is_loss(name) and is_validation(name)), None)
    for name in dict.fromkeys((main_loss(known), validation)):
        if name is None or not len(known[name].values):
            continue
        item = known[name]
        steps, values = _finite(item)
        yield f"last {item.name}", number(float(item.values[-1])), f"at step {item.steps[-1]:,.0f}"
        if values.size:
            best = int(values.argmin())
            yield f"best {item.name}", number(float(values[best])), f"at step {steps[best]:,.0f}"


def _rate_cards(rates: Sequence[Series]) -> Iterator[tuple[str, str, str]]:
    import numpy as np

    seen = {"throughput": False, "mfu": False}
    for item in sorted(rates, key=lambda item: "per" in item.name):  # of the whole job first, then per device
        kind = "mfu" if unit(item.name) == "%" else "throughput"
        _, values = _finite(item)
        if seen[kind] or not values.size:
            continue
        seen[kind] = True
        middle = float(np.median(values))
        text = number(middle)
        if kind == "mfu":
            text = f"{100 * middle if values.max() <= 1.5 else middle:.1f} %"
        yield ("MFU" if kind == "mfu" else item.name), text, "in the median"


def _first_step(run: Run) -> Iterator[tuple[str, str, str]]:
    for stage, seconds in _dict(run.facts.get("timeline")).items():
        if "first" in stage and "step" in stage and isinstance(seconds, (int, float)) and seconds >= 0:
            yield "time to first step", duration(float(seconds)), "from the start"
            return
    started = _moment(run.facts.get("started"))
    # Only of the first attempt: rows of a later one stand after those of the first, whose start is told elsewhere.
    if started is not None and run.rows.times and not run.facts.get("earlier"):
        seconds = run.rows.times[0] - started.timestamp()
        yield "time to first row", duration(max(0.0, seconds)), "from the start"


def _memory_card(series: Sequence[Series]) -> Iterator[tuple[str, str, str]]:
    peaks = [(float(values.max()), item.name) for item in series if (values := _finite(item)[1]).size]
    marked = [peak for peak in peaks if "peak" in peak[1].lower() or "max" in peak[1].lower()]
    if not peaks:
        return
    largest, name = max(marked or peaks)
    text = f"{number(largest)} {unit(name)}".rstrip()
    if not unit(name) and largest >= 1e7:  # nothing but bytes is written with so many digits
        text = f"{largest / _GIB:.3g} GiB"
    yield "peak memory", text, name
