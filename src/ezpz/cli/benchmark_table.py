"""The figures of a benchmark as a table: for a terminal of 80 columns, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COLUMNS", "cells", "markdown", "notes", "render", "short"]

_USUAL = 80
_ABSENT = "-"


def short(value: float) -> str:
    """Return a number in at most five characters, up to 999T: ``0.031``, ``28.7``, ``1.2k``, ``33.6M``, ``8.03B``."""
    size = abs(value)
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= scale * 0.9995:
            return f"{_three(value / scale)}{letter}"
    return _three(value)


def _three(value: float) -> str:
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 99.95
        else f"{value:.1f}"
        if size >= 9.995
        else f"{value:.2f}"
        if size >= 0.095
        else f"{value:.3f}"
    )


def _milli(value: float) -> str:
    return short(value * 1e3)


def _tenths(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


# What a column is called in a terminal and in Markdown, the figure in it, and how it is written.
COLUMNS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("ranks", "ranks", "ranks", _whole),
    ("params", "parameters", "parameters", short),
    ("sps", "samples/s", "sps", short),
    ("tps", "tokens/s", "tps", short),
    ("MFU\n%", "MFU (%)", "mfu", _tenths),
    ("mem\nGiB", "memory (GiB)", "memory_gib", _three),
    ("1st\nms", "first step (ms)", "first_step", _milli),
    ("step\nms", "step (ms)", "step_median", _milli),
    ("p95\nms", "p95 (ms)", "step_p95", _milli),
    ("start\ns", "to first step (s)", "time_to_first_step", _tenths),
    ("all\ns", "total (s)", "seconds", _tenths),
)


def cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of one trainer's row behind its name and preset."""
    return [_cell(entry, key, write) for _, _, key, write in COLUMNS]


def _cell(entry: dict[str, Any], key: str, write: Callable[[float], str]) -> str:
    value = entry.get(key)
    if isinstance(value, (int, float)):
        return write(value)
    return "n/a" if key == "mfu" and entry.get("step_median") is not None else _ABSENT


def render(entries: Sequence[dict[str, Any]], *, color: bool = False, width: int = _USUAL) -> str:
    """Return the table for a terminal.

    Args:
        entries: What ``benchmark.json`` tells of each trainer.
        color: Whether a failed trainer may stand out.
        width: Columns of the terminal; at least 80 are used.
    """
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("trainer", no_wrap=True)
    table.add_column("preset", no_wrap=True)
    for head, _, _, _ in COLUMNS:
        table.add_column(head, justify="right", no_wrap=True)
    for entry in entries:
        style = None if entry["state"] == "finished" else "red"
        table.add_row(entry["trainer"], entry["preset"], *cells(entry), style=style)
    out = StringIO()
    # Wide names shall not push figures out of sight: a table may be wider than the screen, but never loses a digit.
    console = Console(file=out, width=max(_USUAL, width, 240), force_terminal=color, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def notes(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each trainer that did not run to its end, and one that explains the columns."""
    lines = [
        f"{entry['trainer']}: {entry['state']}"
        + (f", exit code {entry['code']}" if entry["code"] is not None else "")
        + (f": {entry['cause']}" if entry["cause"] else "")
        for entry in entries
        if entry["state"] != "finished"
    ]
    return [
        *lines,
        "Medians of the steady steps (without the first tenth, at least two); MFU n/a: none was recorded, as without a known peak of the device.",
    ]


def markdown(entries: Sequence[dict[str, Any]], facts: Sequence[tuple[str, str]]) -> str:
    """Return ``benchmark.md``: the table, what it was measured on, and the command lines.

    Args:
        entries: As for `render`.
        facts: Name and value of each fact of the machine.
    """
    heads = ["trainer", "preset", *(name for _, name, _, _ in COLUMNS)]
    rows = [[entry["trainer"], entry["preset"], *cells(entry)] for entry in entries]
    lines = ["# ezpz benchmark", "", _row(heads), f"|{'---|' * 2}{'--:|' * len(COLUMNS)}", *map(_row, rows), ""]
    lines += [*notes(entries), "", "| | |", "|---|---|", *(_row(fact) for fact in facts), ""]
    lines += ["```sh", *(entry["command"] for entry in entries), "```", ""]
    return "\n".join(lines)


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"
