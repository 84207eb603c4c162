"""List the events of a run: NaN and infinities, findings, attempts, checkpoints, and trouble with the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.quantities import duration
from ezpz.redact import redact_text
from ezpz.track.launches import find_launch
from ezpz.track.table import restarts
from ezpz.view.report.page_tables import PagePart, table, value_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series

_MOST = 200  # events that are listed
_NAMED = 8  # hosts of an attempt
# What `ezpz.train.Loop` records at the step before: seconds.
_PAUSES = {"dt_save": "a checkpoint was saved", "dt_eval": "the model was evaluated"}


def events(run: Run, series: Sequence[Series]) -> PagePart:
    """Return the part of the page that lists what happened, in the order of steps."""
    moments = [
        *_not_finite(series),
        *_pauses(series),
        *_findings(run),
        *((float(step), "the run was started again") for step in restarts(run.rows)),
    ]
    rows = [(f"step {step:,.0f}", what) for step, what in sorted(moments)]
    if len(rows) > _MOST:
        rows = [*rows[:_MOST], ("…", f"and {len(rows) - _MOST:,} more")]
    rows += [("records", value_text(problem)) for problem in run.record.problems]
    inside = table(rows) if rows else ""
    return PagePart("events", "Events", inside + _attempts(run) + _launch_attempts(run), count=len(rows) or None)


def _not_finite(series: Sequence[Series]) -> list[tuple[float, str]]:
    import numpy as np

    moments = []
    for item in series:
        for what, mask in (("NaN", np.isnan(item.values)), ("infinite", np.isinf(item.values))):
            if mask.any():
                number, last = int(mask.sum()), float(item.steps[mask][-1])
                more = f", {number:,} times in all, last at step {last:,.0f}" if number > 1 else ""
                moments.append((float(item.steps[mask.argmax()]), f"{item.name} is {what} for the first time{more}"))
    return moments


def _findings(run: Run) -> list[tuple[float, str]]:
    return [
        (float(each.step), redact_text(each.text))
        for each in run.record.findings
        if each.step is not None and each.text
    ]


def _pauses(series: Sequence[Series]) -> list[tuple[float, str]]:
    moments = []
    for item in series:
        if item.name in _PAUSES and len(item.values):
            steps, total = item.steps, float(item.values.sum())
            more = f", {len(steps):,} times in all, last at step {steps[-1]:,.0f}" if len(steps) > 1 else ""
            moments.append(
                (float(steps[0]), f"{_PAUSES[item.name]} for the first time{more}, {duration(total)} together")
            )
    return moments


def _attempts(run: Run) -> str:
    before, newest = run.record.before, run.record
    if not before:
        return ""
    known = [(each.state, each.cause, each.started, each.ended) for each in before]
    known.append((run.state, run.cause, newest.started, newest.ended))
    rows = [[str(number), *map(value_text, each)] for number, each in enumerate(known, 1)]
    return table(rows, ("attempt", "state", "cause", "started", "ended"))


def _launch_attempts(run: Run) -> str:
    """Return a table of the attempts of `launch --attempts` that have ended, where it made several."""
    found = find_launch(run.record.launch_id)
    known = found[1].attempts if found else ()
    if not any(each.decision == "again" for each in known):
        return ""
    rows = []
    for each in known:
        decision = ": ".join(filter(None, (each.decision, each.because)))
        cells = ["" if each.attempt is None else each.attempt, list(each.hosts)]
        cells.append("" if each.exit_code is None else each.exit_code)
        rows.append([*map(_short, map(value_text, cells)), redact_text(each.failure.text), redact_text(decision)])
    return table(rows, ("attempt of the launch", "hosts", "ended with", "cause", "decision"))


def _short(names: str) -> str:
    """Return a list of names, of a long one the first and how many more there are."""
    first = names.split(", ")
    return names if len(first) <= _NAMED else f"{', '.join(first[:_NAMED])} and {len(first) - _NAMED} more"


def last_values(run: Run, drawn: Sequence[Series]) -> PagePart:
    """Return the part that shows what no chart does: texts, lists, histograms and counters, each by its last value."""
    charts = {item.name for item in drawn}
    rows = [
        (
            key,
            redact_text(value_text(cells.end(-1))),
            f"step {int(cells.pick(run.table.step_array)[-1]):,}",
            f"{cells.count:,}",
        )
        for key, cells in run.table.cells.items()
        if key not in charts
    ]
    inside = table(rows, ("metric", "last value", "at", "recorded")) if rows else ""
    return PagePart("values", "Last values", inside, count=len(rows), is_linked=False)
