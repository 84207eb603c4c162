"""Draw plots made of characters: the only module that touches plotext (5.3).

A saved plot is always 75 columns by 25 lines without escape codes, whatever the terminal is:

                                loss [2026-11-20-162001]
         ┌────────────────────────────────────────────────────────────────────┐
     1.0 ┤▀▄

plotext keeps one figure for the process. Its size is clamped to the terminal unless the limit is lifted after the
figure was cleared and before the size is set; its own ``savefig`` writes an empty file when nothing was built before;
it colours without asking; wide characters in its title shift a line; and infinities make it raise. So a plot is built
here as a string, under a lock, from finite points only, with our own title, and written by us.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.files import write_whole
from ezpz.track.names import is_memory, is_throughput, is_time
from ezpz.track.series import Series, captions, limits, logged, thin
from ezpz.view.axes import log_ticks, nice_ticks, shortened, step_ticks
from ezpz.view.terminal.width import centered, cleaned, fit, to_ascii, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, HEIGHT = 75, 25  # fits a terminal of 80 columns, and a file read on one
_LONGEST_TITLE = 40
_FRAME = 4  # lines of a plot besides its curve: two of the frame, labels, the axis' name
_LOW = 10  # lines of a plot below which its axis stays without a name
_LEAST = 8  # lines of a plot that captions leave to it

_COLORS = (6, 5, 3, 2, 4, 1)  # of the terminal's own sixteen: cyan, magenta, yellow, green, blue, red
_BLOCKS = ("hd", "•", "x", "+", "o", "#")  # with colour every curve is made of blocks
_ASCII = ("*", "o", "x", "+", "#", "@")

_figure = Lock()


class Drawing(NamedTuple):
    """How a plot is drawn.

    Attributes:
        width: Columns.
        height: Lines.
        grows: Legend and captions are below these lines; else they are among them, as many as there is room for.
        ascii_only: Use no character beyond ASCII.
        color: Use colours.
        log: Draw values on a logarithmic axis.
    """

    width: int = WIDTH
    height: int = HEIGHT
    grows: bool = False
    ascii_only: bool = False
    color: bool = False
    log: bool = False


def render(series: Series, stamp: str, *, ascii_only: bool = False) -> str:
    """Draw one series as it is saved.

    Args:
        series: Its points.
        stamp: Start of the run, shown in the title.
        ascii_only: Use no character beyond ASCII.

    Returns:
        25 lines of 75 columns, each ended by a newline; the last lines are the captions, if there are any.
    """
    title = f"{series.name[:_LONGEST_TITLE]} [{stamp}]"
    return "\n".join(draw([series], title, Drawing(ascii_only=ascii_only))) + "\n"


def save_text(path: Path, series: Series, stamp: str) -> None:
    """Write one plot as UTF-8 text, without waiting for the disk: it can be drawn again.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, render(series, stamp).encode(), closed=True)


def draw(lines: Sequence[Series], title: str, how: Drawing) -> list[str]:
    """Draw series into one frame.

    Args:
        lines: One or more series.
        title: The line above the frame; cut where it is wider than the plot.
        how: Size and characters.

    Returns:
        Lines that take ``how.width`` columns each: ``how.height`` of them, or more if it grows. Below the frame are a
        legend, where there are several series, and what the drawing does not show.
    """
    drawn = [logged(line) for line in lines] if how.log else list(lines)
    shown = _shown(drawn, log=how.log)
    below = _below(lines, None if how.log else shown, how)
    if not how.grows:
        below = below[: max(0, how.height - _LEAST)]
        how = how._replace(height=how.height - len(below))
    text = _build(drawn, shown, how)
    if how.ascii_only:
        text = [to_ascii(line) for line in text]
    top = centered(cleaned(title, ascii_only=how.ascii_only), how.width)
    return [fit(line, how.width) for line in (top, *text, *below)]


def _below(lines: Sequence[Series], shown: tuple[float, float] | None, how: Drawing) -> list[str]:
    if len(lines) == 1:
        notes = captions(lines[0], shown, log=how.log)
        return [part for note in notes for part in wrapped(note.split(" "), how.width)]
    keys = wrapped([_key(number, line, how) for number, line in enumerate(lines)], how.width, "  ")
    notes = [
        f"{cleaned(line.caption, ascii_only=how.ascii_only)}: {note}"
        for line in lines
        for note in captions(line, shown, log=how.log)
    ]
    return keys + [part for note in notes for part in wrapped(note.split(" "), how.width)]


def _key(number: int, line: Series, how: Drawing) -> str:
    marker = _marker(number, how)
    sign, name = "▚" if marker == "hd" else marker, cleaned(line.caption, ascii_only=how.ascii_only)
    return f"\x1b[38;5;{_COLORS[number % len(_COLORS)]}m{sign}\x1b[0m {name}" if how.color else f"{sign} {name}"


