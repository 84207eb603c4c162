"""Draw pictures by matplotlib, each as PNG and SVG from one figure: a metric, and a metric of several runs.

A figure gets its canvas by hand. So pyplot is not loaded, no program's backend is changed, no display is needed and
nothing stays behind to be closed. A layout that matplotlib finds itself (``constrained``) draws everything twice; the
pictures of single metrics, which a run makes while it holds its hosts, have margins that are known before.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ezpz.files import write_whole
from ezpz.track.series import Series, captions, limits, stretch_means, thin
from ezpz.view.axes import compacted, nice_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# The map of rank by step as PNG and SVG, in which a slow rank is a stripe.

_COLUMNS = 1000  # pixels; more steps than that share a column
_LABEL_TEXT, _LABEL_QUIET = "#222222", "#6b6b6b"
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
        save_both(png, svg, _draw_axes(name, steps, values))


def _draw_axes(name: str, steps: Any, values: Any) -> Any:
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    each = -(-values.shape[1] // _COLUMNS)
    grid = stretch_means(values, np.arange(0, values.shape[1], each))
    low, high = limits(Series(name, np.arange(grid.size), grid.ravel())) or (0.0, 1.0)
    ticks, labels = nice_ticks(low, high) if low < high else ([low], [f"{low:.6g}"])
    labels = compacted(ticks, labels)
    width, height = 9.0, 4.0  # inches
    left, right = 0.42 + _DIGIT * len(str(len(values))), 0.25 + _DIGIT * max(map(len, labels))
    bar_wide, between = 0.2, 0.12
    plot_wide = width - left - right - bar_wide - between

    figure = _figure(width, height, layout=None)
    place = [left / width, _BELOW / height, plot_wide / width, _PLOT / height]
    axes = figure.add_axes(place)
    beside = figure.add_axes([(left + plot_wide + between) / width, place[1], bar_wide / width, place[3]])
    colours = colormaps["magma_r"].with_extremes(bad=_GAP)
    half = (steps[-1] - steps[0]) / max(1, 2 * (len(steps) - 1)) or 0.5
    extent = (steps[0] - half, steps[-1] + half, len(values) - 0.5, -0.5)
    image = axes.imshow(
        grid, aspect="auto", interpolation="nearest", extent=extent, cmap=colours, vmin=low, vmax=max(high, low)
    )
    bar = figure.colorbar(image, cax=beside, extend="max" if (grid > high).any() else "neither")
    bar.set_ticks(ticks, labels=labels)
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    for each in (axes, bar.ax):
        each.tick_params(colors=_LABEL_QUIET, labelcolor=_LABEL_TEXT, length=3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 4, 8, 10], integer=True))
    title = axes.set_title("", loc="left", y=1.0, color=_LABEL_TEXT, fontweight="bold", parse_math=False)
    size, text = _fitted(f"{name} by rank", plot_wide)
    title.set(text=text, fontsize=size)
    axes.set_xlabel("step", loc="right", color=_LABEL_TEXT)
    axes.set_ylabel("rank", color=_LABEL_TEXT)
    return figure


_SIZE = (6.0, 4.0)  # inches
_PLOT, _BELOW = 3.12, 0.56  # inches: the plot's height, and what is below it
_BESIDE, _RIGHT = 0.2, 0.12  # left of the plot beside the labels of its ticks, and right of it
_DIGIT = 0.09  # a digit of 10 points
_STAMP = 1.3  # the stamp, right of the title
_LETTER = 0.0098  # of the title, times its points
_DPI = 150
_BUCKETS = 750  # pixels across the axes; an SVG of more points is only larger
_FARTHEST = 1e307
_FEW = 40  # points up to which each gets a dot, so that a series of one can be seen

_LINE, _TEXT, _QUIET, _GRID = "#2563a8", "#222222", "#6b6b6b", "#e4e4e4"
_LINES = (_LINE, "#d9691e", "#2b9163", "#8d55c9", "#c93b6b", "#4a5568")
_LONGEST = 48  # letters of a name in a legend

# A user's matplotlibrc styles their figures, not ours; a salt and no date make the same data the same SVG.
_OURS = {"svg.hashsalt": "ezpz", "font.size": 10.0, "axes.unicode_minus": True}


class Pictures:
    """Draws one series after another, all with one figure: a new one would cost as much as a drawing.

    Args:
        stamp: Start of the run, shown beside each title.
    """

    def __init__(self, stamp: str) -> None:
        with own_style():
            self._make(stamp)

    def _make(self, stamp: str) -> None:
        self._figure = _figure(*_SIZE, layout=None)
        axes = self._axes = self._figure.add_subplot()
        (self._curve,) = axes.plot([], [], color=_LINE, linewidth=1.2, markersize=3.0)
        _dress(axes)
        # Where a place is named, matplotlib does not look for one. A name may hold a dollar sign, which is no formula.
        self._title = axes.set_title("", loc="left", y=1.0, color=_TEXT, fontweight="bold", parse_math=False)
        axes.set_title(stamp, loc="right", y=1.0, color=_QUIET, fontsize=8)
        axes.xaxis.set_label_coords(1.0, -0.25 / _PLOT)
        self._notes = self._figure.text(0.012, 0.012, "", ha="left", va="bottom")
        self._notes.set(color=_QUIET, fontsize=8, parse_math=False)

    def save(self, png: Path, svg: Path, series: Series) -> None:
        """Draw one series and write it twice.

        Args:
            png: File for 900 x 600 pixels.
            svg: File for the same figure as vectors.
            series: Its points.

        Raises:
            OSError: A file cannot be written.
        """
        with own_style():
            self._draw(series)
            save_both(png, svg, self._figure)

    def _draw(self, series: Series) -> None:
        points = thin(_drawable(series), _BUCKETS)
        self._curve.set_data(points.steps, points.values)
        self._curve.set_marker("o" if len(points.values) <= _FEW else "")
        ticks, labels = self._scale(series)
        left = _BESIDE + _DIGIT * max(map(len, labels), default=0)
        self._axes.set_position([left / _SIZE[0], _BELOW / _SIZE[1], 1 - (left + _RIGHT) / _SIZE[0], _PLOT / _SIZE[1]])
        self._axes.set_yticks(ticks, labels)
        size, name = _fitted(series.name, _SIZE[0] - left - _RIGHT - _STAMP)
        self._title.set(text=name, fontsize=size)
        self._notes.set_text("; ".join(captions(series)))

    def _scale(self, series: Series) -> tuple[list[float], list[str]]:
        """Set both ends of both axes and the ticks of the steps; return the ticks of the values and their labels."""
        steps = series.steps if len(series.steps) else [0.0, 1.0]
        first, last = float(steps[0]), float(steps[-1])
        around = 0.02 * (last - first) or 1.0
        self._axes.set_xlim(first - around, last + around)
        ticks, labels = nice_ticks(first - around, last + around, whole=True)
        self._axes.set_xticks(ticks, compacted(ticks, labels))
        shown = limits(_drawable(series))
        if shown is None:
            return [], []
        _range(self._axes, *shown)
        ticks, labels = nice_ticks(*self._axes.get_ylim(), most=8)
        return ticks, compacted(ticks, labels)


def _fitted(name: str, room: float) -> tuple[float, str]:
    """Return the size in points in which a name fits into so many inches, and what of it does."""
    for size in (12.0, 10.5, 9.0):
        letters = int(room / (_LETTER * size))
        if len(name) <= letters:
            return size, name
    return size, f"…{name[1 - letters :]}"


def save_overlay(
    png: Path,
    svg: Path,
    lines: Sequence[Series],
    *,
    title: str,
    mark: float | None,
    mark_label: str = "",
) -> None:
    """Draw one metric of several runs over each other, and below it each run's ratio to the first, and write it twice.

    Args:
        png: File for 1350 x 900 pixels.
        svg: File for the same figure as vectors.
        lines: The metric in each run, labelled with the run; the first is what the others are compared with.
        title: What is seen.
        mark: Step at which an upright line is drawn, such as where the runs part; None for none.
        mark_label: What it says beside that line.

    Raises:
        OSError: A file cannot be written.
    """
    with own_style():
        save_both(png, svg, _draw_overlay(lines, title, mark, mark_label))


@contextmanager
def own_style() -> Iterator[None]:
    """Draw in ezpz's style inside the block, whatever the user's matplotlibrc says, and leave theirs as it was."""
    import matplotlib as mpl
    import numpy as np

    style = {name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")}
    with mpl.rc_context({**style, **_OURS}), np.errstate(over="ignore"):
        yield


def save_both(png: Path, svg: Path, figure: Any) -> None:
    """Write a figure as PNG and SVG, each in one move and without its date; it can be drawn again if a host crashes."""
    for path, form, metadata in ((png, "png", {"Software": None}), (svg, "svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
        write_whole(path, buffer.getvalue(), closed=True)


def _figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """Return an empty figure of so many inches, with a canvas of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _drawable(series: Series) -> Series:
    """Return a series within what an axis can hold: the distance of its ends must be a float too."""
    import numpy as np

    finite = np.isfinite(series.values)
    return series._replace(values=np.where(finite, np.clip(series.values, -_FARTHEST, _FARTHEST), series.values))


