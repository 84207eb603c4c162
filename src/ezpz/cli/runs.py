"""``ezpz runs [ROOT]``: what ran, what runs, and what died of what. Only heads and tails of journals are read."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ezpz.cli.run_glance import glance
from ezpz.errors import EzpzError, TrackError, UsageError, end_with
from ezpz.log import use_color
from ezpz.track.terminal.screen import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Runs as a table of 80 columns; a line below says why a run died, or how old the last row of a running one is.

_HEAD = ("STATE", "STARTED", "STEP", "LOSS", "RATE", "TOOK", "RUN")
_RIGHT = {2, 3, 4, 5}  # columns of numbers
_COLORS = {"running": "36", "finished": "32", "failed": "31", "died": "31", "stopped": "33", "exited": "33"}
_USUAL = 80


def render(found: Sequence[dict[str, Any]], total: int, root: Path) -> str:
    """Return the table.

    Args:
        found: What to show, as `ezpz.cli.run_glance.glance` tells it.
        total: How many runs there are.
        root: Where they are.
    """
    now = time.time()
    color = use_color(sys.stdout)
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = max(_USUAL, get_terminal_size().columns) if is_terminal else _USUAL
    rows = [_HEAD, *(_row(each, now) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    lines = [_line(_HEAD, widths)]
    for each, row in zip(found, rows[1:], strict=True):
        text = _line(row, widths)
        lines.append(f"\x1b[{_COLORS.get(each['state'], '0')}m{row[0]}\x1b[0m{text[len(row[0]) :]}" if color else text)
        lines += [f"    {part}" for part in wrap(_note(each, now), width - 4, break_on_hyphens=False)]
    shown = f"{len(found)} of {total} runs" if len(found) < total else f"{total} run{'s' * (total > 1)}"
    return "\n".join([*lines, "", f"{shown} in {root.absolute()}"]) + "\n"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    words = [
        word.rjust(size) if column in _RIGHT else word.ljust(size)
        for column, (word, size) in enumerate(zip(row, widths, strict=False))
    ]
    return "  ".join([*words, row[-1]])


def _row(each: dict[str, Any], now: float) -> tuple[str, ...]:
    started, seconds, loss = each["started"], each["seconds"], each["loss"]
    name = each["run"] if each["name"] in each["run"].split("/") else f"{each['run']} ({each['name']})"
    return (
        each["state"],
        "-" if started is None else f"{age(now - started)} ago",
        "-" if each["last_step"] is None else str(each["last_step"]),
        "-" if loss is None else loss if isinstance(loss, str) else f"{loss:.4g}",
        "-" if each["rate"] is None else f"{_count(each['rate'])}{_unit(each['rate_unit'])}",
        "-" if seconds is None else age(seconds),
        name,
    )


def _note(each: dict[str, Any], now: float) -> str:
    if each["state"] == "running":
        return f"last row {age(now - each['last_row'])} ago" if each["last_row"] is not None else "no row yet"
    return str(each["cause"])


def _unit(unit: str) -> str:
    return unit if unit.startswith("/") else f" {unit}"


def _count(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def age(seconds: float) -> str:
    """Return a span of time in one unit: ``42 s``, ``12 min``, ``3.2 h``, ``5 d``."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


__all__ = ["age", "find_runs", "main"]

# Folders that runs and their tools fill with thousands of files, and in which no run begins.
_PASSED_OVER = {"plots", "logs", "profile", "checkpoints", "wandb", "node_modules", "site-packages", "__pycache__"}
_DEEPEST = 8


def _glances(root: Path) -> Iterator[dict[str, Any]]:
    """Yield a glance at every run below a folder; name on stderr those that a newer ezpz wrote."""
    for folder in find_runs(root):
        try:
            yield glance(folder, root)
        except TrackError as error:
            print(f"ezpz runs: left out: {error}", file=sys.stderr)


_STATES = ("running", "finished", "exited", "failed", "stopped", "died")


def main(argv: Sequence[str]) -> int:
    """Print the runs below a folder, the newest last, and return the exit code."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="ezpz runs", description="List the runs below a folder, the newest last.")
    parser.add_argument("root", nargs="?", metavar="ROOT", help="default: outputs, or else the current folder")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--state", choices=_STATES, help="only runs of this state")
    options = parser.parse_args(argv)
    try:
        root = _root(options.root)
        found = list(_glances(root))
        if not found:
            raise UsageError(
                f"no runs below {root} ({'from the command line' if options.root else 'the default'}); expected folders "
                "with a metrics.jsonl, as ezpz.History leaves them. Name another folder: ezpz runs ROOT."
            )
        shown = [each for each in found if options.state in {None, each["state"]}]
        shown.sort(key=lambda each: (each["started"] or 0.0, each["folder"]))
        say(
            sys.stdout,
            (_json(shown) if options.json else render(shown, len(found), root)).rstrip("\n"),
            "backslashreplace",
        )
    except EzpzError as error:
        return end_with(error)
    return 0


def _root(name: str | None) -> Path:
    if name is None:
        return Path("outputs") if Path("outputs").is_dir() else Path()
    root = Path(name).expanduser()
    if not root.is_dir():
        raise UsageError(f"no folder {root} (from the command line); expected one that holds runs, such as outputs.")
    return root


def find_runs(root: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders below ``root`` and ``root`` itself; links, hidden folders and what cannot be read are passed over."""
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names:  # a virtual environment
        return
    if "metrics.jsonl" in names or ("run.json" in names and _has_name(root)):
        yield root
    for entry in entries if depth < _DEEPEST else ():
        hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
        try:
            if not hidden and entry.is_dir(follow_symlinks=False):
                yield from find_runs(root / entry.name, depth + 1)
        except OSError:
            continue


def _has_name(folder: Path) -> bool:
    from ezpz.track.run import is_run

    return is_run(folder)


def _json(found: Sequence[dict[str, Any]]) -> str:
    import json

    return json.dumps(found, indent=2) + "\n"