def _marker(number: int, how: Drawing) -> str:
    if how.ascii_only:
        return _ASCII[number % len(_ASCII)]
    return "hd" if how.color else _BLOCKS[number % len(_BLOCKS)]


def _shown(lines: Sequence[Series], *, log: bool) -> tuple[float, float] | None:
    """Return the range of values that holds every line's own; on a logarithmic axis no value lies too far out."""
    import numpy as np

    ranges = []
    for line in lines:
        if log:
            finite = line.values[np.isfinite(line.values)]
            ranges += [(float(finite.min()), float(finite.max()))] if finite.size else []
        else:
            own = limits(line)
            ranges += [own] if own else []
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


class _Axes(NamedTuple):
    """Ticks and ranges of both axes, and the range of values that is drawn; values go in as shares of the axis."""

    shown: tuple[float, float]
    x: tuple[float, float]
    y: tuple[float, float]
    xticks: tuple[list[float], list[str]]
    yticks: tuple[list[float], list[str]]

    def share(self, values: Any) -> Any:
        """Return where values stand between the ends: plotext overflows on the largest floats."""
        low, high = self.y
        return (values / 2 - low / 2) / (high / 2 - low / 2)


def _axes(lines: Sequence[Series], shown: tuple[float, float], how: Drawing) -> _Axes:
    rows = how.height - 1 - _FRAME
    if not how.log:
        shown = _from_zero(lines, shown)
    low, high = _widened(*shown, 0.5 if how.log else abs(shown[0]) / 10 or 1.0)
    most = max(1, min(6, rows * 2 // 5))
    ticks = log_ticks(low, high, most=most) if how.log else nice_ticks(low, high, most=most)
    ticks = shortened(*ticks, max(how.width // 4, min(7, how.width // 2 - 2)))
    present = [line.steps for line in lines if len(line.steps)]
    x = _widened(float(min(steps[0] for steps in present)), float(max(steps[-1] for steps in present)), 1.0)
    room = how.width - 2 - max(map(len, ticks[1]), default=0)
    return _Axes(shown, x, (low, high), step_ticks(*x, room), ticks)


def _from_zero(lines: Sequence[Series], shown: tuple[float, float]) -> tuple[float, float]:
    """Return the range with 0 at its end where that is honest and hides nothing.

    Times, rates and memory have a true zero: without it a change by a hundredth looks like a collapse. What falls to
    less than a third of its height, as a loss does, keeps its form with 0 in sight.
    """
    low, high = shown
    measured = all(is_time(line.name) or is_throughput(line.name) or is_memory(line.name) for line in lines)
    return (0.0, high) if low > 0 and (measured or low < high / 3) else shown


def _build(lines: Sequence[Series], shown: tuple[float, float] | None, how: Drawing) -> list[str]:
    import plotext as plt

    with _figure:
        plt.clear_figure()
        plt.limit_size(False, False)
        plt.plot_size(how.width, how.height - 1)  # the title is ours
        plt.theme("clear")
        if how.height >= _LOW:
            plt.xlabel("step")
        if shown is None:
            plt.text("nothing finite"[: how.width - 4], 0, 0, alignment="center")
            plt.xticks([])
            plt.yticks([])
        else:
            axes = _axes(lines, shown, how)
            plt.xlim(*axes.x)
            plt.xticks(*axes.xticks)
            plt.ylim(0, 1)
            plt.yticks(axes.share(_array(axes.yticks[0])).tolist(), axes.yticks[1])
            room = how.width - 2 - max(map(len, axes.yticks[1]), default=0)
            for number, line in enumerate(lines):
                color = _COLORS[number % len(_COLORS)] if how.color else None
                _curve(plt, thin(line, room), axes, _marker(number, how), color)
        text: str = plt.build() if how.color else plt.uncolorize(plt.build())
        plt.clear_figure()
    return text.splitlines()


def _curve(plt: Any, points: Series, axes: _Axes, marker: str, color: int | None) -> None:
    import numpy as np

    # A line that leaves the range runs along its edge.
    values = axes.share(np.clip(points.values, *axes.shown))
    gaps = np.flatnonzero(np.isnan(values))
    # One line for each stretch without NaN: plotext would connect across it.
    for x, y in zip(np.split(points.steps, gaps), np.split(values, gaps), strict=True):
        finite = ~np.isnan(y)
        if finite.any():
            plt.plot(x[finite].tolist(), y[finite].tolist(), marker=marker, color=color)


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float64)


def _widened(low: float, high: float, margin: float) -> tuple[float, float]:
    """Return an axis that has a length, also when all of its points have one place."""
    return (low - margin, high + margin) if low == high else (low, high)
