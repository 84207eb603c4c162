"""Plots made of characters: the only module that touches plotext (5.3).

A plot is always 75 columns by 25 lines without escape codes, whatever the terminal is:

                                loss [2026-11-20-162001]
         ┌────────────────────────────────────────────────────────────────────┐
     1.0 ┤▀▄

plotext keeps one figure for the process. Its size is clamped to the terminal unless the limit is lifted after the
figure was cleared and before the size is set; its own ``savefig`` writes an empty file when nothing was built before;
it colours without asking; and infinities make it raise. So a plot is built here as a string, under a lock, from finite
points only, and written by us.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, TextIO

from ezpz.track.axes import nice_ticks
from ezpz.track.folder import write_atomically
from ezpz.track.series import Series, captions, limits, thin

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HEIGHT", "WIDTH", "render", "save_text", "show_text"]

WIDTH, HEIGHT = 75, 25  # fits a terminal of 80 columns, and a file read on one
_LONGEST_TITLE = 40
_BUCKETS = 68  # columns inside the frame

_BLOCKS, _ASCII = "hd", "*"
_FRAME = str.maketrans("┌┐└┘─│┤├┬┴┼", "++++-||||++")

_figure = Lock()


def render(series: Series, stamp: str, *, ascii_only: bool = False) -> str:
    """Draw one series.

    Args:
        series: Its points.
        stamp: Start of the run, shown in the title.
        ascii_only: Use no character beyond ASCII.

    Returns:
        25 lines of 75 characters, each ended by a newline; the last lines are the captions, if there are any.
    """
    notes = captions(series)
    text = _build(
        series, f"{series.name[:_LONGEST_TITLE]} [{stamp}]", HEIGHT - len(notes), _ASCII if ascii_only else _BLOCKS
    )
    lines = [line.ljust(WIDTH)[:WIDTH] for line in [*text.splitlines(), *notes]]
    text = "\n".join(lines) + "\n"
    return text.translate(_FRAME).encode("ascii", "replace").decode() if ascii_only else text


def _build(series: Series, title: str, height: int, marker: str) -> str:
    import numpy as np
    import plotext as plt

    shown = limits(series)
    points = thin(series, _BUCKETS)
    with _figure:
        plt.clear_figure()
        plt.limit_size(False, False)
        plt.plot_size(WIDTH, height)
        plt.theme("clear")
        plt.title(title)
        plt.xlabel("step")
        if shown is None:
            plt.text("nothing finite was recorded", 0, 0, alignment="center")
            plt.xticks([])
            plt.yticks([])
        else:
            left, right = _widened(float(series.steps[0]), float(series.steps[-1]), 1.0)
            plt.xlim(left, right)
            plt.xticks(*nice_ticks(left, right, whole=True))
            low, high = _widened(*shown, abs(shown[0]) / 10 or 1.0)
            # Values go in as shares of the range: plotext cannot subtract the largest floats without an overflow.
            span = high / 2 - low / 2
            ticks, labels = nice_ticks(low, high)
            plt.ylim(0, 1)
            plt.yticks([(tick / 2 - low / 2) / span for tick in ticks], labels)
            # A line that leaves the range runs along its edge.
            values = (np.clip(points.values, *shown) / 2 - low / 2) / span
            gaps = np.flatnonzero(np.isnan(values))
            # One line for each stretch without NaN: plotext would connect across it.
            for x, y in zip(np.split(points.steps, gaps), np.split(values, gaps), strict=True):
                finite = ~np.isnan(y)
                if finite.any():
                    plt.plot(x[finite].tolist(), y[finite].tolist(), marker=marker)
        text: str = plt.uncolorize(plt.build())
        plt.clear_figure()
    return text


def _widened(low: float, high: float, margin: float) -> tuple[float, float]:
    """Return an axis that has a length, also when all of its points have one place."""
    return (low - margin, high + margin) if low == high else (low, high)


def save_text(path: Path, series: Series, stamp: str) -> None:
    """Write one plot as UTF-8 text.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(path, render(series, stamp).encode())


def show_text(series: Series, stamp: str) -> None:
    """Print one plot to stdout, in ASCII where stdout can encode nothing else; without a reader, do nothing."""
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    text = render(series, stamp)
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        text = render(series, stamp, ascii_only=True)
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        _give_up(stream)


def _give_up(stream: TextIO) -> None:
    """Let what ``stream`` still holds go nowhere, after its reader has left (``| head``) or its file was closed.

    Python would fail on the same bytes again at its end and turn the exit code into 120. The documentation of `signal`
    gives this remedy under "Note on SIGPIPE".
    """
    with suppress(OSError, ValueError):
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        if null != target:  # a closed descriptor is the first that the system gives out again
            os.dup2(null, target)
            os.close(null)
