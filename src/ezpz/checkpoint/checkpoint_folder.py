"""The files of checkpoints, as rank 0 handles them: begun in a hidden folder, named when complete, removed when too
many.

    checkpoints/.step-00000200.5f3c1a.tmp/    being written, or left behind by a process that was killed
    checkpoints/step-00000100/                complete
    checkpoints/step-00000100-2/              the same step, saved again, for example after going back

A folder gets its name by one rename, which a file system does at once or not at all. Standard library only.
"""

from __future__ import annotations

import os
import shutil
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from ezpz.checkpoint.finding import complete_in, is_folder, is_there
from ezpz.checkpoint.manifest import NAME, Manifest
from ezpz.files import make_closed_folder
from ezpz.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Draft", "begin", "discard", "problem_of", "prune", "seal"]

_PREFIX, _SUFFIX = ".step-", ".tmp"

logger = get_logger(__name__)


class Draft(NamedTuple):
    """A checkpoint that is being written: where, the name that it will have, and its number among the saves."""

    folder: Path
    final: Path
    number: int


def begin(base: Path, step: int) -> Draft:
    """Make the hidden folder for a new checkpoint, and remove those that killed saves have left.

    Raises:
        OSError: The folder cannot be made.
    """
    make_closed_folder(base)
    for left in base.glob(f"{_PREFIX}*{_SUFFIX}"):
        logger.info(f"removing {left}, left behind by a process that ended while it was saving or deleting")
        discard(left)
    number = 1 + max((manifest.number for _, manifest in complete_in(base)), default=0)
    name = f"step-{step:08d}"
    final, again = base / name, 1
    while final.exists():
        again += 1
        final = base / f"{name}-{again}"
    folder = base / f".{final.name}.{token_hex(4)}{_SUFFIX}"
    folder.mkdir(mode=0o770)
    return Draft(folder, final, number)


def seal(draft: Draft, manifest: Manifest) -> None:
    """Write ``checkpoint.json`` and give the folder its name.

    Raises:
        OSError: The disk is full, or the folder cannot be written any more.
    """
    with (draft.folder / NAME).open("wb") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    _sync(draft.folder)  # the names of the files in it
    draft.folder.rename(draft.final)
    _sync(draft.final.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(base: Path, keep: int) -> None:
    """Remove the oldest complete checkpoints beyond the newest ``keep``; 0 keeps all. Trouble is logged."""
    for path, _ in complete_in(base)[:-keep] if keep else []:
        hidden = path.with_name(
            f".{path.name}.{token_hex(4)}{_SUFFIX}"
        )  # a kill in the middle leaves no cut checkpoint
        try:
            path.rename(hidden)
            shutil.rmtree(hidden)
        except OSError as error:
            logger.warning(f"could not remove the old checkpoint {path}: {error.strerror}")


def discard(folder: Path) -> None:
    """Remove a hidden folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def problem_of(base: Path) -> str:
    """Say why nothing can be saved in a folder, which need not be there yet; "" if it looks as if it could."""
    nearest = base
    while not is_there(nearest):
        nearest = nearest.parent
    if not is_folder(nearest):
        return f"{nearest} is a file"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} cannot be written"
