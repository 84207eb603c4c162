"""Account for the seconds that a run was granted: what went into steps, and what into all else.

The account is made from ``run.json`` and the journal of a run, and from the records of its launches where they are
still kept. Rank 0's clock counts: it waits for all others. Every second belongs to one row; what nothing explains is a
row of its own, so that the rows sum to what was granted.

`account` is a pure function; `read_spans` finds what it needs.
"""

from __future__ import annotations

import math

from ezpz.fields import Record, replace
from ezpz.quantities import duration
from ezpz.records.run_record import RunRecord
from ezpz.track.intervals import Interval, one_after_another
from ezpz.track.step_pauses import COLLECTION, DATA, LOGGING

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ezpz.track.run_reader import Run
    from ezpz.track.table import Table

# name: what it holds, in the order in which they are shown; sections of other names stand before the last three.
ROWS = {
    "start": "launcher, meeting of the ranks, model, and all else before the first step",
    "imports": "Python, and the program's imports",
    "first step": "compilation and first allocations",
    "steps": "steps that count",
    "data": "steps that waited for their batch",
    "evaluation": "",
    "save": "checkpoints",
    "load": "of a checkpoint",
    "repeated steps": "done again after a failure",
    "dead time": "after the last step before a failure, and until the next attempt",
    "tail": "after the last step",
    "unexplained": "",
}
_KNOWN = {  # names of sections, and the row that each belongs to
    **dict.fromkeys(("evaluation", "evaluate", "eval", "validation", "validate", "test"), "evaluation"),
    **dict.fromkeys(("checkpoint", "checkpointing", "save", "saving"), "save"),
    **dict.fromkeys(("load", "loading", "restore", "resume"), "load"),
    **dict.fromkeys(("data", "dataloader", "data loading", "loading data"), "data"),
}
_SEEN = 0.0005  # of the whole: a shorter row of the account has no bar
_FAILURES = 3  # from which on a save interval can be judged by them
_WORTH = 0.001  # of the time: less is not worth another interval


class Span(Record):
    """One attempt of a run: from the start of its launch to its end. Times are epoch seconds.

    What has a value for each row of training (`ezpz.track.steps`) is an array where it was read from a run, so that a
    million rows fit into memory.

    Attributes:
        begin: When its launch began; of the first one of a job, when the job did where that is known.
        end: When its launch ended, or its last sign of life.
        job: Id of its job; empty without one.
        launch: What the attempts of one `launch` have in common; empty without one.
        born: When rank 0's process began; None where it never did, or did not say.
        imported: When it had imported torch and came to ezpz; None where it did not.
        by_loop: Whether `ezpz.train.Loop` made its rows, so that each says how long its step took.
        one_step: Whether each row is one step, and not an epoch.
        ready: When it was last seen before its first step, in a program without a `Loop`.
        failed: Whether a failure ended it, or nothing is known of its end.
        running: Whether it still runs.
        times: When each of its rows was written.
        steps: The step of each.
        numbers: The numbers of their steps, where these are others; None where they have none, and each row is a step.
        each: How many steps each row of an epoch had; empty where each row is one step.
        took: Seconds of each step; empty where rows do not tell.
        waited: Seconds of each that were spent waiting for data, 0 where it does not tell.
        evaluated: Seconds of evaluation after each, as its row has it.
        saved: Seconds of saving after each.
        sections: ``(step, {name: seconds})`` of records of sections: up to the row of that step; of what came after the
            last row the step is one more.
    """

    begin: float
    end: float
    job: str = ""
    launch: str = ""
    born: float | None = None
    imported: float | None = None
    by_loop: bool = False
    one_step: bool = True
    ready: float | None = None
    failed: bool = False
    running: bool = False
    times: Sequence[float] = ()
    steps: Sequence[int] = ()
    numbers: Sequence[int] | None = ()
    each: Sequence[float] = ()
    took: Sequence[float] = ()
    waited: Sequence[float] = ()
    evaluated: Sequence[float] = ()
    saved: Sequence[float] = ()
    sections: Sequence[tuple[int, Mapping[str, float]]] = ()