def _range(axes: Any, low: float, high: float) -> None:
    margin = 0.04 * (high - low) or abs(low) / 10 or 1.0
    axes.set_ylim(low - margin, high + margin)


def _dress(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(colors=_QUIET, labelcolor=_TEXT, length=3)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("step", loc="right", color=_TEXT)


def _draw_overlay(lines: Sequence[Series], title: str, mark: float | None, mark_label: str) -> Any:
    figure = _figure(9.0, 6.0)
    several = len(lines) > 1
    upper, *below = figure.subplots(
        2 if several else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 1] if several else None
    )[:, 0]
    for index, series in enumerate(lines):
        _run_curve(upper, series, index)
    _ranges(upper, lines)
    _dress(upper)
    upper.set_title(title, loc="left", color=_TEXT, fontsize=12, fontweight="bold", parse_math=False)
    _legend(figure, upper, [series.caption for series in lines])
    for axes in below:
        upper.set_xlabel("")
        ratios = [_ratio(lines[0], series) for series in lines[1:]]
        for index, series in enumerate(ratios, 1):
            _run_curve(axes, series, index)
        axes.axhline(1.0, color=_QUIET, linewidth=0.8)
        _ranges(axes, [*ratios, Series("", _array([0.0]), _array([1.0]))])
        axes.set_ylabel("ratio to first", color=_TEXT)
        _dress(axes)
    for axes in (upper, *below) if mark is not None else ():
        axes.axvline(mark, color=_TEXT, linewidth=1.0, linestyle=(0, (4, 3)))
    if mark is not None and mark_label:
        _label(upper, mark, mark_label)
    return figure


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float64)


