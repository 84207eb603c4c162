"""The newest run below a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["newest_run"]

_DEEPEST = 4  # folders below the root: outputs/<name>/<stamp> and some more
_FILES = ("metrics.jsonl", "run.json")


def newest_run(root: Path) -> Path | None:
    """Return the run folder below ``root``, or that folder itself, whose journal or ``run.json`` changed last.

    Folders that hold a run are not searched for more, and neither are hidden ones, nor links to folders.
    """
    newest: tuple[float, Path] | None = None
    depth = len(root.parts)
    for place, folders, files in os.walk(root):
        path = Path(place)
        held = [name for name in _FILES if name in files]
        if held:
            folders.clear()
            with suppress(OSError):  # removed at this moment
                changed = max((path / name).stat().st_mtime for name in held)
                newest = max(newest, (changed, path)) if newest else (changed, path)
        elif len(path.parts) - depth >= _DEEPEST:
            folders.clear()
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return newest[1] if newest else None