class Account(Record):
    """Where the seconds of a run went.

    Attributes:
        granted: Seconds in all: the sum of the rows.
        rows: Seconds by row, those of `ROWS` and one for each section of another name, ``section NAME``.
        queue: Seconds between jobs or launches, which were not granted.
        steps: Steps that count.
        repeated: Steps that were done again.
        attempts: How many attempts there were.
        jobs: How many jobs; 0 without a scheduler.
        failures: How many attempts a failure ended.
        saves: How many checkpoints were saved, as far as rows tell.
        save_every: Steps between two of them, the median; None where fewer than two are known.
        step_seconds: What one step takes, pauses aside; None without steps.
        advice: A sentence on the interval of saves; empty where there is nothing to say.
        running: Whether the run still runs.
    """

    granted: float
    rows: Mapping[str, float]
    queue: float
    steps: int
    repeated: int
    attempts: int
    jobs: int
    failures: int
    saves: int
    save_every: int | None
    step_seconds: float | None
    advice: str
    running: bool

    @property
    def goodput(self) -> float:
        """The share of the granted seconds that went into steps that count, from 0 to 1."""
        return self.rows["steps"] / self.granted if self.granted > 0 else 0.0

    @property
    def besides(self) -> str:
        """What lay between attempts and was not granted, in words; empty for less than a second."""
        where = "in the queue or between jobs" if self.jobs else "between launches"
        return f"{duration(self.queue)} {where}" if self.queue >= 1 else ""


def account(spans: Sequence[Span]) -> Account:
    """Return the account of attempts that continue one another, in their order."""
    rows = dict.fromkeys(ROWS, 0.0)
    firsts = [_first_step(span.steps) for span in spans]
    queue, repeated, counted, before = 0.0, 0, 0, None
    for number, span in enumerate(spans):
        later = [first for first in firsts[number + 1 :] if first is not None]
        parts, again = _parts(span, min(later, default=None))
        for name, seconds in parts.items():
            rows[name] = rows.get(name, 0.0) + seconds
        repeated += _made(span, again)
        counted += _made(span, ~again)
        if before is not None:
            gap = max(0.0, span.begin - before.end)
            is_granted = any(
                one and one == other for one, other in ((span.launch, before.launch), (span.job, before.job))
            )
            rows["dead time"] += gap if is_granted else 0.0
            queue += 0.0 if is_granted else gap
        before = span
    granted = sum(rows.values())
    failures = sum(span.failed for span in spans)
    every, saves = _save_interval(spans)
    step_seconds = (rows["steps"] + rows["data"]) / max(1, counted - len(spans)) if counted else None
    advice = ""
    if failures >= _FAILURES and saves and every and step_seconds and not rows["save"] <= 0.0:
        advice = advise(every, rows["save"] / saves, step_seconds, granted, failures)
    ordered = [*list(ROWS)[:-4], *(name for name in rows if name not in ROWS), *list(ROWS)[-4:]]
    return Account(
        granted=granted,
        rows={name: rows[name] for name in ordered},
        queue=queue,
        steps=counted,
        repeated=repeated,
        attempts=len(spans),
        jobs=len({span.job for span in spans if span.job}),
        failures=failures,
        saves=saves,
        save_every=every,
        step_seconds=step_seconds,
        advice=advice,
        running=bool(spans) and spans[-1].running,
    )


def _first_step(steps: Sequence[int]) -> int | None:
    import numpy as np

    return int(np.min(steps)) if len(steps) else None


def _made(span: Span, chosen: Any) -> int:
    """Return how many steps some rows of an attempt tell of, those that a mask of shape (rows,) chooses."""
    import numpy as np

    from ezpz.track.steps import count_of

    if len(span.each):
        return int(np.asarray(span.each)[chosen].sum())
    numbers = span.numbers if span.numbers is None or len(span.numbers) else span.steps
    return int(chosen.sum()) if numbers is None else count_of(np.asarray(numbers, dtype=np.int64)[chosen])


