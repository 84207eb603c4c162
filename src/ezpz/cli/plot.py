"""``ezpz plot``: a run's metrics as plots made of characters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.cli_parser import VerbParser
from ezpz.errors import EzpzError, UsageError, end_with

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ezpz.track.run import Run

__all__ = ["main"]

_HELP = """\
usage: ezpz plot [DIR ...] [KEY ...] [options]

Draw metrics of runs that have ended, go on or were killed. A word that is a folder is a run, or holds runs of which the
newest is meant; without one that is the newest below outputs/. Other words are metrics: a name, its last part (loss means
train/loss and val/loss) or a pattern ('grad*'). Without one all numbers are drawn: losses, throughput, times, the rest.
Of several runs, each plot holds one metric of all.

  -k, --key KEY  a metric, also where a folder has that name
  --overlay      draw all metrics that were named into one plot
  --ranks KEY    draw what each rank recorded, as shades over steps
  --log          a logarithmic axis
  --last N       only the last N rows
  --list         list the metrics instead: count, first, last, min, max
  --width N      columns; else COLUMNS, the terminal's, or 100
  --height N     lines of each plot
"""
_BOUNDS = {"--width": (12, 1000), "--height": (5, 200), "--last": (1, 10**9)}


def main(argv: Sequence[str]) -> int:
    """Draw and return the exit code."""
    try:
        wishes = _parse(argv)
        if wishes.help:
            print(_HELP, end="")
            return 0
        return _plot(wishes)
    except EzpzError as error:
        return end_with(error)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = VerbParser("ezpz plot")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("words", nargs="*")
    parser.add_argument("-k", "--key", action="append", default=[])
    parser.add_argument("--ranks", action="append", default=[])
    for name in ("--overlay", "--log", "--list"):
        parser.add_argument(name, action="store_true")
    for name in _BOUNDS:
        parser.add_argument(name)
    wishes = parser.parse_intermixed_args(list(argv))
    for name in _BOUNDS:
        setattr(wishes, name[2:], _number(name, getattr(wishes, name[2:])))
    return wishes


def _number(name: str, text: str | None) -> int:
    """Return what was given for an option; 0 for nothing."""
    if text is None:
        return 0
    least, most = _BOUNDS[name]
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise UsageError(f"{name} {text!r} (from the command line); expected a whole number from {least} to {most}.")
    return int(text)


def _plot(wishes: argparse.Namespace) -> int:
    from ezpz.track.terminal.listing import list_metrics
    from ezpz.track.terminal.runplot import Wishes, heads, plot_runs
    from ezpz.track.terminal.screen import look, say

    runs, keys = _runs(wishes)
    screen = look(sys.stdout, width=wishes.width or None)
    if wishes.list:
        lines = []
        for run in runs:
            lines += [*heads([run], screen), *list_metrics(run, keys, ascii_only=screen.ascii_only)]
    else:
        what = Wishes(keys, wishes.ranks, wishes.overlay, wishes.log, wishes.last, wishes.height)
        lines = plot_runs(runs, what, screen)
    say(sys.stdout, "\n".join(lines))
    return 0


def _runs(wishes: argparse.Namespace) -> tuple[list[Run], list[str]]:
    """Return the runs and the metrics that the words mean."""
    from ezpz.track.run import open_run
    from ezpz.track.terminal.choice import folder_of, sorted_out

    named, keys = sorted_out(wishes.words)
    folders = [folder_of(word) or Path(word) for word in named or ["outputs"]]
    return [open_run(folder) for folder in dict.fromkeys(folders)], [*keys, *wishes.key]
