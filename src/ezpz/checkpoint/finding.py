"""Find the complete checkpoints of a folder, in the order in which they were saved.

Standard library only, so that a command line can ask without loading torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ezpz.checkpoint.manifest import Manifest, Unusable, check_files, read_manifest
from ezpz.log import get_logger

__all__ = ["FOLDER", "Found", "complete_in", "describe", "find_latest", "folder_of", "look_at"]

FOLDER = "checkpoints"  # of a run folder

logger = get_logger(__name__)


class Found(NamedTuple):
    """A complete checkpoint: folder, steps done, time of saving (ISO 8601), bytes, and number of ranks that saved."""

    path: Path
    step: int
    saved: str
    size: int
    world_size: int


def folder_of(folder: Path | str) -> Path:
    """Return where the checkpoints of a run folder are; a folder named ``checkpoints`` is meant itself."""
    path = Path(folder).expanduser().absolute()
    return path if path.name == FOLDER else path / FOLDER


def find_latest(folder: Path | str) -> Path | None:
    """Return the newest complete checkpoint of a run folder or of a folder of checkpoints; None if there is none.

    The newest is the one that was saved last, which after going back to an earlier step is not the one of the highest.
    What is incomplete, cut or foreign is passed over with a line in the log.
    """
    for path, manifest in reversed(_candidates(folder)):
        try:
            check_files(path, manifest)
        except Unusable as reason:
            _pass_over(path, reason)
            continue
        return path
    return None


def describe(folder: Path | str) -> list[Found]:
    """Return all complete checkpoints of a run folder or of a folder of checkpoints, oldest first."""
    return [
        Found(path, manifest.step, manifest.saved, sum(manifest.files.values()), manifest.world_size)
        for path, manifest in complete_in(folder)
    ]


def complete_in(folder: Path | str) -> list[tuple[Path, Manifest]]:
    """Return the complete checkpoints with what they say, oldest first, and without a word about the others."""
    return [each for each in _candidates(folder, aloud=False) if _is_whole(*each)]


def _is_whole(path: Path, manifest: Manifest) -> bool:
    try:
        check_files(path, manifest)
    except Unusable:
        return False
    return True


def look_at(path: Path) -> Manifest:
    """Return what a complete checkpoint says.

    Raises:
        Unusable: It is none.
    """
    manifest = read_manifest(path)
    check_files(path, manifest)
    return manifest


def _candidates(folder: Path | str, *, aloud: bool = True) -> list[tuple[Path, Manifest]]:
    """Return the folders whose ``checkpoint.json`` can be read, oldest first."""
    base = Path(folder).expanduser().absolute()
    base = base / FOLDER if (base / FOLDER).is_dir() else base
    try:
        names = [entry.name for entry in os.scandir(base) if entry.is_dir()]
    except OSError:
        return []
    candidates = []
    for name in sorted(names):
        try:
            candidates.append((base / name, _read(base / name)))
        except Unusable as reason:
            # In a run folder itself there are folders of other things, which are no checkpoints.
            if aloud and (base.name == FOLDER or name.lstrip(".").startswith("step-")):
                _pass_over(base / name, reason)
    return sorted(candidates, key=lambda each: (each[1].number, each[1].step))


def _read(path: Path) -> Manifest:
    if path.name.startswith("."):  # it may be whole, but has not got its name yet, or has lost it to be removed
        raise Unusable("it is being saved or removed, or was when its process ended")
    return read_manifest(path)


def _pass_over(path: Path, reason: Unusable) -> None:
    logger.warning(f"passed over {path}: {reason}")
