"""The map of rank by step as PNG and SVG, in which a slow rank is a stripe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.track.pictures import own_style, save_both
from ezpz.track.series import Series, limits

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["save_heat_map"]

_COLUMNS = 1000  # pixels; more steps than that share a column
_TEXT, _QUIET = "#222222", "#6b6b6b"
_GAP = "#d9d9d9"


def save_heat_map(png: Path, svg: Path, name: str, steps: Any, values: Any) -> None:
    """Draw one metric of all ranks over the steps and write it twice.

    Args:
        png: File for 1350 x 600 pixels.
        svg: File for the same figure; the map itself is an image in it.
        name: The metric's own name.
        steps: float64 array of shape (steps,), ascending, at least one.
        values: float64 array of shape (ranks, steps), NaN where a rank recorded nothing.

    Raises:
        OSError: A file cannot be written.
    """
    with own_style():
        save_both(png, svg, _draw(name, steps, values))


def _draw(name: str, steps: Any, values: Any) -> Any:
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9.0, 4.0), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    grid = _columns(np.where(np.isfinite(values), values, np.nan))
    low, high = limits(Series(name, np.arange(grid.size), grid.ravel())) or (0.0, 1.0)
    colours = colormaps["magma_r"].with_extremes(bad=_GAP)
    half = (steps[-1] - steps[0]) / max(1, 2 * (len(steps) - 1)) or 0.5
    extent = (steps[0] - half, steps[-1] + half, len(values) - 0.5, -0.5)
    image = axes.imshow(
        grid, aspect="auto", interpolation="nearest", extent=extent, cmap=colours, vmin=low, vmax=max(high, low)
    )
    bar = figure.colorbar(image, ax=axes, pad=0.015, extend="max" if (grid > high).any() else "neither")
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    for each in (axes, bar.ax):
        each.tick_params(colors=_QUIET, labelcolor=_TEXT, length=3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 4, 8, 10], integer=True))
    axes.set_title(f"{name} by rank", loc="left", color=_TEXT, fontsize=12, fontweight="bold", parse_math=False)
    axes.set_xlabel("step", loc="right", color=_TEXT)
    axes.set_ylabel("rank", color=_TEXT)
    return figure


def _columns(values: Any) -> Any:
    """Return the matrix with no more columns than there are pixels, each the mean of those that it stands for."""
    import numpy as np

    each = -(-values.shape[1] // _COLUMNS)
    starts = np.arange(0, values.shape[1], each)
    known = np.isfinite(values)
    number = np.add.reduceat(known, starts, axis=1, dtype=np.float64)
    summed = np.add.reduceat(np.where(known, values, 0.0), starts, axis=1)
    return np.where(number > 0, summed / np.maximum(number, 1), np.nan)
