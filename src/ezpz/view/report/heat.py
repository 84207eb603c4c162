"""Draw the map of rank by step, in which a slow rank is a stripe.

The picture is a gray PNG that serves as a mask: the style sheet says which colour shines through it, in either theme.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

from ezpz.quantities import duration, number
from ezpz.track.by_rank import Matrix, slowest, typical_of_rank
from ezpz.track.names import unit
from ezpz.track.series import Series, stretch_means
from ezpz.view.report.markup import Chart
from ezpz.view.report.svg import Frame, axis_x, marks, place
from ezpz.view.report.thinned_lines import bounds, deltas, rounded

if TYPE_CHECKING:
    from ezpz.view.report.charts import Axis

_ROWS, _CELLS = 128, 12_000  # at most; more ranks share a row, more steps a column
_ROOM = 52  # pixels below the plot: the axis and the scale


def heat_chart(matrix: Matrix, axis: Axis, whole: Matrix | None = None) -> Chart:
    """Return the map of one metric with its scale, and who is slowest in words.

    Args:
        matrix: The metric.
        axis: The axis of steps.
        whole: The time of whole steps; None where it was not recorded.
    """
    ranks = len(matrix.values)
    grid, steps, each, together = _reduced(matrix)
    height = max(90, min(320, 22 * len(grid)))
    frame = Frame(1180, height + _ROOM + 8, bottom=_ROOM)
    flat = Series("", steps, grid.ravel())
    low, high = bounds([flat]) or (0.0, 1.0)
    notes = [_slowest(matrix, whole)]
    if each > 1:
        notes.append(f"each cell is the mean of {each} steps")
    if together > 1:
        notes.append(f"each row is the largest of {together} ranks")
    if (grid > high).any():
        notes.append(
            f"the colours end at {number(high)}, the largest value is {number(float(grid[grid > high].max()))}"
        )
    svg = _cells(frame, axis, steps, grid, (low, high)) + _rows(frame, ranks, len(grid))
    svg += axis_x(frame, axis.ends) + marks(frame, axis.ends, axis.restarts) + _scale(frame, low, high)
    data: dict[str, object] = {
        "kind": "heat",
        "title": matrix.name,
        "box": frame.box,
        "x": list(axis.ends),
        "steps": deltas(steps),
        "together": together,
        "lines": [{"name": f"rank {row * together}", "y": rounded(values)} for row, values in enumerate(grid)],
    }
    title = f"{matrix.name} by rank"
    return Chart(title, f"{title}: {notes[0]}", svg, (frame.width, frame.height), data, [], notes, wide=True)


def _reduced(matrix: Matrix) -> tuple[Any, Any, int, int]:
    """Return a grid that a page can hold, its columns' steps, and how many steps and ranks each cell shows."""
    import numpy as np

    values, steps = matrix.values, matrix.steps
    together = -(-len(values) // _ROWS)
    rows = -(-len(values) // together)
    columns = min(160, _CELLS // rows)
    each = -(-len(steps) // columns)
    starts = np.arange(0, len(steps), each)
    grid = np.fmax.reduceat(stretch_means(values, starts), np.arange(0, len(values), together), axis=0)
    return grid, np.round(stretch_means(steps, starts)), each, together


def _cells(frame: Frame, axis: Axis, steps: Any, grid: Any, ends: tuple[float, float]) -> str:
    """Return the grid as two rectangles behind masks: the pale ground where something is known, and the heat on it."""
    import numpy as np

    width, height = frame.inside
    half = float(np.median(np.diff(steps))) / 2 if len(steps) > 1 else (axis.ends[1] - axis.ends[0]) / 2
    edges = np.clip(place([steps[0] - half, steps[-1] + half], axis.ends, width), 0, width)
    level = place(np.nan_to_num(grid, nan=ends[0]), ends, 255.0)
    known = np.isfinite(grid)
    area = f'x="{frame.left + edges[0]:.1f}" y="{frame.top}" width="{edges[1] - edges[0]:.1f}" height="{height}"'
    parts = []
    for name, pixels in (("heat-low", known * 255.0), ("heat-high", known * np.clip(level, 0, 255))):
        image = base64.b64encode(gray_png(pixels.astype(np.uint8))).decode()
        parts.append(
            f'<mask id="{name}" maskUnits="userSpaceOnUse" {area}><image {area} preserveAspectRatio="none" '
            f'href="data:image/png;base64,{image}"/></mask><rect class="{name}" {area} mask="url(#{name})"/>'
        )
    return "".join(parts)


def gray_png(pixels: Any) -> bytes:
    """Return a uint8 array of shape (rows, columns) as PNG (ISO/IEC 15948): 8 bits of gray, no filter."""
    rows, columns = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _rows(frame: Frame, ranks: int, rows: int) -> str:
    """Return the numbers of ranks beside their rows, as many as there is room for."""
    _, height = frame.inside
    every = -(-rows * 16 // height)
    labels = "".join(
        f'<text x="{frame.left - 8}" y="{frame.top + (row + 0.5) * height / rows + 4:.1f}" text-anchor="end">'
        f"{row * -(-ranks // rows)}</text>"
        for row in range(0, rows, every)
    )
    middle = frame.top + height / 2
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    return f'{labels}<text x="14" y="{middle:.0f}" text-anchor="middle" {turned}>rank</text>'


def _scale(frame: Frame, low: float, high: float) -> str:
    """Return the key to the colours, below the axis."""
    top, left, width = frame.height - 12, frame.left + 70, 160
    steps = 16
    bars = "".join(
        f'<rect class="heat-high" x="{left + width * index / steps:.1f}" y="{top}" width="{width / steps + 0.3:.1f}" '
        f'height="10" fill-opacity="{index / (steps - 1):.2f}"/>'
        for index in range(steps)
    )
    return (
        f'<rect class="heat-low" x="{left}" y="{top}" width="{width}" height="10"/>{bars}'
        f'<text x="{left - 8}" y="{top + 9}" text-anchor="end">{number(low)}</text>'
        f'<text x="{left + width + 8}" y="{top + 9}">{number(high)}</text>'
    )


def _slowest(matrix: Matrix, whole: Matrix | None) -> str:
    import numpy as np

    typical = typical_of_rank(matrix)
    middle = float(np.median(typical))
    if len(typical) < 2:
        return f"one rank, {_time(matrix, middle)} in the median"
    found = slowest(matrix, whole)
    if found is None:
        return f"no rank stands out: {_time(matrix, middle)} in the median of ranks"
    return f"rank {found.rank} is the slowest: {_time(matrix, found.value)}, {found.times:.2f} x {found.others}"


def _time(matrix: Matrix, value: float) -> str:
    return duration(value) if unit(matrix.name) == "s" else f"{number(value)} {unit(matrix.name)}".rstrip()
