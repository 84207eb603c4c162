"""Summarize a run: in one line (``train: finished, 300 rows, steps 0 to 299, 5 min 12 s``), and its metrics as a
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.quantities import duration
from ezpz.tables import aligned
from ezpz.track.run_reader import seconds_taken
from ezpz.view.terminal.metric_choice import choose
from ezpz.view.terminal.width import cleaned, columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.table import Cells


def headline(run: Run, rows: int, steps: tuple[int, int] | None, times: tuple[float, float] | tuple[None, None]) -> str:
    """Return name, state with its cause, rows, steps and duration.

    Args:
        run: The run.
        rows: How many rows it has.
        steps: Its smallest and largest step; None without rows.
        times: Times of its first and its last row, in epoch seconds.
    """
    parts = [ending(run), f"{rows} row{'s' * (rows != 1)}"]
    if steps:
        parts.append(f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}")
    lasted = seconds_taken(run, *times)
    if lasted is not None:
        parts.append(duration(lasted))
    return f"{run.name}: {', '.join(parts)}"


def ending(run: Run) -> str:
    """Return the state of a run, and its cause where there is one."""
    return f"{run.state} ({run.cause})" if run.cause else run.state


_HEAD = ("metric", "count", "first", "last", "min", "max")


def list_metrics(run: Run, words: Sequence[str] = (), *, ascii_only: bool = False) -> list[str]:
    """Return a line for each metric: name, how often it was recorded, first, last, smallest and largest value.

    Args:
        run: The run.
        words: Metrics, as `ezpz.view.terminal.metric_choice.matching` reads them; nothing means all.
        ascii_only: Use no character beyond ASCII.

    Raises:
        UsageError: A word means no metric.
    """
    cells = run.table.cells
    names = choose(words, list(cells), str(run.folder))
    rows = [_HEAD, *((cleaned(name, ascii_only=ascii_only), *_row(cells[name])) for name in names)]
    return aligned(rows, range(1, len(_HEAD)), measure=columns)


def _row(cells: Cells) -> tuple[str, ...]:
    count, kinds = str(cells.count), cells.kinds
    if not cells.are_numbers:
        kind = "mixed" if len(kinds) > 1 else {"str": "text"}.get(next(iter(kinds)).__name__, "").lower()
        return count, kind or next(iter(kinds)).__name__.lower(), "", "", ""
    known = cells.array()
    if known is not None:  # all of one kind
        ends = known[[0, -1]].tolist()
        sound = known[known == known]  # noqa: PLR0124  # NaN, no extreme, differs
        numbers: list[Any] = [sound.min().item(), sound.max().item()] if len(sound) else []
    else:
        values: list[Any] = cells.values
        ends = [values[0], values[-1]]
        numbers = [value for value in values if value == value]  # noqa: PLR0124  # as above
    return count, *map(_number, (*ends, min(numbers, default=ends[0]), max(numbers, default=ends[0])))


def _number(value: float) -> str:
    return f"{value:.6g}" if type(value) is float else str(value)
