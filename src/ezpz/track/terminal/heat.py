"""A table of numbers as shades of grey: rows are ranks or ranges of values, columns are steps.

     dt by rank
0-3 ┤  ░ ░   ░  ░ │
4-7 ┤░ ░██▓██▓███ │
    └─────────────┘
     0    50    99
" ░▒▓█" 0.0101 to 0.0142
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.track.series import Series, limits
from ezpz.track.terminal.width import centered, cleaned, columns, fit, to_ascii, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.terminal.textplot import Drawing

__all__ = ["strip"]

_SHADES, _ASCII = " ░▒▓█", " .:*#"
_HOLE = "?"  # nothing finite was recorded here


def strip(title: str, labels: Sequence[str], cells: Any, steps: Any, how: Drawing, *, whole: bool = False) -> list[str]:
    """Draw a table.

    Args:
        title: What stands above it.
        labels: One for each row.
        cells: float64 array of shape (rows, columns); NaN where nothing was recorded.
        steps: float64 array of shape (columns,), ascending.
        how: Width and characters; the height is that of the table.
        whole: Let the lightest shade be 0, and leave no value out of the scale.

    Returns:
        Lines that take ``how.width`` columns each: title, rows, steps, and the scale. Columns that have no room of their
        own show the mean of their neighbours.
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
    found = limits(Series("", np.zeros(finite.size), finite))
    return found or (0.0, 0.0)


def _squeezed(cells: Any, steps: Any, room: int) -> tuple[Any, Any]:
    """Return at most ``room`` columns, each the mean of what is finite in equally many neighbours."""
    import numpy as np

    number = cells.shape[1]
    if number <= room:
        return cells, steps
    starts = np.arange(room) * number // room
    held = np.isfinite(cells)
    counts = np.add.reduceat(held.astype(np.int64), starts, axis=1)
    sums = np.add.reduceat(np.where(held, cells, 0.0), starts, axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), steps[np.append(starts[:-1], number - 1)]


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
