"""Histograms as text: over steps as a strip of shades, one alone as bars."""

from __future__ import annotations

from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ezpz.track.terminal.heat import strip
from ezpz.track.terminal.width import centered, cleaned, fit, to_ascii

if TYPE_CHECKING:
    from ezpz.track.table import Table
    from ezpz.track.terminal.textplot import Drawing

__all__ = ["draw_histograms", "histogram_keys"]

_MOST_ROWS = 12


def histogram_keys(table: Table) -> list[str]:
    """Return the metrics all of whose values are histograms, told by their ``counts`` and ``edges``."""
    return [key for key, cells in table.cells.items() if cells.values and all(map(_is_one, cells.values))]


def _is_one(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "counts") and hasattr(value, "edges")


def draw_histograms(table: Table, key: str, how: Drawing, *, since: float = -inf) -> list[str]:
    """Draw one metric of histograms.

    Args:
        table: A run's rows.
        key: The metric, one of `histogram_keys`.
        how: Width and characters.
        since: Draw only steps from this one on.

    Returns:
        Lines that take ``how.width`` columns each: of several histograms a row for each range of values, with the share
        of values in it at each step; of one alone a bar for each range.
    """
    import numpy as np

    cells = table.cells[key]
    pairs = [(table.steps[index], value) for index, value in zip(cells.index, cells.values, strict=True)]
    pairs = sorted((pair for pair in pairs if pair[0] >= since), key=itemgetter(0))
    if not pairs:
        return [centered(f"{cleaned(key, ascii_only=how.ascii_only)}: nothing from step {since:.0f} on", how.width)]
    steps = np.array([step for step, _ in pairs], dtype=np.float64)
    held: list[Any] = [value for _, value in pairs]
    low, high = min(float(one.edges[0]) for one in held), max(float(one.edges[-1]) for one in held)
    rows = min(_MOST_ROWS, max(len(one.counts) for one in held))
    edges = np.linspace(low, high, rows + 1)
    shares = np.array([_shares(one, edges) for one in held]).T[::-1]
    labels = [f"{edge:.3g}" for edge in edges[:-1][::-1]]
    if len(held) > 1:
        return strip(f"{key}: share of values", labels, shares, steps, how, whole=True)
    return _bars(f"{key} at step {steps[0]:.0f}: share of values", labels, shares[:, 0], how)


def _shares(one: Any, edges: Any) -> Any:
    """Return which share of a histogram lies between other edges, as if values were spread evenly inside a bin."""
    import numpy as np

    counts = np.array(one.counts, dtype=np.float64)
    total = counts.sum()
    if not total > 0:
        return np.full(len(edges) - 1, np.nan)
    return np.diff(np.interp(edges, np.array(one.edges, dtype=np.float64), np.append(0.0, counts.cumsum()))) / total


def _bars(title: str, labels: list[str], shares: Any, how: Drawing) -> list[str]:
    import numpy as np

    side = max(map(len, labels))
    numbers = [f" {100 * share:.3g}%" for share in shares]
    room = max(1, how.width - side - 1 - max(map(len, numbers)))
    largest = float(np.nan_to_num(shares).max()) or 1.0
    lines = [centered(cleaned(title, ascii_only=how.ascii_only), how.width)]
    for label, share, number in zip(labels, np.nan_to_num(shares), numbers, strict=True):
        line = f"{label.rjust(side)}┤{('#' if how.ascii_only else '█') * round(room * share / largest)}{number}"
        lines.append(fit(to_ascii(line) if how.ascii_only else line, how.width))
    return lines