def _parts(span: Span, overtaken_from: int | None) -> tuple[dict[str, float], Any]:
    """Return the seconds of one attempt by row, and a mask of its rows of steps that a later attempt has done again.

    Args:
        span: The attempt.
        overtaken_from: The first step of the later ones.
    """
    import numpy as np

    parts = dict.fromkeys(ROWS, 0.0)
    granted = max(0.0, span.end - span.begin)
    last = "dead time" if span.failed else "tail"
    sections = _by_row(each for _, each in span.sections)
    if span.imported is not None and span.born is not None:
        parts["imports"] = max(0.0, span.imported - span.born)
    if not len(span.times):
        parts.update(sections)
        parts["start" if span.running else last] += granted - sum(parts.values())
        return parts, np.zeros(0, dtype=bool)
    first_end, last_end = float(span.times[0]), float(span.times[-1])
    early = sum(_by_row(each for step, each in span.sections if step <= span.steps[0]).values())
    late = sum(_by_row(each for step, each in span.sections if step > span.steps[-1]).values())
    evaluated, saved, took, waited = (
        np.asarray(each, float) for each in (span.evaluated, span.saved, span.took, span.waited)
    )
    before = first_end - span.begin - parts["imports"]  # from the imports to the end of the first step
    if span.by_loop:
        pauses = evaluated[0] + saved[0]
        early = max(0.0, early - pauses)
        parts["start"] = before - early - pauses - took[0]
        for name, known in (("evaluation", evaluated), ("save", saved)):
            sections[name] = max(sections.get(name, 0.0), float(known.sum()))
    else:  # what lies between two rows is a step, but for the sections in it
        between = last_end - first_end - (sum(sections.values()) - early - late)
        took = np.full(len(span.times), max(0.0, between) / max(1, len(span.times) - 1))
        waited = np.zeros(len(took))
        took[0] = max(0.0, min(first_end - (first_end if span.ready is None else span.ready), before - early))
        parts["start"] = before - early - took[0]
    again = np.asarray(span.steps) >= (math.inf if overtaken_from is None else overtaken_from)
    parts["repeated steps"] = float(took[again].sum())
    parts["data"] = float(waited[~again].sum())
    work = np.where(again, 0.0, took - waited)
    first = 1 if span.one_step else 0  # rows of whole epochs do not tell their first step
    parts["first step"] = float(work[:first].sum())
    parts["steps"] = float(work[first:].sum())
    for name, seconds in sections.items():
        parts[name] = parts.get(name, 0.0) + seconds
    parts[last] = max(0.0, span.end - last_end - late)
    parts["unexplained"] = granted - sum(parts.values())
    return parts, again


