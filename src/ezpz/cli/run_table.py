"""Runs as a table of 80 columns; a line below says why a run died, or how old the last row of a running one is."""

from __future__ import annotations

import sys
import time
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ezpz.log import use_color

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["age", "render"]

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
