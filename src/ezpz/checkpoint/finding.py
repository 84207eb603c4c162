"""Find the complete checkpoints of a folder, in the order in which they were saved.

Standard library only, so that a command line can ask without loading torch.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ezpz.checkpoint.manifest import Manifest, Unusable, check_files, read_manifest
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "FOLDER",
    "SET_ASIDE",
    "Found",
    "base_of",
    "complete_in",
    "describe",
    "find_latest",
    "folder_of",
    "is_folder",
    "is_there",
    "look_at",
    "newest",
    "newest_first",
    "pass_over",
    "saved_at",
    "set_aside",
]

FOLDER = "checkpoints"  # of a run folder
SET_ASIDE = "damaged-"  # begins the name of a checkpoint that was set aside

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
    What is incomplete, cut or foreign is passed over with a line in the log. Contents are not compared with their
    digests: `choose` does that, and `Checkpoints.load`.
    """
    return next(newest_first(folder, pass_over), None)


def newest(folder: Path | str = "outputs") -> Path | None:
    """Return the newest complete checkpoint of a run, or of all runs below a folder; None if there is none.

    A script that ``launch --attempts`` starts again continues from it. In a folder of runs the time of saving counts.

    Args:
        folder: A run folder, a folder of checkpoints, or one that holds runs: ``outputs``, ``outputs/<name>``.
    """
    base = Path(folder).expanduser().absolute()
    places = [base, *(each for pattern in ("*/", "*/*/") for each in sorted(base.glob(pattern)))]
    found = [path for place in places if place.name != FOLDER or place == base for path in [find_latest(place)] if path]
    return max(found, key=saved_at, default=None)


def saved_at(path: Path) -> float:
    """Return when a checkpoint was saved, in seconds since 1970-01-01 UTC; 0 where it does not say."""
    try:
        return datetime.fromisoformat(read_manifest(path).saved).timestamp()
    except (Unusable, ValueError):  # gone meanwhile, or a time that is none
        return 0.0


def newest_first(folder: Path | str, tell: Callable[[Path, Unusable], None]) -> Iterator[Path]:
    """Yield the complete checkpoints, the one that was saved last first.

    Args:
        folder: A run folder or a folder of checkpoints.
        tell: Is called with each folder on the way that is no complete checkpoint, and the reason.
    """
    for path, manifest in reversed(_candidates(folder, tell)):
        try:
            check_files(path, manifest)
        except Unusable as reason:
            tell(path, reason)
            continue
        yield path


def set_aside(path: Path, reason: Unusable) -> None:
    """Rename a damaged checkpoint so that no run takes it up, where that is possible, and log it."""
    aside, again = path.with_name(f"{SET_ASIDE}{path.name}"), 1
    while aside.exists():
        again += 1
        aside = path.with_name(f"{SET_ASIDE}{path.name}-{again}")
    outcome = f"It was set aside as {aside}"
    try:
        path.rename(aside)
    except OSError as error:
        outcome = f"It keeps its name, because it cannot be renamed: {error.strerror}"
    logger.error(f"{path} is not used: {reason}. {outcome}")


def describe(folder: Path | str) -> list[Found]:
    """Return all complete checkpoints of a run folder or of a folder of checkpoints, oldest first."""
    return [
        Found(path, manifest.step, manifest.saved, sum(manifest.files.values()), manifest.world_size)
        for path, manifest in complete_in(folder)
    ]


def complete_in(folder: Path | str) -> list[tuple[Path, Manifest]]:
    """Return the complete checkpoints with what they say, oldest first, and without a word about the others."""
    return [each for each in _candidates(folder) if _is_whole(*each)]


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


def base_of(folder: Path | str) -> Path:
    """Return the folder of checkpoints that a run folder has, if it has one, else the folder."""
    base = Path(folder).expanduser().absolute()
    return base / FOLDER if is_folder(base / FOLDER) else base


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder; False in one that this user may not enter, where pathlib raises an error."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """Tell whether there is a file or folder; False in a folder that this user may not enter, as `is_folder`."""
    return os.path.exists(path)  # noqa: PTH110


def _candidates(
    folder: Path | str, tell: Callable[[Path, Unusable], None] | None = None
) -> list[tuple[Path, Manifest]]:
    """Return the folders whose ``checkpoint.json`` can be read, oldest first; what was set aside is none of them."""
    base = base_of(folder)
    try:
        names = [entry.name for entry in os.scandir(base) if entry.is_dir() and not entry.name.startswith(SET_ASIDE)]
    except OSError:
        return []
    candidates = []
    for name in sorted(names):
        try:
            candidates.append((base / name, _read(base / name)))
        except Unusable as reason:
            # In a run folder itself there are folders of other things, which are no checkpoints.
            if tell is not None and (base.name == FOLDER or name.lstrip(".").startswith("step-")):
                tell(base / name, reason)
    return sorted(candidates, key=lambda each: (each[1].number, each[1].step))


def _read(path: Path) -> Manifest:
    if path.name.startswith("."):  # it may be whole, but has not got its name yet, or has lost it to be removed
        raise Unusable("it is being saved or removed, or was when its process ended")
    return read_manifest(path)


def pass_over(path: Path, reason: Unusable) -> None:
    """Say that a folder does not count as a checkpoint."""
    logger.warning(f"passed over {path}: {reason}")