def _run_curve(axes: Any, series: Series, index: int) -> None:
    """Draw a run's curve; that of the first is the widest, so that it stays visible below others that do not differ."""
    width, alpha = (1.2, 0.9) if index else (2.2, 0.6)
    if len(series.steps):
        color = _LINES[index % len(_LINES)]
        _curve(axes, series, color=color, linewidth=width, alpha=alpha, label=f"line {index}")


def _curve(axes: Any, series: Series, **how: Any) -> None:
    points = thin(_drawable(series), _BUCKETS)
    marker = "o" if len(points.values) <= _FEW else ""
    axes.plot(points.steps, points.values, marker=marker, markersize=3.0, **how)


def _ranges(axes: Any, several: Sequence[Series]) -> None:
    shown = [ends for series in several if (ends := limits(_drawable(series))) is not None]
    if shown:
        _range(axes, min(low for low, _ in shown), max(high for _, high in shown))


def _label(axes: Any, mark: float, text: str) -> None:
    """Write beside an upright line, on the side that has more room."""
    left, right = axes.get_xlim()
    leftwards = mark > (left + right) / 2
    shown = axes.annotate(
        text,
        (mark, 1.0),
        (-6 if leftwards else 6, -6),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if leftwards else "left",
        va="top",
    )
    shown.set(color=_TEXT, fontsize=9, parse_math=False)


def _legend(figure: Any, axes: Any, names: Sequence[str]) -> None:
    lines = {handle.get_label(): handle for handle in axes.get_lines()}
    known = [(name, lines[f"line {index}"]) for index, name in enumerate(names) if f"line {index}" in lines]
    if not known:
        return
    # Labels that begin with an underscore would be left out, and dollars read as formulas: so texts are set afterwards.
    labels = [str(index) for index in range(len(known))]
    place = {"loc": "outside lower left", "ncols": 2, "frameon": False, "fontsize": 9, "labelcolor": _TEXT}
    legend = figure.legend([handle for _, handle in known], labels, **place)
    for text, (name, _) in zip(legend.get_texts(), known, strict=True):
        text.set(parse_math=False, text=name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}")


def _ratio(first: Series, other: Series) -> Series:
    """Return the ratio of two runs at the steps that both have recorded."""
    import numpy as np

    steps, here, there = np.intersect1d(first.steps, other.steps, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return other._replace(steps=steps, values=other.values[there] / first.values[here])
