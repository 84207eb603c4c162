"""Compare several runs with the first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.track.names import is_learning_rate
from ezpz.track.series import series_of
from ezpz.track.table import restarts
from ezpz.view.compare.comparison_verdict import Verdict, judge
from ezpz.view.compare.differences import differences
from ezpz.view.compare.divergence import measure, tolerance
from ezpz.view.compare.explaining_setting import Clues
from ezpz.view.compare.paired_curves import SeriesByName, choose_metric, pair, rate_difference
from ezpz.view.compare.setting_differences import is_half, why_not
from ezpz.view.compare.slower_steps import slower_steps
from ezpz.view.compare.step_differences import batch_sizes, compare_seen, is_rate_of_optimizer
from ezpz.view.compare.throughput import compare_throughput
from ezpz.view.compare.which_is_better import which_is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.view.compare.differences import Difference
    from ezpz.view.compare.divergence import Divergence, Tolerance
    from ezpz.view.compare.step_differences import Batches
    from ezpz.view.compare.throughput import Throughput
    from ezpz.view.compare.which_is_better import Reached


_EPOCHS = 0.02  # epochs are printed with two digits
_LONGER = 0.05  # of the longer run: what one run has more is worth a word


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        letters: How they are called, ``("A", "B")``.
        verdict: What came out.
        metric: Metric that was compared; empty where there was none.
        differences: What is set differently, the likeliest to change numbers first.
        divergence: How the curves part; None where they have no step in common.
        allowed: By how much equal runs may differ; None likewise.
        throughput: How fast they are; None where too little was recorded.
        batches: Whether they have trained on the same batches; None where that is not known.
        reached: Which of them is better at the end, by each metric of the card; empty where they are not comparable.
        slower: Whose steps take longer, and which part of a step that is, in words; empty where they do not.
    """

    letters: tuple[str, str]
    verdict: Verdict
    metric: str
    differences: list[Difference]
    divergence: Divergence | None
    allowed: Tolerance | None
    throughput: Throughput | None
    batches: Batches | None = None
    reached: tuple[Reached, ...] = ()
    slower: str = ""


@dataclass(frozen=True)
class _Seen:
    run: Run
    letter: str
    series: SeriesByName


def compare_runs(runs: Sequence[Run], metric: str | None = None) -> list[Comparison]:
    """Compare each run with the first.

    Args:
        runs: Two or more.
        metric: Metric to compare; the loss by default.

    Returns:
        A comparison for each run but the first.

    Raises:
        UsageError: Fewer than two runs or more than 26, or no run has such a metric.
        TrackError: A journal cannot be read.
    """
    if not 2 <= len(runs) <= len(ascii_uppercase):
        raise UsageError(f"cannot compare {len(runs)} runs (from the command line); expected 2 to 26 run folders.")
    seen = [_Seen(run, ascii_uppercase[number], SeriesByName(run)) for number, run in enumerate(runs)]
    choose_metric([each.series for each in seen], metric)  # a name that no run has is an error at once
    return [
        replace(
            _compare(seen[0], other, metric), slower=slower_steps((runs[0], other.run), (seen[0].letter, other.letter))
        )
        for other in seen[1:]
    ]


def _compare(first: _Seen, second: _Seen, metric_name: str | None) -> Comparison:
    letters = (first.letter, second.letter)
    items = differences(first.run.record, second.run.record, letters)
    batches, notes, changes = compare_seen(first.run, second.run, letters)
    rate = rate_difference(first.series, second.series, letters)
    if any(name in second.series and is_learning_rate(name) for name in first.series):  # of every step, then
        changes = [item for item in changes if not is_rate_of_optimizer(item.key, first=rate is None)]
        changes = changes if rate is None else [rate, *changes]
    place = next((number for number, item in enumerate(items) if item.group != "effective values"), len(items))
    items[place:place] = changes
    speed = compare_throughput(first.series, second.series, (first.run.table, second.run.table))
    metric = choose_metric([first.series, second.series], metric_name)
    if metric is None:
        verdict = Verdict(_no_metric(first, second, metric_name), 2)
        return Comparison(letters, verdict, "", items, None, None, speed, batches)
    both = pair(first.series[metric], second.series[metric])
    if not len(both.steps):
        text = f"not comparable: no step of {metric} in common ({_range(first, metric)}, {_range(second, metric)})"
        return Comparison(letters, Verdict(text, 2), metric, items, None, None, speed, batches)
    half = is_half(first.run.record) or is_half(second.run.record)
    allowed = tolerance(both, half=half)
    apart = measure(both, allowed)
    clues = Clues(_restarts(first, second), _is_random(first, second), allowed.step, batches)
    verdict = judge(items, apart, clues, letters)
    verdict = replace(verdict, notes=[*verdict.notes, *_said_besides(verdict, batches, notes)])
    verdict = replace(verdict, text=_with_lengths(verdict, apart, first, second, metric))
    reason = why_not(first.run.record, second.run.record, letters)
    sizes = batch_sizes(first.run, second.run)
    if sizes and verdict.exit_code == 1 and not verdict.likely:  # else gradient accumulation may make up for it
        each = f"{sizes[0]} in {letters[0]} and {sizes[1]} in {letters[1]}"
        reason = reason or f"batch size {each}: the samples of a step differ"
    reason = reason or _other_epochs(first, second, letters)
    if reason:
        verdict = Verdict(f"not comparable: {reason}", 2)
    reached = () if reason else tuple(which_is_better(first.series, second.series, letters))
    return Comparison(letters, verdict, metric, items, apart, allowed, speed, batches, reached)


