"""Pictures by matplotlib: each metric as PNG and SVG from one figure.

The figure gets its canvas by hand. So pyplot is not loaded, nobody's backend is changed, no display is needed and
nothing stays behind to be closed.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ezpz.track.folder import write_atomically
from ezpz.track.series import Series, captions, limits, thin

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["save_pictures"]

_SIZE = (6.0, 4.0)  # inches
_DPI = 150
_BUCKETS = 750  # pixels across the axes; an SVG of more points is only larger
_FEW = 40  # points up to which each gets a dot, so that a series of one can be seen

_LINE, _TEXT, _QUIET, _GRID = "#2563a8", "#222222", "#6b6b6b", "#e4e4e4"

# A user's matplotlibrc styles their figures, not ours; a salt and no date make the same data the same SVG.
_OURS = {"svg.hashsalt": "ezpz", "font.size": 10.0, "axes.unicode_minus": True}


def save_pictures(png: Path, svg: Path, series: Series, stamp: str) -> None:
    """Draw one series and write it twice.

    Args:
        png: File for 900 x 600 pixels.
        svg: File for the same figure as vectors.
        series: Its points.
        stamp: Start of the run, shown beside the title.

    Raises:
        OSError: A file cannot be written.
    """
    import matplotlib as mpl

    style = {name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")}
    with mpl.rc_context({**style, **_OURS}):
        figure = _draw(series, stamp)
        for path, form, metadata in ((png, "png", {"Software": None}), (svg, "svg", {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
            write_atomically(path, buffer.getvalue())


def _draw(series: Series, stamp: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_SIZE, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = thin(series, _BUCKETS)
    shown = limits(series)
    marker = "o" if len(points.values) <= _FEW else ""
    axes.plot(points.steps, points.values, color=_LINE, linewidth=1.2, marker=marker, markersize=3.0, clip_on=True)
    if shown is not None:
        margin = 0.04 * (shown[1] - shown[0]) or abs(shown[0]) / 10 or 1.0
        axes.set_ylim(shown[0] - margin, shown[1] + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    _dress(figure, axes, series, stamp)
    return figure


def _dress(figure: Any, axes: Any, series: Series, stamp: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(colors=_QUIET, labelcolor=_TEXT, length=3)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    # A name may hold a dollar sign, which is no formula here.
    axes.set_title(series.name, loc="left", color=_TEXT, fontsize=12, fontweight="bold", parse_math=False)
    axes.set_title(stamp, loc="right", color=_QUIET, fontsize=8)
    axes.set_xlabel("step", loc="right", color=_TEXT)
    notes = captions(series)
    if notes:
        figure.text(0.012, 0.012, "; ".join(notes), ha="left", va="bottom", color=_QUIET, fontsize=8)
