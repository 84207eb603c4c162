"""Draw the plots of one run or several, as ``ezpz plot`` shows them."""

from __future__ import annotations

from collections import Counter
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ezpz.errors import UsageError
from ezpz.track.by_rank import counting_windows
from ezpz.track.names import is_counter
from ezpz.track.series import Series, numeric_series, ordered
from ezpz.view.terminal.metric_choice import choose
from ezpz.view.terminal.panels import arrange, drawing, lay_out
from ezpz.view.terminal.run_lines import headline
from ezpz.view.terminal.strips import draw_histograms, draw_ranks, histogram_keys
from ezpz.view.terminal.textplot import draw
from ezpz.view.terminal.width import cleaned, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.table import Table
    from ezpz.view.terminal.screen import Screen


class PlotOptions(NamedTuple):
    """What is to be drawn and how.

    Attributes:
        keys: Metrics, as `ezpz.view.terminal.metric_choice.matching` reads them; nothing means all.
        ranks: Metrics to be drawn for each rank.
        overlay: Draw all metrics that were named into one plot.
        log: Draw on a logarithmic axis.
        last: Draw only so many rows, the last ones; 0 draws all.
        height: Lines of a plot; 0 lets the screen decide.
    """

    keys: Sequence[str] = ()
    ranks: Sequence[str] = ()
    overlay: bool = False
    log: bool = False
    last: int = 0
    height: int = 0


class _Panel(NamedTuple):
    title: str
    lines: list[Series]
    histogram: tuple[Table, str, float] | None = None


def plot_runs(runs: Sequence[Run], options: PlotOptions, screen: Screen) -> list[str]:
    """Draw runs.

    Args:
        runs: One or more. Several share the plot of a metric.
        options: What to draw.
        screen: Where it is to be shown.

    Returns:
        Lines: one or more for each run that say what it is, then its plots.

    Raises:
        UsageError: A metric that was named is in no run; the message names those that are near.
        TrackError: A journal cannot be read.
    """
    since = [_since(run.table, options.last) for run in runs]
    strips = [(run, key, start) for run, start in zip(runs, since, strict=True) for key in options.ranks]
    panels = [] if options.ranks and not options.keys else _panels(runs, since, options)
    if not panels and not strips:
        return [*heads(runs, screen), "no number has been recorded"]
    number = len(panels) + len(strips)
    side, _ = lay_out(screen, number)
    how = drawing(screen, number, height=options.height, log=options.log)
    blocks = [draw_ranks(counting_windows(run), key, how, since=start) for run, key, start in strips]
    for panel in panels:
        if panel.histogram is None:
            blocks.append(draw(panel.lines, panel.title, how))
        else:
            table, key, start = panel.histogram
            blocks.append(draw_histograms(table, key, how, since=start))
    return [*heads(runs, screen), *(line.rstrip() for line in arrange(blocks, side))]


def heads(runs: Sequence[Run], screen: Screen) -> list[str]:
    """Return lines that say of each run what it is and where."""
    lines = []
    for run in runs:
        table = run.table
        text = f"{headline(run, len(table), table.step_range, table.time_range)} ({_near(run.folder)})"
        lines += wrapped(cleaned(text, ascii_only=screen.ascii_only).split(" "), screen.width)
    return lines


def _near(folder: Path) -> str:
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _since(table: Table, last: int) -> float:
    import numpy as np

    return float(np.partition(table.step_array, -last)[-last]) if 0 < last < len(table) else -inf


def _panels(runs: Sequence[Run], since: Sequence[float], options: PlotOptions) -> list[_Panel]:
    drawn = [
        {item.name: _cut(item, start) for item in numeric_series(run.table, counters=True)}
        for run, start in zip(runs, since, strict=True)
    ]
    names = [item.name for item in ordered([item for held in drawn for item in held.values()])]
    strips = [histogram_keys(run.table) for run in runs]
    names = list(dict.fromkeys([*names, *(key for keys in strips for key in keys)]))
    where = " and ".join(_near(run.folder) for run in runs)
    keys = choose(options.keys, names, where) if options.keys else [name for name in names if not is_counter(name)]
    labels = _labels(runs)
    panels = [
        _Panel(key, [held[key]._replace(label=label) for held, label in zip(drawn, labels, strict=True) if key in held])
        for key in keys
    ]
    histograms = [
        _Panel(key, [], (run.table, key, start))
        for key in keys
        for run, held, start in zip(runs, strips, since, strict=True)
        if key in held
    ]
    panels = [panel for panel in panels if panel.lines]
    return [*(_overlaid(panels, len(runs), options) if options.overlay else panels), *histograms]


def _overlaid(panels: Sequence[_Panel], runs: int, options: PlotOptions) -> list[_Panel]:
    if not options.keys:
        raise UsageError(
            "--overlay without a metric (from the command line); expected names. "
            "For example `ezpz plot DIR loss --overlay`."
        )
    lines = [
        line._replace(label=line.name if runs == 1 else f"{line.label} {line.name}")
        for panel in panels
        for line in panel.lines
    ]
    return [_Panel(", ".join(panel.title for panel in panels), lines)] if lines else []


def _cut(item: Series, start: float) -> Series:
    kept = item.steps >= start
    return item if kept.all() else item._replace(steps=item.steps[kept], values=item.values[kept])


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run in the legend: its own where that tells it from the others, else its folder's."""
    for labels in ([run.name for run in runs], [run.folder.name for run in runs], [_near(run.folder) for run in runs]):
        if max(Counter(labels).values()) == 1:
            return labels
    return [f"{number}: {run.name}" for number, run in enumerate(runs, 1)]
