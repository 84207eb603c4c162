"""Find why steps of a run are slow: they became slower, some are, or one part takes most of their time.

The end of a run writes what is found into ``findings`` of its ``run.json``, beside what stands out in its losses.

    slower-steps    from a step on, or between two, a step takes much longer than elsewhere
    slow-every      every n-th step takes much longer than the others
    slow-part       waits for data, saves, collections or logging take much of the time of all steps

A step is compared with the run's own others. Means of some 24 stretches tell a change from noise: nearly all on one
side have to be above nearly all on the other. (Medians would not do: of eight steps that wait for eight workers, seven
are as fast as ever.) One long pause is none, a growth of the batch neither. Where no measured part explains a change,
it has to be larger, and the sentence says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.quantities import duration
from ezpz.track.identical_batches import read_seen
from ezpz.track.names import is_step_time, main_throughput
from ezpz.track.step_parts import COLLECTION, DATA, EVALUATION, LOGGING, SAVING, read_step_parts
from ezpz.view.hardware_rows import read_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.track.at_end import End
    from ezpz.track.run_reader import Run
    from ezpz.track.step_parts import StepParts

__all__ = ["note_slow_steps", "part_in_words", "slow_findings", "steady_steps"]

_FEWEST = 40  # rows
_WARM_UP = 3  # rows of each start besides its first: caches, allocations, the first batches of workers
_STRETCHES, _ROWS = 24, 5  # stretches of a run, and rows in each at least
_ROWS_AHEAD = 100  # of a host that runs ahead of its device: `History` waits for that once per window
_OWN_STRETCHES = 3  # on each side of a change
_EXPLAINS = 0.5  # share of what a change adds, from which on a part is why
# Of a change that a measured part explains, and of another one: how much longer a step takes, what that is of the
# whole time, and in seconds.
_KNOWN, _UNKNOWN = (1.5, 0.1, 1.0), (2.0, 0.2, 5.0)
_LONG = 2.0  # times the step around it: a slow one
_OF_LONGEST = 0.3  # of what the longest of them add
_FEWEST_SLOW = 4
_WORKERS = 8  # of a DataLoader, where their number is not known
_ALIKE = 0.8  # of the distances between slow steps
_EVERY = 3  # steps between two slow ones at least: two or fewer are no exception
_SLOW_KNOWN, _SLOW_UNKNOWN = (0.05, 1.0), (0.2, 5.0)  # share of the time that slow steps cost, and seconds
_MUCH = {DATA: 0.5, SAVING: 0.25, COLLECTION: 0.1, LOGGING: 0.1}  # of the time of all steps
_WORTH = 3.0  # seconds of that
_PAUSE = 50.0  # times the median, and explained by nothing: the process stood still
_MOST_PAUSES = 3
_CLOCK, _THROTTLED = 0.85, 0.3  # of the clock before; of the samples

_Finding = dict[str, Any]


def note_slow_steps(end: End) -> None:
    """Note in ``run.json`` why steps were slow."""
    if end.rows is not None:
        end.facts["findings"] = [*end.facts.get("findings", ()), *slow_findings(end.rows)]


def slow_findings(run: Run) -> list[_Finding]:
    """Return why steps of a run are slow, as ``findings`` of ``run.json`` has it; at most one of each kind.

    Args:
        run: The run; its rows are read if they have not been.
    """
    told = read_step_parts(run)
    if told is None:
        return []
    steady = steady_steps(told)
    if len(steady.steps) < _FEWEST:
        return []
    change = _change(steady)
    slower = _slower(run, steady, change) if change is not None else None
    often = _often(steady)
    parts = list(_parts(steady))
    if often and often["part"] == DATA and (slower or often["every"] <= 2 * (steady.workers or _WORKERS)):
        often = None  # of eight workers that are too slow each eighth step waits: it is all steps that are slow
    found = [each for each in (slower, often) if each]
    taken = {each["part"] for each in found}
    found += [each for each in parts if each["part"] not in taken]
    for each in found if steady.runs_ahead else ():
        each["seen"].append("these are times of the host, which may run ahead of its device")
    return found


def steady_steps(told: StepParts) -> StepParts:
    """Return the steps without the first ones of each start, and without those in which the process stood still."""
    import numpy as np

    keep: Any = np.ones(len(told.steps), dtype=bool)
    starts = np.flatnonzero(np.append(True, told.attempts[1:] != told.attempts[:-1]))
    for start in starts.tolist():
        keep[start : start + _WARM_UP] = False
    keep[-1:] = False  # the last one may hold an end
    if keep.any():
        paused = keep & (told.rest() > _PAUSE * np.median(told.seconds[keep]))
        keep &= ~paused if paused.sum() <= _MOST_PAUSES else keep
    return told.only(keep)


# A change of level


class _Change(NamedTuple):
    """Rows that are slower than the others.

    Attributes:
        first: The first of them.
        last: The one after the last of them.
        before: Seconds of a step elsewhere, the median.
        after: Seconds of one of them.
        grows: Whether steps become longer and longer, and not from one on.
    """

    first: int
    last: int
    before: float
    after: float
    grows: bool = False


def _change(told: StepParts) -> _Change | None:
    """Return where steps are slower than elsewhere, by means of stretches; None where they are not."""
    seconds = told.seconds - sum(told.parts.get(name, 0.0) for name in (EVALUATION, SAVING))
    size = max(_ROWS_AHEAD if told.runs_ahead else _ROWS, -(-len(seconds) // _STRETCHES))
    count = len(seconds) // size
    if count < 2 * _OWN_STRETCHES:
        return None
    means = seconds[: count * size].reshape(count, size).mean(axis=1)
    return _from_one_on(seconds, means, size) or _between(seconds, means, size)


def _from_one_on(seconds: Any, means: Any, size: int) -> _Change | None:
    import numpy as np

    count = len(means)

    def cost(at: int) -> float:
        return sum(float(np.abs(side - np.median(side)).sum()) for side in (means[:at], means[at:]))

    at = min(range(_OWN_STRETCHES, count - _OWN_STRETCHES + 1), key=cost)
    one, two = means[:at], means[at:]
    before, after = float(np.median(one)), float(np.median(two))
    if after < _KNOWN[0] * before or float(np.quantile(one, 0.9)) >= float(np.quantile(two, 0.1)):
        return None
    low, high = float(np.median(means[:_OWN_STRETCHES])), float(np.median(means[-_OWN_STRETCHES:]))
    rise = float(np.median(means[at : at + 2]) - np.median(means[at - 2 : at]))
    if rise < 0.4 * (high - low) and float((np.diff(means) > 0).mean()) > 0.6:
        return _Change(at * size, len(seconds), low, high, grows=True)
    first = _first_above(seconds, (at - 1) * size, (at + 1) * size, (before + after) / 2)
    return _Change(first, len(seconds), before, after)


def _between(seconds: Any, means: Any, size: int) -> _Change | None:
    """Return the longest stretch of slower steps that ends again, where all others are alike."""
    import numpy as np

    usual = float(np.median(means))
    high = means > _KNOWN[0] * usual
    edges = np.flatnonzero(np.diff(np.concatenate([[0], high.astype(np.int64), [0]])))
    runs = sorted(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True), key=lambda one: one[0] - one[1])
    if not runs:
        return None
    begin, end = runs[0]
    others = np.concatenate([means[:begin], means[end:]])
    if end - begin < 2 or len(others) < _OWN_STRETCHES or float(np.quantile(others, 0.9)) > 1.3 * usual:
        return None
    before, after = float(np.median(others)), float(np.median(means[begin:end]))
    limit, there = (before + after) / 2, len(seconds)
    first = _first_above(seconds, max(0, begin - 1) * size, (begin + 1) * size, limit)
    last = there - _first_above(seconds[::-1], max(0, there - (end + 1) * size), there - (end - 1) * size, limit)
    return _Change(first, last, before, after) if first < last else None


def _first_above(seconds: Any, low: int, high: int, limit: float) -> int:
    """Return the place between two from which on values are above a limit on average."""
    import numpy as np

    return low + int(np.concatenate([[0.0], np.cumsum(seconds[low:high] - limit)]).argmin())


def _slower(run: Run, told: StepParts, change: _Change) -> _Finding | None:
    """Return what a change of level is, and which part makes it."""
    if change.grows:
        quarter = max(_ROWS, len(told.steps) // 10)
        other, slow = told.only(slice(0, quarter)), told.only(slice(-quarter, None))
    else:
        slow = told.only(slice(change.first, change.last))
        other = told.only(_outside(told, change))
    before, after = _mean(other), _mean(slow)
    added = after - before
    costs = added * (change.last - change.first) / (2 if change.grows else 1)
    adds = {name: _mean_of(slow, name) - _mean_of(other, name) for name in told.parts}
    part = max(adds, key=lambda name: adds[name], default="")
    explained = bool(part) and added > 0 and adds[part] >= _EXPLAINS * added
    part = part if explained else ""
    clocks = "" if part else _clocks(run, told, change)
    times, share, least = _KNOWN if part or clocks else _UNKNOWN
    whole = float(told.seconds.sum())
    if part == EVALUATION or change.after < times * change.before or costs < max(share * whole, least):
        return None
    if not part and not clocks and (_is_uneven(slow, other) or _does_more(run, told, change)):
        return None
    first, last = int(slow.steps[0]), int(slow.steps[-1])
    takes = f"takes {_times(change.after / change.before)} as long"
    if change.grows:
        text = f"steps take longer and longer: one {takes} at the end ({_range(change)})"
    elif change.last < len(told.steps):
        text = f"from step {first:,} to step {last:,} a step {takes.replace('takes', 'took')} ({_range(change)})"
    else:
        text = f"from step {first:,} on a step {takes} ({_range(change)})"
    of_it = _mean_of(slow, part) / after if part else None
    text += f"; {_of_it(part, of_it or 0.0, told.workers)}" if part else f"; {clocks or _not_known(told)}"
    return {
        "kind": "slower-steps",
        "key": "steps",
        "rank": None,
        "step": first,
        "value": round(change.after / change.before, 3),
        "before": round(change.before, 6),
        "last_step": last,
        "part": part or ("clock" if clocks else ""),
        "share": None if of_it is None else round(of_it, 3),
        "seen": [_shares("before" if change.last == len(told.steps) else "elsewhere", other), _shares("then", slow)],
        "text": text,
    }


def _is_uneven(slow: StepParts, other: StepParts) -> bool:
    """Tell whether most steps are as fast as elsewhere: a few long ones are no change that is worth a word."""
    import numpy as np

    return bool(np.median(slow.seconds) < _KNOWN[0] * np.median(other.seconds))


def _outside(told: StepParts, change: _Change) -> Any:
    import numpy as np

    places = np.arange(len(told.steps))
    return (places < change.first) | (places >= change.last)


def _mean(told: StepParts) -> float:
    return float(told.seconds.mean()) if len(told.seconds) else 0.0


def _mean_of(told: StepParts, part: str) -> float:
    return float(told.parts[part].mean()) if part in told.parts and len(told.seconds) else 0.0


def _does_more(run: Run, told: StepParts, change: _Change) -> bool:
    """Tell whether a step does more than before: a larger batch, or a throughput that has not fallen as much."""
    import numpy as np

    first, last = int(told.steps[change.first]), int(told.steps[change.last - 1])
    forms = sorted((read_seen(run).forms if run.folder.is_absolute() else {}).items())
    size = {form for step, form in forms if step < first}, {form for step, form in forms if first <= step <= last}
    if all(size) and not size[0] & size[1]:
        return True
    rate = main_throughput([name for name, cells in run.table.cells.items() if cells.are_numbers])
    if rate is None or rate[1] or is_step_time(rate[0]):
        return False
    cells = run.table.cells[rate[0]]
    steps = run.table.step_array[cells.index_array]
    inside = (steps >= first) & (steps <= last)
    values = cells.floats()
    if not inside.any() or inside.all():
        return False
    return bool(np.median(values[inside]) > 0.8 * np.median(values[~inside]))


def _clocks(run: Run, told: StepParts, change: _Change) -> str:
    """Return which device's clock fell where steps became slower, and why; empty where none did or is known."""
    begin, end = float(told.times[change.first]), float(told.times[change.last - 1])
    clocks: dict[str, tuple[list[float], list[float]]] = {}
    reasons: dict[str, dict[str, float]] = {}
    for row in read_hardware(run):
        middle = row.t - row.s / 2
        for device in row.devices:
            name = f"device {device.id} on {row.host}"
            is_slow = begin <= middle <= end
            if device.clock and float(told.times[0]) <= middle:
                clocks.setdefault(name, ([], []))[is_slow].append(device.clock[0])
            for reason, share in device.throttled.items() if is_slow else ():
                known = reasons.setdefault(name, {})
                known[reason] = max(known.get(reason, 0.0), share)
    falls = {
        name: (sum(fast) / len(fast), sum(slow) / len(slow)) for name, (fast, slow) in clocks.items() if fast and slow
    }
    fallen = {name: (fast, slow) for name, (fast, slow) in falls.items() if slow < _CLOCK * fast}
    if not fallen:
        return ""
    name = min(fallen, key=lambda each: fallen[each][1] / fallen[each][0])
    why = [reason for reason, share in reasons.get(name, {}).items() if share >= _THROTTLED]
    because = f" ({', '.join(sorted(why))})" if why else ""
    many = f" and those of {len(fallen) - 1} more" if len(fallen) > 1 else ""
    fast, slow = fallen[name]
    return f"the clock of {name}{many} fell from {fast:,.0f} to {slow:,.0f} MHz{because}"