def _with_lengths(verdict: Verdict, apart: Divergence, first: _Seen, second: _Seen, metric: str) -> str:
    """Return the sentence of runs that agree, with how long each is where that is not what they have in common."""
    if verdict.step is not None:
        return verdict.text
    counts = [len(each.series[metric].steps) for each in (first, second)]
    (start, last), (other_start, other_last) = spans = [_span(each.run) for each in (first, second)]
    if apart.points < max(counts):
        lengths = f"{first.letter} has {counts[0]}, {second.letter} {counts[1]}"
    elif abs(last - other_last) > _LONGER * max(last - start, other_last - other_start):
        # A metric of every tenth step says nothing of runs of 3 and of 10 steps but that they begin alike.
        told = [f"{span[0]} to {span[1]}" for span in spans]
        lengths = f"{first.letter} has steps {told[0]}, {second.letter} {told[1]}"
    else:
        return verdict.text
    many = "s" * (apart.points > 1)
    return verdict.text.replace(f"{apart.points} step{many}", f"{apart.points} common step{many} ({lengths})", 1)


def _span(run: Run) -> tuple[int, int]:
    steps = run.table.steps
    return int(min(steps)), int(max(steps))


def _other_epochs(first: _Seen, second: _Seen, letters: tuple[str, str]) -> str:
    """Say that steps which were only counted mean something else in two runs."""
    if not all(each.run.facts.get("steps_are_counted") for each in (first, second)):
        return ""
    both = pair(series_of(first.run.table, "epoch"), series_of(second.run.table, "epoch"))
    other = [place for place in range(len(both.steps)) if abs(both.a[place] - both.b[place]) > _EPOCHS][:1]
    if not other:
        return ""
    one, two = both.a[other[0]], both.b[other[0]]
    return f"line {both.steps[other[0]]:.0f} is of epoch {one} in {letters[0]} and {two} in {letters[1]}"


def _said_besides(verdict: Verdict, batches: Batches | None, notes: Sequence[str]) -> list[str]:
    """Return what is to be said of batches and generators, where the verdict does not."""
    said = " ".join([verdict.text, *verdict.notes])
    every = [*([batches.text] if batches is not None else []), *notes]
    return [note for note in every if note not in said]


def _restarts(first: _Seen, second: _Seen) -> list[tuple[str, int]]:
    return [(each.letter, step) for each in (first, second) for step in restarts(each.run.rows)]


def _is_random(first: _Seen, second: _Seen) -> bool:
    """Tell whether both runs have the same dropout."""
    drops = [
        {name: rate for name, rate in each.run.record.effective.raw.items() if name.startswith("dropout.") and rate}
        for each in (first, second)
    ]
    return bool(drops[0]) and drops[0] == drops[1]


def _no_metric(first: _Seen, second: _Seen, metric_name: str | None) -> str:
    common = [name for name in first.series if name in second.series]
    choice = f"both have {', '.join(common[:8])}: choose one with --metric" if common else "they have none in common"
    return f"not comparable: {metric_name or 'a loss'} is not in both runs; {choice}"


def _range(seen: _Seen, metric: str) -> str:
    steps = seen.series[metric].steps
    return f"{seen.letter} has {int(steps[0])} to {int(steps[-1])}" if len(steps) else f"{seen.letter} has none"
