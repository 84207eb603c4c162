"""What each rank recorded, as a strip of shades over steps, with the slowest rank named.

A record of kind ``ranks`` in the journal holds one window of steps (`ezpz.track.over_ranks.across` writes it):

    {"v":1,"t":T,"step":7,"k":"ranks","m":{"world":2,"every":1,"steps":[4,5,6,7],"keys":{
        "dt":{"mean":[…],…,"ranks":[[0.1,0.1,null,0.1],[0.2,0.2,0.2,"NaN"]]}}}}

``ranks`` has a list for each rank: a value for each step, or with ``"every":0`` one value, its mean over the window.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError, UsageError
from ezpz.track.names import is_throughput, is_time
from ezpz.track.terminal.heat import strip
from ezpz.track.terminal.width import fit, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.records import Row
    from ezpz.track.terminal.textplot import Drawing

__all__ = ["draw_ranks", "rank_keys", "rank_table"]

_MOST_ROWS = 16  # ranks that have a row of their own


def rank_keys(windows: Sequence[Row]) -> list[str]:
    """Return the metrics of which the ranks' own values are known."""
    found: dict[str, None] = {}
    for window in windows:
        keys = window["m"].get("keys")
        found.update(dict.fromkeys(key for key, held in (keys or {}).items() if "ranks" in held))
    return list(found)


def rank_table(windows: Sequence[Row], key: str) -> tuple[Any, Any]:
    """Return one metric of all ranks.

    Args:
        windows: The records over all ranks, in the order of writing.
        key: The metric.

    Returns:
        Steps, a float64 array of shape (n,), ascending, and values, of shape (ranks, n), with NaN where a rank recorded
        nothing. Of a run that was started again, the steps that count.

    Raises:
        TrackError: A record is not as described above.
    """
    import numpy as np

    parts: list[tuple[Any, Any]] = []
    attempt = 1
    for window in windows:
        held = (window["m"].get("keys") or {}).get(key)
        if not held or "ranks" not in held:
            continue
        try:
            steps = np.array(window["m"]["steps"], dtype=np.float64)
            # null becomes NaN, and "NaN" or "Infinity" are read as numbers are.
            values = np.array(held["ranks"], dtype=np.float64)
            steps = steps if values.shape[1] == len(steps) else steps[-1:]
            values = values[:, : len(steps)]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise TrackError(
                f"cannot read {key!r} of all ranks at step {window['step']} (from the journal): {error}; expected a list "
                "of numbers for each rank. Another version of ezpz may have written it."
            ) from error
        if window["a"] != attempt:  # it goes on from a checkpoint: what was recorded beyond that was overtaken
            attempt = window["a"]
            parts = [(s[s < steps[0]], v[:, s < steps[0]]) for s, v in parts]
        parts.append((steps, values))
    if not parts:
        return np.zeros(0), np.zeros((0, 0))
    world = max(len(values) for _, values in parts)
    filled = [np.pad(v, ((0, world - len(v)), (0, 0)), constant_values=np.nan) for _, v in parts]
    return np.concatenate([steps for steps, _ in parts]), np.concatenate(filled, axis=1)


def draw_ranks(windows: Sequence[Row], key: str, how: Drawing, *, since: float = -inf) -> list[str]:
    """Draw one metric of all ranks: a row for each rank, or for equally many neighbours where there are more than 16.

    Args:
        windows: The records over all ranks.
        key: The metric.
        how: Width and characters.
        since: Draw only steps from this one on.

    Returns:
        Lines that take ``how.width`` columns each.

    Raises:
        UsageError: No such metric was gathered over ranks.
        TrackError: As `rank_table`.
    """
    steps, values = rank_table(windows, key)
    if not values.size:
        known = ", ".join(rank_keys(windows)) or "none: they come from runs of two or more ranks"
        raise UsageError(
            f"no {key!r} of all ranks (from the command line); expected one of those that were gathered: {known}."
        )
    steps, values = steps[steps >= since], values[:, steps >= since]
    size = -(-len(values) // _MOST_ROWS)
    low = is_throughput(key)
    labels, cells = _grouped(values, size, low=low)
    title = (
        f"{key} by rank over steps"
        if size == 1
        else f"{key} by {size} ranks over steps, the {'lowest' if low else 'highest'} of them"
    )
    lines = strip(title, labels, cells, steps, how)
    return [*lines, *(fit(line, how.width) for line in wrapped(_slowest(key, values).split(" "), how.width))]


def _grouped(values: Any, size: int, *, low: bool) -> tuple[list[str], Any]:
    """Return labels and rows; of several ranks in a row the one that stands out counts, for a mean would hide it."""
    import numpy as np

    ranks = len(values)
    if size == 1:
        return [str(rank) for rank in range(ranks)], values
    starts = list(range(0, ranks, size))
    pick = np.fmin if low else np.fmax
    ends = [min(start + size, ranks) - 1 for start in starts]
    labels = [f"{start}-{end}" if start < end else str(end) for start, end in zip(starts, ends, strict=True)]
    return labels, pick.reduceat(values, starts, axis=0)


def _slowest(key: str, values: Any) -> str:
    import numpy as np

    held = np.isfinite(values)
    counts = held.sum(axis=1)
    if not counts.any():
        return "no rank recorded a finite value"
    means = np.where(counts > 0, np.where(held, values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
    low = is_throughput(key)
    rank = int(np.nanargmin(means) if low else np.nanargmax(means))
    middle = float(np.nanmedian(means))
    word = "slowest" if low or is_time(key) else "highest"
    share = f", {means[rank] / middle:.3g} times the median of {len(means)} ranks" if middle > 0 else ""
    return f"{word}: rank {rank}, mean {means[rank]:.6g}{share}"