# Some steps that are slower than those around them


def _often(told: StepParts) -> _Finding | None:
    """Return what makes every n-th step slow."""
    import numpy as np

    around = _around(told.seconds)
    more = told.seconds - around
    places = np.flatnonzero(more > (_LONG - 1) * around)
    if len(places):  # noise has longer steps, too
        places = places[more[places] > _OF_LONGEST * np.quantile(more[places], 0.9)]
    apart = np.diff(told.steps[places]) if len(places) else places
    apart = apart[apart > 0]
    if len(places) < _FEWEST_SLOW or not len(apart):
        return None
    every = int(np.median(apart))
    row = int(np.median(np.diff(places)))
    near = np.abs(apart - every) <= max(1, every // 50)
    if row < _EVERY or near.mean() < _ALIKE:
        return None
    costs, whole = len(places) * float(np.median(more[places])), float(told.seconds.sum())  # a pause is among them
    usual: Any = np.ones(len(told.seconds), dtype=bool)
    usual[places] = False
    adds = {
        name: len(places) * float(np.median(held[places]) - held[usual].mean()) if usual.any() else 0.0
        for name, held in told.parts.items()
    }
    part = max(adds, key=lambda name: adds[name], default="")
    part = part if part and adds[part] >= _EXPLAINS * costs else ""
    share, seconds = _SLOW_KNOWN if part else _SLOW_UNKNOWN
    if part == EVALUATION or costs < max(share * whole, seconds) or (told.runs_ahead and not part):
        return None
    longer = float(np.median(told.seconds[places] / around[places]))
    lasts = float(np.median(told.seconds[places]))
    first = int(told.steps[places[0]])
    why = part_in_words(part, told.workers) if part else _not_known(told)
    return {
        "kind": "slow-every",
        "key": "steps",
        "rank": None,
        "step": first,
        "value": round(longer, 3),
        "before": round(float(np.median(around)), 6),
        "every": every,
        "part": part,
        "share": round(costs / whole, 3),
        "seen": [
            f"{len(places)} such steps, {duration(lasts)} each, cost {_percent(costs / whole)} of the time of all"
        ],
        "text": f"every {_ordinal(every)} step takes {_times(longer)} as long: {why}",
    }


def _around(seconds: Any) -> Any:
    """Return for each row the median of its stretch."""
    import numpy as np

    size = max(_ROWS * 4, len(seconds) // _STRETCHES)
    count = max(1, len(seconds) // size)
    middles = np.median(seconds[: count * size].reshape(count, -1), axis=1) if len(seconds) >= size else None
    if middles is None:
        return np.full(len(seconds), np.median(seconds))
    return middles[np.minimum(np.arange(len(seconds)) // size, count - 1)]


# A part that takes much of the time


def _parts(told: StepParts) -> Iterator[_Finding]:
    whole = float(told.seconds.sum())
    for name, least in _MUCH.items():
        seconds = float(told.parts[name].sum()) if name in told.parts else 0.0
        if seconds < max(least * whole, _WORTH):
            continue
        yield {
            "kind": "slow-part",
            "key": "steps",
            "rank": None,
            "step": int(told.steps[0]),
            "last_step": int(told.steps[-1]),
            "value": None,
            "part": name,
            "share": round(seconds / whole, 3),
            "seen": [_shares("all steps", told)],
            "text": f"{_percent(seconds / whole)} of the time of all steps is {part_in_words(name, told.workers)}",
        }


# Words


def part_in_words(part: str, workers: int | None = None) -> str:
    """Return what a step does in a part of it, for sentences and the report."""
    if part == DATA:
        count = "" if workers is None else f" ({workers or 'no'} worker{'s' * (workers != 1)})"
        return f"waiting for the DataLoader{count}" if workers is not None else "waiting for data"
    words = {SAVING: "saving", LOGGING: "recording rows (History)", "load": "loading a checkpoint"}
    return words.get(part, part)


def _of_it(part: str, share: float, workers: int | None) -> str:
    if part == DATA:
        return f"{_percent(share)} of it {part_in_words(part, workers).replace('waiting', 'waits', 1)}"
    return f"{_percent(share)} of it is {part_in_words(part, workers)}"


def _not_known(told: StepParts) -> str:
    """Say that no measured part explains it."""
    known = [part_in_words(name) for name in told.parts]
    if not known:
        return "why is not known: no part of a step was measured"
    return f"nothing that was measured explains it ({', '.join(known)})"


def _shares(when: str, told: StepParts) -> str:
    """Return ``before: 21 ms a step, data 2 %, rest 98 %``."""
    whole = float(told.seconds.sum()) or 1.0
    parts = [(name, float(held.sum()) / whole) for name, held in told.parts.items()]
    shown = [f"{part_in_words(name)} {_percent(share)}" for name, share in parts if share >= 0.005]
    rest = [f"the rest {_percent(max(0.0, 1 - sum(share for _, share in parts)))}"] if shown else []
    return ", ".join([f"{when}: {duration(_mean(told))} a step", *shown, *rest])


def _range(change: _Change) -> str:
    return f"{duration(change.before)} → {duration(change.after)}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} x" if ratio >= 9.5 else f"{ratio:.2g} x"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
