"""Record a distribution as a metric: counts in bins, never the values themselves."""

from __future__ import annotations

from itertools import pairwise

from ezpz.errors import TrackError
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_BINS = 512


class Histogram(Record):
    """How many values lie between each two edges.

    Attributes:
        counts: One number for each bin; whole, or weighted.
        edges: One more number than bins, ascending and finite.
    """

    counts: list[int] | list[float]
    edges: list[float]


def histogram(
    values: Any,
    bins: int = 64,
    range: tuple[float, float] | None = None,  # noqa: A002  # numpy's own name for it
) -> Histogram:
    """Count values into bins, for `History.update({"grad/hist": ezpz.track.histogram(gradient)})`.

    Args:
        values: A tensor, array or list of any shape; a tensor is copied to the host, so count every so many steps only.
        bins: How many bins of equal width, 1 to 512.
        range: Lowest and highest edge; by default those of the finite values. With a range of its own each histogram of
            a run has the same edges, and the export holds them once.

    Returns:
        The counts of finite values inside the range.

    Raises:
        TrackError: The number of bins or the range is none.
    """
    import numpy as np

    if hasattr(values, "detach"):
        values = values.detach()
        values = (values.float() if values.is_floating_point() else values).cpu().numpy()  # numpy has no bfloat16
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    good = type(bins) is int and 1 <= bins <= MOST_BINS
    if not good or (range is not None and not range[0] < range[1]):
        raise TrackError(
            f"cannot count into {bins!r} bins of the range {range!r} (from histogram); expected 1 to {MOST_BINS} bins, "
            "and a lower edge below the higher one."
        )
    counts, edges = np.histogram(finite, bins=bins, range=range)
    return Histogram(counts.tolist(), edges.tolist())


def as_histogram(value: object) -> Histogram | None:
    """Return a `Histogram`, also of an object with ``histogram`` and ``bins`` (wandb's); None for others."""
    if not isinstance(value, Histogram):
        counts, edges = getattr(value, "histogram", None), getattr(value, "bins", None)
        if counts is None or edges is None or callable(counts):
            return None
        value = Histogram(list(counts), list(edges))
    counts, edges = _numbers(value.counts), _numbers(value.edges)
    ascending = all(low <= high for low, high in pairwise(edges))
    if len(edges) != len(counts) + 1 or not 1 <= len(counts) <= MOST_BINS or not ascending:
        raise ValueError(
            f"{len(counts)} counts and {len(edges)} edges; expected 1 to {MOST_BINS} and one more, ascending"
        )
    return Histogram(counts, [float(edge) for edge in edges])


def _numbers(values: Sequence[Any]) -> list[Any]:
    numbers = [item.item() if hasattr(item, "item") else item for item in values]
    if not all(isinstance(item, (int, float)) and item - item == 0 for item in numbers):
        raise ValueError("counts and edges must be finite numbers")
    return numbers
