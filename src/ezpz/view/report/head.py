"""Build the top of the page: the run, how it ended, and cards with the numbers that people ask for first."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.quantities import duration, number
from ezpz.track.launches import find_launch
from ezpz.track.names import group_names, is_memory, is_validation, unit
from ezpz.track.speed import speed_of
from ezpz.track.steps import steps_of
from ezpz.view.report.markup import shown
from ezpz.view.run_summary import RunSummary
from ezpz.why.engine import says_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series

_GIB = 2.0**30
_MEDIAN = "median of the steps"


def header(run: Run) -> str:
    """Return the head of the page: name, state and cause, and when, where and how it was run."""
    more = _of_launch(run)
    cause = run.cause if more in run.cause else "; ".join(filter(None, (run.cause, more)))
    return heading(run.name, (run.state, run.state), _when_and_where(run), _command(run), cause)


def _of_launch(run: Run) -> str:
    """Return what the launch of a run found to be the cause of its end, where that says more than the run itself."""
    launch_id = run.record.launch_id if run.state in {"died", "failed", "stopped"} else ""
    found = find_launch(launch_id) if launch_id else None
    return says_more(found[1].causes) if found else ""


def heading(title: str, state: tuple[str, str], facts: Iterable[tuple[str, str]], command: str, cause: str = "") -> str:
    """Return the head of a page.

    Args:
        title: What it is about; plain text, as all that follows.
        state: The state that gives the colour, and the words for it.
        facts: Name and value of each.
        command: The command line; nothing for an empty one.
        cause: Why it ended early; nothing for an empty one.
    """
    reason = f'<p class="cause">{shown(cause)}</p>' if cause else ""
    pairs = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in facts)
    code = f'<p class="command"><code>{shown(command)}</code></p>' if command else ""
    return (
        f'<header><h1>{shown(title)} <span class="state {shown(state[0])}">{shown(state[1])}</span></h1>{reason}'
        f"<dl>{pairs}</dl>{code}</header>\n"
    )


def _when_and_where(run: Run) -> Iterator[tuple[str, str]]:
    record = run.record
    started, times = record.started_at, run.rows.time_array
    if started is None and len(times):
        started = float(times[0])
    if started is not None:
        yield "started", datetime.fromtimestamp(started).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    seconds = RunSummary(run).seconds
    if seconds is not None:
        yield "duration", duration(seconds) + _until(run)
    steps = steps_of(run.table)
    if steps.made:
        numbers = "" if steps.first is None else f" ({steps.first:,} to {steps.last:,})"
        yield "steps", f"{steps.made:,}{numbers}"
    world, local = record.ranks.world_size, record.ranks.local_world_size
    if world is not None:
        hosts = -(-world // local) if local is not None and local > 0 else 1
        yield "ranks", f"{world:,} on {hosts:,} host{'s' if hosts > 1 else ''}"
    if record.host:
        yield "rank 0 on", record.host
    if record.attempt is not None and record.attempt > 1:
        yield "attempt", str(record.attempt)
    if record.git_commit:
        yield "commit", record.git_commit[:12]
    if run.folder.is_absolute():  # a public report does not say where it is
        yield "folder", str(run.folder)


def _until(run: Run) -> str:
    """Return what is to be added to a duration whose end was not recorded."""
    if run.record.ended:
        return ""
    return " so far" if run.state == "running" else " until the last row"


def _command(run: Run) -> str:
    return run.record.launch.get("EZPZ_LAUNCH_CMD") or shlex.join(map(str, run.record.argv))


class Card(NamedTuple):
    """A number of the summary: what it is, its value, and how it was taken; plain text."""

    what: str
    value: str
    how: str


def cards(run: Run, series: Sequence[Series]) -> str:
    """Return the summary: the cards that `_CARDS` make, in their order."""
    summary = RunSummary(run, series)
    boxes = "".join(
        f'<div class="card"><span class="what">{shown(card.what)}</span><strong>{shown(card.value)}</strong>'
        f'<span class="how">{shown(card.how)}</span></div>'
        for make in _CARDS
        for card in make(summary)
    )
    return f'<div class="cards">{boxes}</div>\n' if boxes else ""


def _finite(series: Series) -> tuple[Any, Any]:
    import numpy as np

    mask = np.isfinite(series.values)
    return series.steps[mask], series.values[mask]


def _loss_cards(summary: RunSummary) -> Iterator[Card]:
    """Yield the last and the best value of the run's loss and of its first validation loss."""
    for each in summary.losses[:2]:
        yield Card(f"last {each.name}", number(each.last), f"at step {each.last_step:,.0f}")
        if each.best is not None:
            yield Card(f"best {each.name}", number(each.best), f"at step {each.best_step:,.0f}")


