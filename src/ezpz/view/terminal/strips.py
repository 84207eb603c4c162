"""Draw a table of numbers as shades of grey: rows are ranks or ranges of values, columns are steps.

     dt by rank
0-3 ┤  ░ ░   ░  ░ │
4-7 ┤░ ░██▓██▓███ │
    └─────────────┘
     0    50    99
" ░▒▓█" 0.0101 to 0.0142
"""

from __future__ import annotations

from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.track.by_rank import Matrix, lacking, matrix, rank_keys, slowest, whole_step
from ezpz.track.distribution import Histogram
from ezpz.track.names import is_throughput, is_time
from ezpz.track.series import Series, limits, stretch_means
from ezpz.view.terminal.width import centered, cleaned, columns, fit, to_ascii, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.journal_reader import Row
    from ezpz.track.table import Table
    from ezpz.view.terminal.textplot import Drawing

_SHADES, _ASCII = " ░▒▓█", " .:*#"
_HOLE = "?"  # nothing finite was recorded here


def strip(title: str, labels: Sequence[str], cells: Any, steps: Any, how: Drawing, *, whole: bool = False) -> list[str]:
    """Draw a table.

    Args:
        title: The line above it.
        labels: One for each row.
        cells: float64 array of shape (rows, columns); NaN where nothing was recorded.
        steps: float64 array of shape (columns,), ascending.
        how: Width and characters; the height is that of the table.
        whole: Let the lightest shade be 0, and leave no value out of the scale.

    Returns:
        Lines that take ``how.width`` columns each: title, rows, steps, and the scale. Columns that have no room of
        their own show the mean of their neighbours.
    """
    import numpy as np

    shades = _ASCII if how.ascii_only else _SHADES
    side = max(map(columns, labels))
    room = how.width - side - 2
    shown, steps = _squeezed(cells, steps, room)
    finite = shown[np.isfinite(shown)]
    span = _span(finite, whole=whole)
    if not finite.size:
        places = np.zeros(shown.shape, dtype=int)
    elif span[0] == span[1]:
        places = np.full(shown.shape, 2)
    else:
        shares = (shown / 2 - span[0] / 2) / (span[1] / 2 - span[0] / 2)
        places = np.where(np.isfinite(shown), shares.clip(0, 1) * len(shades), 0).astype(int).clip(0, len(shades) - 1)
    widths = np.diff(np.arange(shown.shape[1] + 1) * room // max(1, shown.shape[1])).tolist()
    lines = []
    for label, row, holes in zip(labels, places.tolist(), (~np.isfinite(shown)).tolist(), strict=True):
        drawn = "".join(
            (_HOLE if hole else shades[place]) * n for place, hole, n in zip(row, holes, widths, strict=True)
        )
        lines.append(f"{' ' * (side - columns(label))}{label}┤{drawn}│")
    lines += [f"{' ' * side}└{'─' * room}┘", f"{' ' * side} {_ruler(steps, room)}"]
    scale = f'"{shades}" {span[0]:.6g} to {span[1]:.6g}' if finite.size else "nothing finite was recorded"
    holes_note = f', "{_HOLE}" nothing' if finite.size and finite.size < shown.size else ""
    lines += wrapped([*(scale + holes_note).rsplit(" ", 4)], how.width)
    if how.ascii_only:
        lines = [to_ascii(line) for line in lines]
    return [fit(line, how.width) for line in (centered(cleaned(title, ascii_only=how.ascii_only), how.width), *lines)]


def _span(finite: Any, *, whole: bool) -> tuple[float, float]:
    import numpy as np

    if not finite.size:
        return 0.0, 0.0
    if whole:
        return 0.0, float(finite.max())
    ends = limits(Series("", np.zeros(finite.size), finite))
    return ends or (0.0, 0.0)


def _squeezed(cells: Any, steps: Any, room: int) -> tuple[Any, Any]:
    """Return at most ``room`` columns, each the mean of what is finite in equally many neighbours."""
    import numpy as np

    number = cells.shape[1]
    if number <= room:
        return cells, steps
    starts = np.arange(room) * number // room
    return stretch_means(cells, starts), steps[np.append(starts[:-1], number - 1)]


def _ruler(steps: Any, room: int) -> str:
    """Return the first and the last step at their ends, and the middle one where it has room."""
    if not len(steps):
        return ""
    first, middle, last = (f"{steps[place]:.0f}" for place in (0, len(steps) // 2, -1))
    if len(steps) == 1:
        return first[:room]
    line = first + last.rjust(room - len(first)) if len(first) + len(last) < room else first[:room]
    start = (room - len(middle)) // 2
    if len(steps) > 2 and line[start - 1 : start + len(middle) + 1].isspace():
        line = line[:start] + middle + line[start + len(middle) :]
    return line


_MOST_RANKS = 16  # ranks that have a row of their own


def draw_ranks(windows: Sequence[Row], key: str, how: Drawing, *, since: float = -inf) -> list[str]:
    """Draw one metric of all ranks: a row for each rank, or for equally many neighbours where there are more than 16.

    Args:
        windows: The records over all ranks, from `ezpz.track.by_rank.counting_windows`.
        key: The metric.
        how: Width and characters.
        since: Draw only steps from this one on.

    Returns:
        Lines that take ``how.width`` columns each.

    Raises:
        UsageError: No such metric was gathered over ranks.
        TrackError: As `ezpz.track.by_rank.rank_values`.
    """
    known = named_matrix(windows, key)
    steps, values = known.steps[known.steps >= since], known.values[:, known.steps >= since]
    size = -(-len(values) // _MOST_RANKS)
    low = is_throughput(key)
    labels, cells = _grouped(values, size, low=low)
    title = (
        f"{key} by rank over steps"
        if size == 1
        else f"{key} by {size} ranks over steps, the {'lowest' if low else 'highest'} of them"
    )
    lines = strip(title, labels, cells, steps, how)
    short = lacking(windows)
    words = f"{_extreme(Matrix(key, steps, values), whole_step(windows))}{short and f'; {short}'}"
    return [*lines, *(fit(line, how.width) for line in wrapped(words.split(" "), how.width))]


def named_matrix(windows: Sequence[Row], key: str) -> Matrix:
    """Return the matrix of a metric that the user has named.

    Raises:
        UsageError: No such metric was gathered over ranks; the message names those that were.
        TrackError: As `ezpz.track.by_rank.rank_values`.
    """
    known = matrix(windows, key)
    if known is None:
        others = ", ".join(rank_keys(windows)) or "none: they come from runs of two or more ranks"
        raise UsageError(
            f"no {key!r} of all ranks (from the command line); expected one of those that were gathered: {others}."
        )
    return known


def _grouped(values: Any, size: int, *, low: bool) -> tuple[list[str], Any]:
    """Return labels and rows; of several ranks in a row the extreme one counts, for a mean would hide it."""
    import numpy as np

    ranks = len(values)
    if size == 1:
        return [str(rank) for rank in range(ranks)], values
    starts = list(range(0, ranks, size))
    pick = np.fmin if low else np.fmax
    ends = [min(start + size, ranks) - 1 for start in starts]
    labels = [f"{start}-{end}" if start < end else str(end) for start, end in zip(starts, ends, strict=True)]
    return labels, pick.reduceat(values, starts, axis=0)


def _extreme(known: Matrix, whole: Matrix | None) -> str:
    """Return in words which rank is the slowest, if one is; of what is no time and no throughput, which is highest."""
    import numpy as np

    held = np.isfinite(known.values)
    counts = held.sum(axis=1)
    if not counts.any():
        return "no rank recorded a finite value"
    means = np.where(counts > 0, np.where(held, known.values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
    if not (is_throughput(known.name) or is_time(known.name)):
        rank = int(np.nanargmax(means))
        return f"highest: rank {rank}, mean {means[rank]:.6g}; median of {len(means)} ranks: {np.nanmedian(means):.6g}"
    found = slowest(known, whole)
    if found is None:
        ends = (f"{means[rank]:.6g} (rank {rank})" for rank in (int(np.nanargmin(means)), int(np.nanargmax(means))))
        return f"no rank stands out: mean {' to '.join(ends)}"
    return f"slowest: rank {found.rank}, median {found.value:.6g}, {found.times:.3g} times {found.others}"


_MOST_RANGES = 12  # rows of a strip of histograms


def histogram_keys(table: Table) -> list[str]:
    """Return the metrics all of whose values are histograms."""
    return [key for key, cells in table.cells.items() if cells.kinds == {Histogram}]


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
    pairs = list(zip(cells.pick(table.step_array).tolist(), cells.values, strict=True))
    pairs = sorted((pair for pair in pairs if pair[0] >= since), key=itemgetter(0))
    if not pairs:
        return [centered(f"{cleaned(key, ascii_only=how.ascii_only)}: nothing from step {since:.0f} on", how.width)]
    steps = np.array([step for step, _ in pairs], dtype=np.float64)
    held: list[Any] = [value for _, value in pairs]
    low, high = min(float(one.edges[0]) for one in held), max(float(one.edges[-1]) for one in held)
    rows = min(_MOST_RANGES, max(len(one.counts) for one in held))
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
