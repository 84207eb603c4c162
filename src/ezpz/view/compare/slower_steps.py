"""Say which of two runs has the slower steps, and which part of a step that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.quantities import duration
from ezpz.track.step_parts import DATA, read_step_parts
from ezpz.view.slow_steps import part_in_words, steady_steps

if TYPE_CHECKING:
    from ezpz.track.run_reader import Run
    from ezpz.track.step_parts import StepParts

_FEWEST = 20  # steps
_LONGER, _LONGER_UNKNOWN = 1.2, 1.5  # times a step of the other run, where a part explains it, and where none does
_WORTH = 1.0  # seconds of all steps together
_EXPLAINS, _ALL = 0.5, 0.9  # share of what a step takes longer
_SHOWN = 0.2  # of that: another part that is named


def slower_steps(runs: tuple[Run, Run], letters: tuple[str, str]) -> str:
    """Return ``B's steps take 2.1 x as long (20 ms → 42 ms): all of it waits for data``; empty where neither's do.

    Means of steps count, without the first ones and those in which a process stood still; of runs that have steps in
    common, those.

    Args:
        runs: The two runs.
        letters: How they are called.
    """
    both = [read_step_parts(run) for run in runs]
    if both[0] is None or both[1] is None:
        return ""
    sides = _of_common_steps(steady_steps(both[0]), steady_steps(both[1]))
    if min(len(each.steps) for each in sides) < _FEWEST:
        return ""
    means = [float(each.seconds.mean()) for each in sides]
    place = int(means[1] > means[0])
    slow, fast = sides[place], sides[1 - place]
    after, before = means[place], means[1 - place]
    added = after - before
    adds = {name: _mean(slow, name) - _mean(fast, name) for name in {**slow.parts, **fast.parts}}
    known = sorted((name for name in adds if adds[name] >= _SHOWN * added), key=lambda name: -adds[name])
    is_known = bool(known) and adds[known[0]] >= _EXPLAINS * added
    if after < (_LONGER if is_known else _LONGER_UNKNOWN) * before or added * len(slow.steps) < _WORTH:
        return ""
    if is_known:
        parts = [_of_it(name, adds[name] / added) for name in known]
        why = parts[0] if adds[known[0]] >= _ALL * added else " and ".join(parts[:2])
    elif adds:
        why = f"nothing that was measured explains it ({', '.join(map(part_in_words, adds))})"
    else:
        why = "no part of a step was measured"
    ratio = after / before
    times = f"{ratio:.0f} x" if ratio >= 9.5 else f"{ratio:.2g} x"
    return f"{letters[place]}'s steps take {times} as long ({duration(before)} → {duration(after)}): {why}"


def _of_common_steps(one: StepParts, two: StepParts) -> list[StepParts]:
    """Return the steps that both have, where these are enough; else all of each."""
    import numpy as np

    masks = [np.isin(side.steps, other.steps) for side, other in ((one, two), (two, one))]
    if min(int(mask.sum()) for mask in masks) < _FEWEST:
        return [one, two]
    return [side.only(mask) for side, mask in zip((one, two), masks, strict=True)]


def _mean(told: StepParts, part: str) -> float:
    return float(told.parts[part].mean()) if part in told.parts else 0.0


def _of_it(part: str, share: float) -> str:
    of = "all of it" if share >= _ALL else f"{100 * share:.0f} % of it"
    return f"{of} waits for data" if part == DATA else f"{of} is {part_in_words(part)}"
