"""A path that somebody typed becomes a run: a run folder of ours, or what another tool has left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.track.run import is_run, open_run

if TYPE_CHECKING:
    import os

    from ezpz.track.run import Run

__all__ = ["open_any"]


def open_any(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or a run that wandb (offline), TensorBoard or a plain log has recorded.

    Args:
        path: A folder or a file.

    Returns:
        The run.

    Raises:
        UsageError: It is not there, or nothing that is known.
    """
    place = Path(path).expanduser().absolute()
    folder = place.parent if place.name in {"metrics.jsonl", "run.json"} else place
    if not place.exists() or is_run(folder):
        return open_run(place)
    from ezpz.track.foreign import open_foreign

    try:
        return open_foreign(place)
    except UsageError:
        if place.is_dir() and any(place.glob("*/**/metrics.jsonl")):
            return open_run(place)  # which says what is missing, and names a run below it
        raise
