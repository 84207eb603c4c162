"""Run ``ezpz plot``: draw a run's metrics as plots made of characters, or as PNG and SVG."""

from __future__ import annotations

import sys

from ezpz.cli_parser import option, run_verb, whole_number
from ezpz.errors import MachineError, UsageError
from ezpz.verbs import make_verb_parser
from ezpz.visible import show, show_path

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series

_OPTIONS = (
    option("words", nargs="*", metavar="RUN|KEY", help="runs, and metrics, as described above"),
    option(
        "-k", "--key", action="append", default=[], metavar="KEY", help="a metric, also where a folder has that name"
    ),
    option("--overlay", action="store_true", help="draw all metrics that were named into one plot"),
    option(
        "--ranks", action="append", default=[], metavar="KEY", help="draw what each rank recorded, as shades over steps"
    ),
    option("--log", action="store_true", help="a logarithmic axis"),
    option("--last", type=whole_number(1, 10**9), metavar="N", help="only the last N rows"),
    option(
        "--pictures",
        action="store_true",
        help="draw PNG and SVG into plots/mplot of the run folder instead: a finished run has those of six metrics",
    ),
    option("--list", action="store_true", help="list the metrics instead: count, first, last, min, max"),
    option("--width", type=whole_number(12, 1000), metavar="N", help="columns; else COLUMNS, the terminal's, or 100"),
    option("--height", type=whole_number(5, 200), metavar="N", help="lines of each plot"),
)
_ABOUT = """\
The runs may have ended, be running or have been killed. A word that is a folder is a run, or holds runs of which
the newest is meant; without one that is the newest below outputs/. Other words are metrics: a name, its last part
(loss means train/loss and val/loss) or a pattern ('grad*'); or else names of runs, as other verbs take them. Without
a metric all numbers are drawn: losses, throughput, times, the rest. Of several runs each plot holds one metric."""

_EXAMPLES = (
    ("ezpz plot", "all numbers of the newest run"),
    ("ezpz plot train loss --log", "the losses of one"),
    ("ezpz plot RUN1 RUN2 loss", "two runs in one plot"),
    ("ezpz plot --list", "the names of its metrics"),
)


def main(argv: Sequence[str]) -> int:
    """Draw and return the exit code."""
    parser = make_verb_parser("plot", _OPTIONS, _ABOUT, usage="[RUN ...] [KEY ...] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _plot)


def _plot(options: Namespace) -> int:
    if options.pictures:
        return _save_pictures(options)
    from ezpz.view.terminal.run_lines import list_metrics
    from ezpz.view.terminal.runplot import PlotOptions, heads, plot_runs
    from ezpz.view.terminal.screen import look, say

    runs, keys = _runs(options)
    screen = look(sys.stdout, width=options.width or None)
    if options.list:
        lines = []
        for run in runs:
            lines += [*heads([run], screen), *list_metrics(run, keys, ascii_only=screen.ascii_only)]
    else:
        what = PlotOptions(keys, options.ranks, options.overlay, options.log, options.last or 0, options.height or 0)
        lines = plot_runs(runs, what, screen)
    say(sys.stdout, "\n".join(lines))
    return 0


def _save_pictures(options: Namespace) -> int:
    """Draw metrics as PNG and SVG, and print the path of each PNG when it is there."""
    for name in ("overlay", "log", "last", "list", "width", "height"):
        if getattr(options, name):
            raise UsageError(
                f"--{name} with --pictures (from the command line): a picture holds one metric of a whole run; "
                "expected one of the two. Leave the other out."
            )
    from ezpz.track.by_rank import counting_windows
    from ezpz.track.series import numeric_series
    from ezpz.view.plots import draw_heat_map, save_pictures
    from ezpz.view.terminal.metric_choice import choose
    from ezpz.view.terminal.strips import named_matrix

    runs, keys = _runs(options)
    known = [numeric_series(run.table) for run in runs]
    chosen = [item.name for series in known for item in series]
    if keys or options.ranks:
        known = [_with_counters(run, series) for run, series in zip(runs, known, strict=True)]
        names = list(dict.fromkeys(item.name for series in known for item in series))
        chosen = choose(keys, names, " and ".join(str(run.folder) for run in runs)) if keys else []
    maps = [(run.folder, named_matrix(counting_windows(run), key)) for run in runs for key in options.ranks]
    if not chosen and not maps:
        show("no number has been recorded")
    try:
        for run, series in zip(runs, known, strict=True):
            for png in save_pictures(run, series, set(chosen)):
                show_path(str(png))
        for folder, matrix in maps:
            show_path(str(draw_heat_map(matrix, folder)))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write pictures: {error.filename or runs[0].folder}: {error.strerror or error} (from the run "
            "folder); expected room and permission. `ezpz report DIR -o FILE` shows all curves elsewhere."
        ) from error
    except ImportError as error:
        raise MachineError(
            f"cannot draw pictures: {error} (from import matplotlib); expected a working matplotlib. "
            "`ezpz report DIR` draws all curves without it."
        ) from error
    return 0


def _with_counters(run: Run, series: list[Series]) -> list[Series]:
    """Return all metrics of a run: counters, of which the end of a run makes no file, after the others."""
    from ezpz.track.series import numeric_series

    names = {item.name for item in series}
    return [*series, *(item for item in numeric_series(run.table, counters=True) if item.name not in names)]


def _runs(options: Namespace) -> tuple[list[Run], list[str]]:
    """Return the runs and the metrics that the words mean."""
    from ezpz.track.named import run_named
    from ezpz.track.run_reader import open_run
    from ezpz.view.terminal.metric_choice import sorted_out

    named, keys = sorted_out(options.words)
    folders = [run_named(word) for word in named or (None,)]
    return [open_run(folder) for folder in dict.fromkeys(folders)], [*keys, *options.key]