def _accuracy_cards(summary: RunSummary) -> Iterator[Card]:
    """Yield the last value of the first accuracy, and the last and the best of the first on data of validation."""
    for each in summary.accuracies[:2]:
        if each.best is None:
            continue
        last, best = _percent(each.last, is_share=each.is_share), _percent(each.best, is_share=each.is_share)
        yield Card(f"last {each.name}", last, f"at step {each.last_step:,.0f}")
        if is_validation(each.name):
            yield Card(f"best {each.name}", best, f"at step {each.best_step:,.0f}")


def _percent(value: float, *, is_share: bool) -> str:
    return f"{100 * value if is_share else value:.1f} %"


def _throughput_cards(summary: RunSummary) -> Iterator[Card]:
    """Yield the speed of the run (`ezpz.track.speed`), or else the first throughput that is per device, and its MFU."""
    import numpy as np

    speed, known = speed_of(summary.run.table), summary.series
    if speed is not None and not speed.of_time:
        yield Card(speed.metric, f"{number(speed.value)} {speed.unit}".replace(" /", "/"), _MEDIAN)
    seen = {False} if speed is not None and not speed.of_time else set()
    rates = [known[name] for name in group_names(known)["throughput"]]
    for item in sorted(rates, key=lambda item: "per" in item.name):
        is_mfu = unit(item.name) == "%"
        _, values = _finite(item)
        if is_mfu in seen or not values.size:
            continue
        seen.add(is_mfu)
        middle = float(np.median(values))
        share = 100 * middle if values.max() <= 1.5 else middle
        text = f"{number(middle)} {unit(item.name)}".replace(" /", "/").rstrip()
        yield Card("MFU" if is_mfu else item.name, f"{share:.1f} %" if is_mfu else text, _MEDIAN)


def _startup_cards(summary: RunSummary) -> Iterator[Card]:
    """Yield the time to the first step, or to the first row where the start was not timed."""
    run, record = summary.run, summary.run.record
    if summary.first_step_seconds is not None:
        yield Card("time to first step", duration(summary.first_step_seconds), "from the start")
        return
    started = record.started_at
    # Only of the first attempt: rows of a later one follow those of the first, whose start is recorded elsewhere.
    if started is not None and len(run.rows) and not record.earlier:
        seconds = float(run.rows.time_array[0]) - started
        yield Card("time to first row", duration(max(0.0, seconds)), "from the start")


def _memory_cards(summary: RunSummary) -> Iterator[Card]:
    """Yield the largest amount of memory, of metrics named after a peak where there are any."""
    known = summary.series
    peaks = [
        (float(values.max()), name) for name in known if is_memory(name) and (values := _finite(known[name])[1]).size
    ]
    marked = [peak for peak in peaks if "peak" in peak[1].lower() or "max" in peak[1].lower()]
    if not peaks:
        return
    largest, name = max(marked or peaks)
    text = f"{number(largest)} {unit(name)}".rstrip()
    if not unit(name) and largest >= 1e7:  # nothing but bytes is written with so many digits
        text = f"{largest / _GIB:.3g} GiB"
    yield Card("peak memory", text, name)


# A card more is a function more: it takes the `RunSummary`, and yields nothing where it has no number.
_CARDS = (_loss_cards, _accuracy_cards, _throughput_cards, _startup_cards, _memory_cards)
