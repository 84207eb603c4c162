"""The curves of all runs in one picture, with a line where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.log import get_logger
from ezpz.track.compare.curves import series_by_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ezpz.track.compare.comparison import Comparison
    from ezpz.track.run import Run

__all__ = ["save_picture"]


def save_picture(folder: Path, runs: Sequence[Run], places: Sequence[Path], found: Sequence[Comparison]) -> list[Path]:
    """Write ``overlay.png`` and ``overlay.svg``.

    Args:
        folder: Where to; made when absent.
        runs: What was compared, in the order of letters.
        places: Where it is, as it was asked for.
        found: The comparisons.

    Returns:
        What was written; nothing, after a warning, where it cannot be drawn.
    """
    from ezpz.track.pictures import save_overlay

    metric = next((item.metric for item in found if item.metric), "")
    drawn = [item for item in found if item.metric == metric and item.divergence is not None]
    if not drawn:
        get_logger(__name__).warning("no overlay picture: nothing to draw.")
        return []
    letters = [drawn[0].letters[0], *(item.letters[1] for item in drawn)]
    numbers = {letter: ord(letter) - ord("A") for letter in letters}
    lines = [(f"{letter} {places[n].name}", series_by_name(runs[n])[metric]) for letter, n in numbers.items()]
    step = next((item.verdict.step for item in drawn if item.verdict.step is not None), None)
    png, svg = folder / "overlay.png", folder / "overlay.svg"
    label = "" if step is None else f"step {step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_overlay(png, svg, lines, title=metric, mark=None if step is None else float(step), mark_label=label)
    # Anything may come out of a drawing library, and the comparison itself is told already.
    except Exception as error:  # noqa: BLE001
        get_logger(__name__).warning(f"no overlay picture in {folder}: {type(error).__name__}: {error}")
        return []
    return [png, svg]
