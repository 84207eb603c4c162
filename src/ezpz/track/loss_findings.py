"""Find what stands out in a run's losses: one that became NaN for good, a spike, one that stands still.

The end of a run writes what is found into ``run.json`` (``findings``), where ``ezpz why``, ``ezpz runs`` and the report
read it. The journal's columns are read once for that, after the last step: recording a row costs nothing more.

Nothing here guesses. A NaN that is followed by numbers means "not measured", or a step that a gradient scaler skipped;
a spike has to be far outside of what the steps before it did, and large beside all that was learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.by_rank import counting_windows
from ezpz.track.identical_batches import batch_findings
from ezpz.track.names import is_learning_rate, is_loss, is_loss_term, is_validation, words_of
from ezpz.track.replica_findings import weight_findings
from ezpz.track.series import series_of
from ezpz.track.values import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ezpz.track.at_end import End
    from ezpz.track.journal_reader import Row
    from ezpz.track.run_reader import Run

__all__ = ["curve_findings", "note_findings"]

_STRETCH = 25  # rows whose median and spread a row is compared with: those of the stretch before its own
_SPREADS = 12.0  # standard deviations, as the median absolute deviation tells them
_TO_SIGMA = 1.4826  # of a normal distribution: standard deviations in a median absolute deviation
_OF_PROGRESS = 0.25  # of the way from the first losses to those before the spike
_STILL_ROWS = 50
_STILL = 1e-6  # of the loss: what rounding alone does to one that is computed from the same batch and weights
_FEWEST_CHECKS = 3  # of a loss of validation, before a NaN of it means anything


class _Curve(NamedTuple):
    """One loss of one rank: float64 arrays of the steps at which it was recorded, and of its values."""

    key: str
    rank: int
    steps: Any
    values: Any


def curve_findings(run: Run) -> list[dict[str, Any]]:
    """Return what stands out in losses, batches and weights of all ranks, at most one finding of each kind and metric.

    Args:
        run: The run; its rows are read if they have not been.

    Returns:
        Objects as ``findings`` of ``run.json`` has them (docs/why.md): ``kind`` (``non-finite-loss``, ``loss-spike``,
        ``loss-still``; ``same-batches`` of `ezpz.track.identical_batches`, ``weights-differ`` of
        `ezpz.track.replica_findings`), ``key``, ``rank`` (None where all ranks
        have it alike), ``step``, ``value``, and ``text`` for
        people, in the order of steps. Values that are not finite are text, as in the journal.
    """
    keys = [key for key, cells in run.table.cells.items() if cells.are_numbers and _is_curve(key)]
    of_ranks_together = [*batch_findings(run), *weight_findings(run)]
    if not keys:
        return of_ranks_together
    windows = counting_windows(run)
    world = max((int(row["m"].get("world") or 1) for row in windows), default=1)
    curves = {key: list(_curves(run, windows, key)) for key in keys}
    found = []
    for key, of_ranks in curves.items():
        lost = _lost(run, key, of_ranks, world)
        if lost and not (_is_term(key) and _others_go_on(curves, key, lost["step"])):
            found.append(lost)
        if not is_validation(key):
            found += [each for each in (_spike(of_ranks), _still(of_ranks, world)) if each]
    return sorted([*found, *of_ranks_together], key=lambda each: each["step"])


def note_findings(end: End) -> None:
    """Note in ``run.json`` what stands out in the losses."""
    if end.rows is not None:
        end.facts["findings"] = curve_findings(end.rows)


def _is_curve(key: str) -> bool:
    return (is_loss(key) or is_loss_term(key)) and "loss" in words_of(key)


def _is_term(key: str) -> bool:
    return not is_loss(key)


def _curves(run: Run, windows: Iterable[Row], key: str) -> Iterator[_Curve]:
    """Yield a metric of each rank: of rank 0 every row, of the others what their windows have brought."""
    import numpy as np

    own = series_of(run.table, key)
    yield _Curve(key, 0, own.steps, own.values)
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
        yield _Curve(key, rank, np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


# A loss that is lost


def _lost(run: Run, key: str, curves: list[_Curve], world: int) -> dict[str, Any] | None:
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
    notes = "".join(f", {name} {number:.6g}" for name, number in beside.items())
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
        f"at step {last_step}{notes}",
    }


def _onset(curve: _Curve) -> int | None:
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


def _others_go_on(curves: dict[str, list[_Curve]], key: str, step: int) -> bool:
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
    from math import isfinite

    found = {}
    for key, cells in run.table.cells.items():
        if not cells.are_numbers or not (is_learning_rate(key) or " ".join(words_of(key)[-2:]) in _NORMS):
            continue
        series = series_of(run.table, key)
        at = int(series.steps.searchsorted(step, side="right")) - 1
        if at >= 0 and series.steps[at] == step and isfinite(series.values[at]):
            found[key] = float(series.values[at])
    return found


_NORMS = {"grad norm", "gradient norm", "gnorm"}


# A spike


def _spike(curves: list[_Curve]) -> dict[str, Any] | None:
    """Return the highest spike of a loss over all ranks."""
    found = [spike for curve in curves if (spike := _spike_of(curve)) is not None]
    if not found:
        return None
    return max(found, key=lambda each: each["value"] - each["median"])


def _spike_of(curve: _Curve) -> dict[str, Any] | None:
    """Return the highest spike of one rank.

    Every row is compared with median and median absolute deviation of the stretch of rows before its own. It has to be
    above twice that median too, and to have lost a quarter of what was learned: near 0 losses are noisy.
    """
    import numpy as np

    rows = len(curve.values) // _STRETCH * _STRETCH
    if rows < len(curve.values):
        rows += _STRETCH
    if rows < 2 * _STRETCH:
        return None
    padded = np.full(rows, np.nan)
    padded[: len(curve.values)] = np.where(np.isfinite(curve.values), curve.values, np.nan)
    grid = padded.reshape(-1, _STRETCH)
    whole = np.isfinite(grid).all(axis=1)
    medians = np.median(grid, axis=1)
    spreads = _TO_SIGMA * np.median(np.abs(grid - medians[:, None]), axis=1)
    if not whole[0]:
        return None
    median, spread = medians[:-1, None], spreads[:-1, None]
    jump = grid[1:] - median
    lowest = np.minimum.accumulate(np.where(whole, medians, np.inf))[:-1, None]
    with np.errstate(invalid="ignore"):
        is_spike = (
            whole[:-1, None]
            & (jump > _SPREADS * spread)
            & (jump > np.abs(median))
            & (jump > _OF_PROGRESS * (medians[0] - lowest))
        )
    if not is_spike.any():
        return None
    jumps = np.where(is_spike, jump, -np.inf).ravel()
    at = int(jumps.argmax()) + _STRETCH
    usual = float(medians[at // _STRETCH - 1])
    limit = usual + max(_SPREADS * float(spreads[at // _STRETCH - 1]), abs(usual))
    later = np.flatnonzero(curve.values[at:] <= limit)
    back = int(curve.steps[at + int(later[0])]) if len(later) else None
    step, value = int(curve.steps[at]), float(curve.values[at])
    end = f"back at step {back}" if back is not None else "it has not come back"
    return {
        "kind": "loss-spike",
        "key": curve.key,
        "rank": curve.rank,
        "step": step,
        "value": value,
        "median": usual,
        "spread": float(spreads[at // _STRETCH - 1]),
        "back": back,
        "text": f"{curve.key} of rank {curve.rank} rose to {value:.6g} at step {step}, from a median of {usual:.6g} "
        f"over the {_STRETCH} rows before; {end}",
    }


# A loss that stands still


def _still(curves: list[_Curve], world: int) -> dict[str, Any] | None:
    """Return from where on a loss has not changed up to the end: on the first rank with that."""
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
            found.append((curve, start, last))
    if not found:
        return None
    curve, start, value = found[0]
    step, last_step = int(curve.steps[start]), int(curve.steps[-1])
    everywhere = world > 1 and len(found) == world
    who = " on every rank" if everywhere else f" on rank {curve.rank}" if world > 1 else ""
    return {
        "kind": "loss-still",
        "key": curve.key,
        "rank": None if everywhere else curve.rank,
        "step": step,
        "value": value,
        "last_step": last_step,
        "text": f"{curve.key} stands still at {value:.6g} from step {step} to step {last_step}{who}",
    }


def _in_words(value: str) -> str:
    return "infinite" if value.endswith("Infinity") else value
