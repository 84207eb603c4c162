"""Compare several runs with the first; reruns among them say what is noise."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.track.compare.cause import Clues
from ezpz.track.compare.curves import SeriesByName, choose_metric, pair, rate_difference
from ezpz.track.compare.differences import differences
from ezpz.track.compare.divergence import measure
from ezpz.track.compare.kinds import Kind
from ezpz.track.compare.noise import tolerance
from ezpz.track.compare.settings import is_half, why_not
from ezpz.track.compare.throughput import compare_throughput
from ezpz.track.compare.verdict import Verdict, judge
from ezpz.track.table import restarts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.compare.curves import Pair
    from ezpz.track.compare.differences import Difference
    from ezpz.track.compare.divergence import Divergence
    from ezpz.track.compare.noise import Tolerance
    from ezpz.track.compare.throughput import Throughput
    from ezpz.track.run import Run

_NO_SETTING = {"never decides"}


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        letters: How they are called, ``("A", "B")``.
        verdict: What came out.
        metric: Metric that was compared; empty where there was none.
        differences: What is set differently, the likeliest to change numbers first.
        divergence: How the curves part; None where they have no step in common.
        allowed: What counted as noise; None likewise.
        throughput: How fast they are; None where too little was recorded.
    """

    letters: tuple[str, str]
    verdict: Verdict
    metric: str
    differences: list[Difference]
    divergence: Divergence | None
    allowed: Tolerance | None
    throughput: Throughput | None


@dataclass(frozen=True)
class _Seen:
    run: Run
    letter: str
    series: SeriesByName


def compare_runs(runs: Sequence[Run], metric: str | None = None) -> list[Comparison]:
    """Compare each run with the first.

    Args:
        runs: Two or more. Where all settings of one are those of the first, it is a rerun, and tells what noise is.
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
    return [_compare(seen[0], other, [each for each in seen[1:] if each is not other], metric) for other in seen[1:]]


def _compare(first: _Seen, second: _Seen, others: Sequence[_Seen], metric_name: str | None) -> Comparison:
    letters = (first.letter, second.letter)
    items = differences(first.run.facts, second.run.facts, letters)
    rate, rate_step = rate_difference(first.series, second.series)
    if rate is not None:
        place = next((number for number, item in enumerate(items) if item.group != "effective values"), len(items))
        items.insert(place, rate)
    speed = compare_throughput(first.series, second.series, (first.run.table, second.run.table))
    metric = choose_metric([first.series, second.series], metric_name)
    if metric is None:
        return Comparison(letters, Verdict(_no_metric(first, second, metric_name), 2), "", items, None, None, speed)
    both = pair(first.series[metric], second.series[metric])
    if not len(both.steps):
        text = f"not comparable: no step of {metric} in common ({_range(first, metric)}, {_range(second, metric)})"
        return Comparison(letters, Verdict(text, 2), metric, items, None, None, speed)
    half = is_half(first.run.facts) or is_half(second.run.facts)
    allowed = tolerance(both, *_nulls(first, others, metric), half=half)
    apart = measure(both, allowed)
    clues = Clues(rate_step, _restarts(first, second), _is_random(first, second), allowed.step)
    verdict = judge(items, apart, clues, letters)
    reason = why_not(first.run.facts, second.run.facts, letters)
    if reason:
        verdict = Verdict(f"not comparable: {reason}", 2)
    return Comparison(letters, verdict, metric, items, apart, allowed, speed)


def _nulls(first: _Seen, others: Sequence[_Seen], metric: str) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of the first run with its reruns, and with runs of another seed."""
    reruns: list[Pair] = []
    seeds: list[Pair] = []
    for other in others:
        if metric not in other.series:
            continue
        both = pair(first.series[metric], other.series[metric])
        items = differences(first.run.facts, other.run.facts)
        decisive = [item for item in items if item.group not in _NO_SETTING]
        is_seed = any(item.kind is Kind.SEED or item.key == "model.checksum" for item in items)
        if not both.finite.any() or any(item.kind is not Kind.SEED for item in decisive):
            continue
        (seeds if is_seed else reruns).append(both)
    return reruns, seeds


def _restarts(first: _Seen, second: _Seen) -> list[tuple[str, int]]:
    return [(each.letter, step) for each in (first, second) for step in restarts(each.run.rows)]


def _is_random(first: _Seen, second: _Seen) -> bool:
    layers = [(each.run.facts.get("effective") or {}).get("stochastic") for each in (first, second)]
    return bool(layers[0]) and layers[0] == layers[1]


def _no_metric(first: _Seen, second: _Seen, metric_name: str | None) -> str:
    common = [name for name in first.series if name in second.series]
    choice = f"both have {', '.join(common[:8])}: choose one with --metric" if common else "they have none in common"
    return f"not comparable: {metric_name or 'a loss'} is not in both runs; {choice}"


def _range(seen: _Seen, metric: str) -> str:
    steps = seen.series[metric].steps
    return f"{seen.letter} has {int(steps[0])} to {int(steps[-1])}" if len(steps) else f"{seen.letter} has none"
