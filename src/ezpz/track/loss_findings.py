"""Find what stands out in a run's losses: one that became NaN for good, rose, or stands still; a learning rate of 0.

The end of a run writes what is found into ``run.json`` (``findings``), where ``ezpz why``, ``ezpz runs`` and the report
read it. The journal's columns are read once for that, after the last step: recording a row costs nothing more.

Nothing here guesses. A NaN that is followed by numbers means "not measured", or a step that a gradient scaler skipped;
a rise has to be far outside of what the steps before it did, and large beside all that was learned
(`ezpz.track.loss_levels`). A loss that only stays within its noise is no finding: that is what one does which is
trained, or which nothing can be learned from, and no row tells them from one whose optimizer does nothing.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from ezpz.track.by_rank import counting_windows
from ezpz.track.identical_batches import batch_findings, read_seen
from ezpz.track.loss_levels import STRETCH, Curve, KnownChanges, known_changes, middles, rise_of, spike_of
from ezpz.track.names import is_learning_rate, is_loss, is_loss_term, is_of_a_game, is_validation, words_of
from ezpz.track.replica_findings import weight_findings
from ezpz.track.series import Series, series_of
from ezpz.track.values import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ezpz.track.at_end import End
    from ezpz.track.journal_reader import Row
    from ezpz.track.run_reader import Run

__all__ = ["curve_findings", "note_findings"]

_DIVERGES = 4.0  # times its start
_STILL_ROWS = 50
_STILL = 1e-6  # of the loss: what rounding alone does to one that is computed from the same batch and weights
_LENGTHS = 50  # candidates of how many rows an epoch has, after which losses come again
_OF_RUN = 20  # the rows at which a learning rate is 0 are a 20th of a run, or more
_DIGITS = 5  # multiples of a power of ten
_FEWEST_CHECKS = 3  # of a loss of validation, before a NaN of it means anything


def curve_findings(run: Run) -> list[dict[str, Any]]:
    """Return what stands out in losses, batches and weights of all ranks, at most one finding of each kind and metric.

    Args:
        run: The run; its rows are read if they have not been.

    Returns:
        Objects as ``findings`` of ``run.json`` has them (docs/why.md): ``kind`` (``non-finite-loss``, ``loss-rise``,
        ``loss-spike``, ``loss-still``, ``zero-lr``; ``same-batches`` of `ezpz.track.identical_batches`,
        ``weights-differ`` of `ezpz.track.replica_findings`), ``key``, ``rank`` (None where all ranks have it alike),
        ``step``, ``value``, and ``text`` for people, in the order of steps. Values that are not finite are text, as in
        the journal.
    """
    import numpy as np

    keys = [key for key, cells in run.table.cells.items() if cells.are_numbers and _is_curve(key)]
    of_ranks_together = [*batch_findings(run), *weight_findings(run)]
    if not keys:
        return of_ranks_together
    windows = counting_windows(run)
    world = max((int(row["m"].get("world") or 1) for row in windows), default=1)
    curves = {key: list(_curves(run, windows, key)) for key in keys}
    with np.errstate(all="ignore"):  # losses may be as large as a float can be
        known = None if any(map(is_of_a_game, run.table.cells)) else known_changes(run)
        found = [each for key in keys for each in _of_one_loss(run, curves, key, world, known)]
        zero = _zero_rate(run, curves)
    if zero is not None:  # why a loss stands still
        found = [zero, *(each for each in found if each["kind"] != "loss-still")]
    return sorted([*found, *of_ranks_together], key=lambda each: each["step"])


def _of_one_loss(
    run: Run, curves: dict[str, list[Curve]], key: str, world: int, known: KnownChanges | None
) -> Iterator[dict[str, Any]]:
    """Yield what stands out in one loss; `known` is None where losses need not fall, and what rises says nothing."""
    of_ranks = curves[key]
    lost = _lost(run, key, of_ranks, world)
    if lost and _is_term(key) and _others_go_on(curves, key, lost["step"]):
        lost = None
    if lost:
        yield lost
    if is_validation(key):
        return
    if known is not None:
        rise = None if lost or _is_term(key) else _rise(run, of_ranks, world, known)
        if rise:
            yield rise
        spike = _spike(of_ranks, known)
        if spike and not (rise and spike["step"] >= rise["step"]) and (spike["back"] is not None or not lost):
            yield spike
    still = _still(of_ranks, world)
    if still:
        yield still


def note_findings(end: End) -> None:
    """Note in ``run.json`` what stands out in the losses."""
    if end.rows is not None:
        end.facts["findings"] = curve_findings(end.rows)


def _is_curve(key: str) -> bool:
    return (is_loss(key) or is_loss_term(key)) and "loss" in words_of(key)


def _is_term(key: str) -> bool:
    return not is_loss(key)


def _curves(run: Run, windows: Iterable[Row], key: str) -> Iterator[Curve]:
    """Yield a metric of each rank: of rank 0 every row, of the others what their windows have brought."""
    import numpy as np

    own = series_of(run.table, key)
    yield Curve(key, 0, own.steps, own.values)
    parts: dict[int, tuple[list[int], list[float]]] = {}
    for row in windows:
        entry, steps = row["m"]["keys"].get(key), row["m"]["steps"]
        ranks = entry.get("ranks") if isinstance(entry, dict) and row["m"].get("every") else None
        for rank, values in enumerate(ranks if isinstance(ranks, list) else ()):
            if not rank or not isinstance(values, list) or len(values) != len(steps):
                continue
            of_rank = parts.setdefault(rank, ([], []))
            for step, value in zip(steps, values, strict=True):
                if value is None:  # not recorded, which is no NaN
                    continue
                number = decode(value)
                if isinstance(number, (int, float)):
                    of_rank[0].append(step)
                    of_rank[1].append(float(number))
    for rank, (steps, values) in sorted(parts.items()):
        yield Curve(key, rank, np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


# A loss that is lost


def _lost(run: Run, key: str, curves: list[Curve], world: int) -> dict[str, Any] | None:
    """Return where a finite loss became NaN or infinite for the rest of the run, on the rank that was first."""
    onsets = [(float(curve.steps[at]), curve.rank, curve, at) for curve in curves if (at := _onset(curve)) is not None]
    if not onsets:
        return None
    step, rank, curve, at = min(onsets, key=lambda each: each[:2])
    alike = sum(each[0] == step for each in onsets)
    everywhere = world > 1 and alike == world
    value = str(encode(float(curve.values[at])))
    before, last_step = float(curve.values[at - 1]), int(curve.steps[at - 1])
    beside = _beside(run, last_step)
    who = "on every rank at once" if everywhere else f"first on rank {rank}" if world > 1 else ""
    return {
        "kind": "non-finite-loss",
        "key": key,
        "rank": None if everywhere else rank,
        "step": int(step),
        "value": value,
        "before": before,
        "before_step": last_step,
        **({"beside": beside} if beside else {}),
        "ranks": alike,
        "text": f"{key} is {_in_words(value)} from step {int(step)} on{', ' if who else ''}{who}; it was {before:.6g} "
        f"at step {last_step}{_words_beside(beside)}",
    }


def _onset(curve: Curve) -> int | None:
    """Return the place from which on nothing is finite; None where there is none, or it may mean "not measured".

    That is what such a stretch means where there were others before it that ended: the last has to be more than twice
    as long as the longest of them.
    """
    import numpy as np

    bad = ~np.isfinite(curve.values)
    if not len(bad) or not bad[-1]:
        return None
    finite = np.flatnonzero(~bad)
    if not len(finite):
        return None
    start = int(finite[-1]) + 1
    gaps = np.diff(finite, prepend=-1) - 1  # how many are not finite before each that is
    longest = int(gaps.max())
    if longest and len(bad) - start <= 2 * longest:
        return None
    if is_validation(curve.key) and (longest or len(finite) < _FEWEST_CHECKS):
        return None  # measured now and then, and NaN in between
    return start


def _others_go_on(curves: dict[str, list[Curve]], key: str, step: int) -> bool:
    """Tell whether other losses were finite after a step: then this one was no longer measured.

    So it is of two optimizers that take turns. Of weights that are NaN no loss is finite.
    """
    import numpy as np

    return any(
        bool(np.isfinite(curve.values[curve.steps > step]).any())
        for other, of_ranks in curves.items()
        if other != key and not is_validation(other)
        for curve in of_ranks
    )


def _beside(run: Run, step: int) -> dict[str, float]:
    """Return learning rates and norms of gradients as rank 0 has recorded them at a step, finite or not at all."""
    found = {}
    for key, cells in run.table.cells.items():
        if not cells.are_numbers or not (is_learning_rate(key) or " ".join(words_of(key)[-2:]) in _NORMS):
            continue
        series = series_of(run.table, key)
        at = int(series.steps.searchsorted(step, side="right")) - 1
        if at >= 0 and series.steps[at] == step and isfinite(series.values[at]):
            found[key] = float(series.values[at])
    return found


def _words_beside(beside: dict[str, float]) -> str:
    return "".join(f", {name} {number:.6g}" for name, number in beside.items())


_NORMS = {"grad norm", "gradient norm", "gnorm"}


# A loss that rises


def _spike(curves: list[Curve], known: KnownChanges) -> dict[str, Any] | None:
    """Return the highest spike of a loss over all ranks."""
    found = [(curve, spike) for curve in curves if (spike := spike_of(curve, known)) is not None]
    if not found:
        return None
    curve, spike = max(found, key=lambda each: float(each[0].values[each[1].at]) - each[1].median)
    step, value = int(curve.steps[spike.at]), float(curve.values[spike.at])
    back = None if spike.back is None else int(curve.steps[spike.back])
    end = f"back at step {back}" if back is not None else "it has not come back"
    return {
        "kind": "loss-spike",
        "key": curve.key,
        "rank": curve.rank,
        "step": step,
        "value": value,
        "median": spike.median,
        "spread": spike.spread,
        "back": back,
        "text": f"{curve.key} of rank {curve.rank} rose to {value:.6g} at step {step}, from a median of "
        f"{spike.median:.6g} over the {STRETCH} rows before; {end}",
    }


def _rise(run: Run, curves: list[Curve], world: int, known: KnownChanges) -> dict[str, Any] | None:
    """Return where a loss rose for good: on all ranks, or on the one on which it rose most."""
    found = [(curve, rise) for curve in curves if (rise := rise_of(curve, known)) is not None]
    if not found:
        return None
    everywhere = world > 1 and len(found) == world
    curve, rise = found[0] if everywhere else max(found, key=lambda each: each[1].end / each[1].low)
    step, last_step = int(curve.steps[rise.at]), int(curve.steps[-1])
    who = " on every rank" if everywhere else ""
    whose = curve.key if everywhere or world == 1 else f"{curve.key} of rank {curve.rank}"
    end = f"a median of {rise.end:.6g} over the last {rise.rows} rows"
    if rise.is_above_start:
        rose = "diverges" if rise.end > _DIVERGES * rise.start else "rises"
        said = f"{rose}{who} from step {step} on, and ended above its start: {end}, {rise.start:.6g} at the start"
    else:
        said = f"rises{who} from {rise.low:.6g} at step {step}, and has not come back by step {last_step}: {end}"
    effective = ((rate.name, int(rate.steps.searchsorted(step + 1)), rate.values) for rate in _rates(run))
    rates = {name: float(values[at - 1]) for name, at, values in effective if at and isfinite(values[at - 1])}
    return {
        "kind": "loss-rise",
        "key": curve.key,
        "rank": None if everywhere else curve.rank,
        "step": step,
        "value": rise.end,
        "median": rise.low,
        "back": None,
        "last_step": last_step,
        **({"beside": rates} if rates else {}),
        "text": f"{whose} {said}{_words_beside(rates)}",
    }


# A loss that stands still


def _still(curves: list[Curve], world: int) -> dict[str, Any] | None:
    """Return from where on a loss has not changed up to the end, or comes again: on the first rank with that."""
    import numpy as np

    found = []
    for curve in curves:
        values = curve.values
        last = float(values[-1]) if len(values) else 0.0
        if len(values) < _STILL_ROWS or not np.isfinite(last) or last == 0.0:  # nothing is left to be learned
            continue
        others = np.flatnonzero(~(np.abs(values - last) <= _STILL * abs(last)))
        start = int(others[-1]) + 1 if len(others) else 0
        if len(values) - start >= _STILL_ROWS:
            found.append((curve, start, 0))
        elif (again := _comes_again(values)) is not None:
            found.append((curve, *again))
    if not found:
        return None
    curve, start, length = found[0]
    value, step, last_step = float(curve.values[-1]), int(curve.steps[start]), int(curve.steps[-1])
    everywhere = world > 1 and len(found) == world
    who = " on every rank" if everywhere else f" on rank {curve.rank}" if world > 1 else ""
    said = f"has the same values again every {length} rows" if length else f"stands still at {value:.6g}"
    return {
        "kind": "loss-still",
        "key": curve.key,
        "rank": None if everywhere else curve.rank,
        "step": step,
        "value": value,
        "last_step": last_step,
        "text": f"{curve.key} {said} from step {step} to step {last_step}{who}",
    }


def _comes_again(values: Any) -> tuple[int, int] | None:
    """Return from which row on the values come again after some rows, and after how many; None where they do not.

    Of batches in the same order that is what weights which do not change give. Two whole rounds must have come again.
    """
    import numpy as np

    near = _STILL * np.abs(values)
    same = np.flatnonzero(np.abs(values[:-1] - values[-1]) <= near[-1])[-_LENGTHS:]
    for length in (len(values) - 1 - same[::-1]).tolist():
        least = max(_STILL_ROWS, 2 * length)
        if len(values) - length < least:
            return None
        tail = values[-least - length :]
        if not (np.abs(tail[length:] - tail[:-length]) <= near[-least:]).all():
            continue
        other = np.flatnonzero(~(np.abs(values[length:] - values[:-length]) <= near[length:]))
        return (int(other[-1]) + 1 if len(other) else 0), length
    return None


# A learning rate of 0


def _zero_rate(run: Run, curves: dict[str, list[Curve]]) -> dict[str, Any] | None:
    """Return from where on all learning rates are 0 up to the end, although a loss of training is recorded."""
    import numpy as np

    rates = _rates(run)
    key = next((key for key in curves if not is_validation(key)), None)
    if not rates or key is None or any(rate.values[-1] != 0 or _is_rounded(rate.values) for rate in rates):
        return None
    moving = [np.flatnonzero(rate.values) for rate in rates]
    step = max(float(rate.steps[at[-1] + 1 if len(at) else 0]) for rate, at in zip(rates, moving, strict=True))
    loss = curves[key][0]
    values = loss.values[loss.steps >= step]
    values = values[np.isfinite(values)]
    if len(values) < max(_STILL_ROWS, len(loss.values) // _OF_RUN) or _falls(values):
        return None
    return {
        "kind": "zero-lr",
        "key": rates[0].name,
        "rank": None,
        "step": int(step),
        "value": 0.0,
        "last_step": int(loss.steps[-1]),
        "text": f"{rates[0].name} is 0 from step {int(step)} on, and {key} has not fallen in the {len(values)} rows "
        "since",
    }


def _rates(run: Run) -> list[Series]:
    """Return the learning rates that a run has recorded; without any, those that its steps saw an optimizer change."""
    import numpy as np

    recorded = [
        series_of(run.table, key)
        for key, cells in run.table.cells.items()
        if cells.are_numbers and is_learning_rate(key) and cells.count
    ]
    if recorded:
        return recorded
    seen = read_seen(run).settings.items()
    return [Series(name, *np.array(pairs).T) for name, pairs in seen if is_learning_rate(name)]


def _is_rounded(values: Any) -> bool:
    """Tell whether a rate was recorded with so few digits after the point that a small one is 0."""
    import numpy as np

    held = np.unique(np.abs(values[values != 0]))
    if len(held) < _DIGITS or held[-1] > 1000 * held[0]:
        return False
    least = 10.0 ** np.round(np.log10(held[0]))
    return bool(np.allclose(held / least, np.round(held / least), rtol=0, atol=1e-6))


def _falls(values: Any) -> bool:
    """Tell whether a loss falls from its first quarter to its last, beyond its noise."""
    import numpy as np

    quarter = len(values) // 4
    (first, last), spreads = middles(np.stack([values[:quarter], values[-quarter:]]))
    return bool(first - last > max(0.05 * abs(first), 5 * float(spreads.max()) * np.sqrt(2 / quarter)))


def _in_words(value: str) -> str:
    return "infinite" if value.endswith("Infinity") else value