def _by_row(records: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of sections by the row that they belong to; the first step is one that rows tell better."""
    sums: dict[str, float] = {}
    for record in records:
        for name, seconds in record.items():
            if name == "first step":
                continue
            row = row_of_section(name)
            sums[row] = sums.get(row, 0.0) + seconds
    return sums


def row_of_section(name: str) -> str:
    """Return the row of the account that a section belongs to: ``save``, ``evaluation``, or ``section NAME``."""
    return _KNOWN.get(name.lower(), f"section {name}")


# The interval of saves.


def _save_interval(spans: Iterable[Span]) -> tuple[int | None, int]:
    """Return the median of the steps between two saves, and how many saves there were."""
    import numpy as np

    gaps: list[int] = []
    saves = 0
    for span in spans:
        if not len(span.saved):
            continue
        steps = np.asarray(span.steps)[np.asarray(span.saved) > 0]
        saves += len(steps)
        between = np.diff(steps)
        gaps += between[between > 0].tolist()
    gaps.sort()
    return (gaps[len(gaps) // 2] if gaps else None), saves


def share_lost(every: int, save: float, step: float, between: float) -> float:
    """Return the share of the time that saves and repeated steps cost, in first order.

    Every interval pays one save, and a failure half an interval on average: J. W. Young, "A first order approximation
    to the optimum checkpoint interval", Communications of the ACM 17 (1974), 530.

    Args:
        every: Steps between two saves.
        save: Seconds of a save.
        step: Seconds of a step.
        between: Seconds between two failures, the mean.
    """
    interval = every * step
    return save / (interval + save) + (interval / 2 + save) / between


def best_interval(save: float, step: float, between: float) -> int:
    """Return the steps between two saves that cost least, after Young and, where saves are long, Daly.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22 (2006), 303-312, equation 37; of saves longer than twice the time between failures nothing is
    gained.

    Args:
        save: Seconds of a save.
        step: Seconds of a step.
        between: Seconds between two failures, the mean.
    """
    if save >= 2 * between:
        return max(1, round(between / step))
    ratio = save / (2 * between)
    seconds = math.sqrt(2 * save * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
    return max(1, round(seconds / step))


def advise(every: int, save: float, step: float, granted: float, failures: int) -> str:
    """Return what another interval of saves would have cost at the failures that were seen."""
    between = granted / failures
    best = _rounded(best_interval(save, step, between))
    less = share_lost(every, save, step, between) - share_lost(best, save, step, between)
    seen = f"{failures} failures in {duration(granted)}, {duration(save)} a save"
    if less < _WORTH or best == every:
        return f"saving every {every} steps is near the best at the failures seen ({seen})"
    return f"saving every {best} steps instead of {every} would have cost {less:.1%} less ({seen})".replace("%", " %")


def _rounded(steps: int) -> int:
    """Return a number with two digits that count, as people choose one: 437 is 440."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return max(1, round(steps / unit) * unit)


# What a run and its launches have recorded.


def read_spans(run: Run) -> list[Span]:
    """Return the attempts of a run in their order.

    Raises:
        TrackError: The journal cannot be read.
    """
    newest = run.record
    records = [*newest.before, newest]
    table = run.rows if (run.folder / "metrics.jsonl").is_file() else None
    sections = _read_sections(run)
    known = set(table.attempt_array.tolist()) if table is not None else set()
    records += [RunRecord.of({"attempt": number}) for number in known.difference(map(_attempt_of, records))]
    records.sort(key=_attempt_of)  # one that ended without a row has the number of the next
    jobs: set[str] = set()
    spans = []
    for each, following in zip(records, [*records[1:], None], strict=True):
        number = _attempt_of(each)
        columns, own = {}, []
        if table is not None and (following is None or number != following.attempt):
            columns = _columns(table.of_attempt(number))
            own = [each for each in sections if each[0] == number]
        state = each.state or "died"
        state = run.state if each is newest else "died" if state == "running" else state
        spans.append(_span(each, columns, own, state, jobs))
    return _without_overlaps(spans)


def _attempt_of(record: RunRecord) -> int:
    return max(1, record.attempt or 1)


def _columns(attempt: Table) -> dict[str, Any]:
    """Return the arrays of an attempt that the account needs; each has a value for each row of training, NaN for none.

    Args:
        attempt: All rows of the attempt.
    """
    import numpy as np

    from ezpz.track.steps import epochs_of, rows_of_training, step_numbers

    table = rows_of_training(attempt)
    columns: dict[str, Any] = {"times": table.time_array, "steps": table.step_array}
    columns["numbers"] = step_numbers(attempt, table)
    held = table.cells.get("steps") if len(table) and epochs_of(table) is not None else None
    columns["each"] = held.floats() if held is not None and held.are_numbers and held.count == len(table) else ()
    for key in ("dt", "dtd", "dt_eval", "dt_save"):
        cells = table.cells.get(key)
        if cells is None or not cells.are_numbers:
            continue
        values = np.full(len(table), np.nan)
        values[cells.index_array] = cells.floats()
        columns[key] = values
    return columns


def _span(
    record: RunRecord,
    columns: Mapping[str, Any],
    sections: Sequence[tuple[int, int, float, dict[str, float]]],
    state: str,
    jobs: set[str],
) -> Span:
    running = state == "running"
    from ezpz.records.launch_record import LaunchRecord
    from ezpz.track.launches import find_launch

    times = columns.get("times", ())
    timeline, began, started, launch_id = record.timeline, record.began_at, record.started_at, record.launch_id
    path, launch = (find_launch(launch_id) if launch_id else None) or (None, LaunchRecord())
    first, last = ([float(times[0])], [float(times[-1])]) if len(times) else ([], [])
    signs = [each for each in (began, started, *first) if each is not None]
    begin = launch.started or min(signs, default=0.0)
    job = launch.plan.job_id or record.launch.get("EZPZ_JOBID", "")
    if job and job not in jobs:  # the first launch of a job accounts for what was before it
        jobs.add(job)
        begin = min(begin, launch.job_started) if launch.job_started else begin
    signs += [begin, *last, *([sections[-1][2]] if sections else [])]
    ended = record.ended_at
    own_end = max([*signs, *([ended] if ended else [])])
    # A time to the second may lie after the end of its launch, and a launch that was killed has none.
    launch_end = 0.0 if running else launch.ended or 0.0
    end = max([launch_end, *last]) if launch_end else max(signs) if running else own_end
    count = len(times)
    by_loop = "data" in timeline and len(columns.get("dt", ())) == count > 0
    bad = launch.state == "failed" if launch.ended else state not in {"finished", "exited", "stopped"}
    early = [when for name, when in timeline.items() if name != "first_step"]
    return Span(
        begin=begin,
        end=end,
        job=job,
        launch=str(path.parent) if path else launch_id,
        born=began,
        imported=None if began is None else began + timeline.get("setup", min(early, default=0.0)),
        by_loop=by_loop,
        ready=None if began is None or not early else began + max(early),
        one_step="dtd" in columns or not by_loop,
        failed=not running and bad,
        running=running,
        times=times,
        steps=columns.get("steps", ()),
        numbers=columns.get("numbers", ()),
        each=columns.get("each", ()),
        took=_filled(columns.get("dt"), count) if by_loop else (),
        waited=_filled(columns.get("dtd"), count),
        evaluated=_filled(columns.get("dt_eval"), count),
        saved=_filled(columns.get("dt_save"), count),
        sections=[(step, _beside_rows(seconds) if by_loop else seconds) for _, step, _, seconds in sections],
    )


def _beside_rows(seconds: dict[str, float]) -> dict[str, float]:
    """Return seconds of sections without what is in the time of a `Loop`'s step."""
    return {name: each for name, each in seconds.items() if name not in {COLLECTION, DATA, LOGGING}}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _filled(values: Any, count: int) -> Any:
    """Return seconds for each row: 0 where a row tells none, or no time that can be."""
    import numpy as np

    return np.zeros(count) if values is None else np.where(np.isfinite(values) & (values > 0), values, 0.0)


def _without_overlaps(spans: list[Span]) -> list[Span]:
    """Let no attempt begin before the one before it has ended: what a launch's end adds is counted once."""
    kept: list[Span] = []
    for span in spans:
        if kept and span.begin < kept[-1].end:
            before = kept[-1]
            cut = max(span.begin, before.begin, *(float(each) for each in before.times[-1:]))
            kept[-1] = replace(before, end=cut)
            span = replace(span, begin=max(span.begin, cut))  # noqa: PLW2901  # the same attempt, shorter
        kept.append(span)
    return kept


def _read_sections(run: Run) -> list[tuple[int, int, float, dict[str, float]]]:
    """Return ``(attempt, step, when, {name: seconds})`` of the journal's records of sections."""
    from ezpz.track.journal_reader import iter_kind

    found = []
    for row in iter_kind(run.folder / "metrics.jsonl", "sections"):
        seconds = {name: float(each) for name, each in row["m"].items() if _is_number(each) and each > 0}
        found.append((row["a"], row["step"], float(row["t"]), seconds))
    return found


def intervals(made: Account) -> list[Interval]:
    """Return the rows of an account one after another, without those that are too short to be seen."""
    ends, end = [], 0.0
    for name, seconds in made.rows.items():
        if seconds >= _SEEN * made.granted:
            end += seconds
            ends.append((name, end))
    return one_after_another("account", ends)


def as_json(made: Account) -> dict[str, Any]:
    """Return an account as ``ezpz runs --goodput --json`` prints it."""
    granted = made.granted
    return {
        "granted_seconds": round(granted, 3),
        "goodput": round(made.goodput, 6),
        "rows": [
            {"name": name, "seconds": round(seconds, 3), "share": round(seconds / granted, 6) if granted > 0 else 0.0}
            for name, seconds in made.rows.items()
        ],
        "queue_seconds": round(made.queue, 3),
        "steps": made.steps,
        "repeated_steps": made.repeated,
        "step_seconds": None if made.step_seconds is None else round(made.step_seconds, 6),
        "attempts": made.attempts,
        "jobs": made.jobs,
        "failures": made.failures,
        "saves": made.saves,
        "save_every": made.save_every,
        "advice": made.advice or None,
        "running": made.running,
    }
