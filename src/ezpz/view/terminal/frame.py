"""Lay out what ``ezpz watch`` shows: a picture for a terminal, and a line for a log."""

from __future__ import annotations

from time import localtime, strftime, time
from typing import TYPE_CHECKING

from ezpz.quantities import duration
from ezpz.track.run_reader import seconds_taken
from ezpz.track.series import limits, ordered, stretch_means
from ezpz.view.hardware_rows import newest_values
from ezpz.view.terminal.metric_choice import listed, matching
from ezpz.view.terminal.panels import arrange, drawing, lay_out
from ezpz.view.terminal.run_lines import ending
from ezpz.view.terminal.textplot import draw
from ezpz.view.terminal.width import cleaned, columns, fit, to_ascii

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series
    from ezpz.view.terminal.follow import Live
    from ezpz.view.terminal.screen import Screen

_LOWEST, _GOOD, _HIGHEST = 8, 12, 25  # lines of a plot
_SILENT = 10.0  # seconds without a row after which that is shown
_FEW = 5  # metrics in a line when none was chosen
_SPARK, _LONGEST = 16, 60  # characters of the curve in a line of a log, and beside a plot


def frame(live: Live, run: Run, screen: Screen, words: Sequence[str], attempt: str = "") -> list[str]:
    """Return a picture that fits a terminal: plots of what comes first, and a line for each of the others.

    Args:
        live: The rows so far.
        run: The run.
        screen: The terminal; the picture leaves its last line free.
        words: What the user chose; nothing means all metrics.
        attempt: Which attempt of a launch it is, and what follows it.

    Returns:
        At most ``screen.height - 1`` lines, none longer than the screen is wide.
    """
    chosen, missing = _chosen(live, words)
    top = [
        fit(cleaned(line, ascii_only=screen.ascii_only), screen.width).rstrip()
        for line in (head(live, run, attempt), *_hardware(run), *missing)
    ]
    room = max(1, screen.height - 1 - len(top))
    side, _ = lay_out(screen, len(chosen))
    rows = _rows_of_plots(len(chosen), side, room)
    plotted, rest = chosen[: rows * side], chosen[rows * side :]
    lines = _table(rest, screen, room - rows * _LOWEST)
    height = min(_HIGHEST, (room - len(lines)) // rows) if rows else 0
    how = drawing(screen, len(chosen), height=height)._replace(grows=False)
    plots = arrange([draw([item], item.name, how) for item in plotted], side)
    return [*top, *(line.rstrip() for line in plots), *lines][: screen.height - 1]


def _hardware(run: Run) -> list[str]:
    """Return the newest values of the hardware of a run that runs."""
    line = newest_values(run)[1] if run.state == "running" else ""
    return [line] if line else []


def _rows_of_plots(number: int, side: int, room: int) -> int:
    """Return how many rows of plots there are: each high enough to be read, and a line left for all that have none."""
    rows = min(-(-number // side), room // _GOOD)
    while rows > 1 and rows * _GOOD + max(0, number - rows * side) > room:
        rows -= 1
    return rows or int(number > 0 and room >= _LOWEST)


def log_line(live: Live, words: Sequence[str], *, ascii_only: bool = False, width: int = 0) -> str:
    """Return the state of a run in one line: time, step, metrics, the curve of the first of them, and its speed.

    Args:
        live: The rows so far.
        words: What the user chose, all of which is shown; nothing means the first few metrics.
        ascii_only: Use no character beyond ASCII.
        width: Columns within which it stays as far as metrics that were not chosen can be left out; 0 for any number.
    """
    few = _FEW
    while True:
        line = _log_line(live, words, few, ascii_only=ascii_only)
        if words or few <= 1 or not width or columns(line) <= width:
            return line
        few -= 1


def _log_line(live: Live, words: Sequence[str], few: int, *, ascii_only: bool) -> str:
    chosen, missing = _chosen(live, words)
    shown = chosen if words else chosen[:few]
    parts = [strftime("%H:%M:%S", localtime(live.time)), f"step {live.step}"]
    parts += [f"{item.name}={live.latest[item.name]:.6g}" for item in shown]
    parts += [f"+{len(chosen) - len(shown)} more"] if len(chosen) > len(shown) else []
    parts = [cleaned(part, ascii_only=ascii_only) for part in [*parts, *(f"({line})" for line in missing)]]
    if shown:
        parts.append(sparkline(shown[0], _SPARK, ascii_only=ascii_only))
    return " ".join([*parts, *_rate(live)])


def _chosen(live: Live, words: Sequence[str]) -> tuple[list[Series], list[str]]:
    """Return what to show, and a sentence for each word that means nothing so far."""
    held = {item.name: item for item in live.series()}
    if not words:
        return ordered(list(held.values())), []
    chosen: dict[str, None] = {}
    missing = []
    for word in words:
        meant = matching(word, held)
        chosen.update(dict.fromkeys(meant))
        if not meant:
            missing.append(f"no {word!r} yet; recorded: {listed(list(held))}")
    return [held[name] for name in chosen], missing


def head(live: Live, run: Run, attempt: str = "") -> str:
    """Return name, state with its cause, attempt, rows, step, speed and duration of a run."""
    parts = [ending(run), *([attempt] if attempt else []), f"{live.rows} row{'s' * (live.rows != 1)}"]
    if live.step is not None:
        parts.append(f"step {live.step}")
    lasted = seconds_taken(run, None, live.time)
    parts += [*_rate(live), *([duration(lasted)] if lasted is not None else [])]
    silent = time() - live.time
    if run.state == "running" and live.rows and silent > _SILENT:
        parts.append(f"last row {duration(silent, whole=True)} ago")
    return f"{run.name}: {', '.join(parts)}"


def _rate(live: Live) -> list[str]:
    rate = live.rate()
    return [] if rate is None else [f"{rate:.3g} rows/s" if rate < 1000 else f"{rate:.0f} rows/s"]


def _table(series: Sequence[Series], screen: Screen, room: int) -> list[str]:
    """Return a line for each series: name, last value, curve; of more than ``room`` the last line counts the rest."""
    side = max((columns(item.name) for item in series), default=0)
    side = min(side, max(6, screen.width - 20))
    lines = []
    for item in series:
        start = f"{fit(cleaned(item.name, ascii_only=screen.ascii_only), side)} {item.values[-1]:<11.6g} "
        start = to_ascii(start) if screen.ascii_only else start
        curve = sparkline(item, min(_LONGEST, screen.width - columns(start)), ascii_only=screen.ascii_only)
        lines.append(fit(start + curve, screen.width).rstrip())
    if len(lines) > room:
        kept = max(0, room - 1)
        lines[kept:] = [fit(f"and {len(lines) - kept} more: name those to see", screen.width).rstrip()][:room]
    return lines


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-~=+*#"
_HOLE = "x"  # nothing finite here


def sparkline(series: Series, width: int, *, ascii_only: bool = False) -> str:
    """Draw a series in one line.

    Args:
        series: Points in the order of steps.
        width: Most characters.
        ascii_only: Use no character beyond ASCII.

    Returns:
        A character for each stretch of equally many points, as high as their mean is in the range of values (as
        `ezpz.track.series.limits` has it), or ``x`` where none is finite.
    """
    import numpy as np

    shown = limits(series)
    number = min(width, len(series.values))
    if number <= 0:
        return ""
    if shown is None:
        return _HOLE * number
    levels = _ASCII if ascii_only else _BLOCKS
    low, high = shown
    values = np.where(np.isfinite(series.values), np.clip(series.values, low, high), np.nan)
    # As shares of the range: the sum and the distance of the largest floats are none.
    shares = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else values * 0 + 0.5
    means = stretch_means(shares, np.arange(number) * len(shares) // number)
    places = np.where(np.isnan(means), 0, means * len(levels)).astype(int).clip(0, len(levels) - 1)
    return "".join(
        _HOLE if hole else levels[place] for hole, place in zip(np.isnan(means), places.tolist(), strict=True)
    )
