"""The summary of step times that ends a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ezpz.log import use_color

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["print_timing"]


def print_timing(seconds: Mapping[str, Sequence[float]], *, skip: int = 1) -> None:
    """Print a table of step times, the first step apart: it pays for start-up and would hide all others.

    Args:
        seconds: Name of a time to its values in step order, in seconds.
        skip: Steps at the start that median, p95 and max leave out; at least the first.
    """
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"seconds per step, the first {max(1, skip)} apart", title_justify="left")
    table.add_column("")
    for head in ("first", "median", "p95", "max"):
        table.add_column(head, justify="right")
    for name, values in seconds.items():
        rest = np.asarray(values[max(1, skip) :] or values, dtype=np.float64)
        figures = (values[0], np.median(rest), np.percentile(rest, 95), rest.max())
        table.add_row(name, *(f"{figure:.6f}" for figure in figures))
    Console(force_terminal=use_color(sys.stdout)).print(table)
