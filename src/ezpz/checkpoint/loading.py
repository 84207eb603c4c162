"""One load: first everything is compared, on all ranks; then everything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.checkpoint import storage
from ezpz.checkpoint.contents import over_ranks
from ezpz.checkpoint.finding import look_at
from ezpz.checkpoint.layout import current_layout
from ezpz.checkpoint.manifest import Unusable
from ezpz.errors import EzpzError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.checkpoint.contents import Contents, Loading
    from ezpz.checkpoint.layout import Layout
    from ezpz.checkpoint.manifest import Manifest
    from ezpz.checkpoint.together import Together

__all__ = ["load"]

logger = get_logger(__name__)


def load(path: Path, contents: Contents, together: Together) -> int:
    """Load a checkpoint and return the steps done; collective. See `Checkpoints.load`."""
    manifest = _look(path, together)
    objection = contents.objection(manifest, over_ranks(contents.fingerprint(), together))
    together.agree(_refusal(path, objection))
    layout = current_layout(together.rank, together.size)
    loading, metadata, problem = None, None, ""
    try:
        metadata = storage.read_metadata(path)
        loading = contents.prepare(manifest, metadata, layout)
        problem = loading.problem
    except storage.StorageError as error:
        problem = str(error)
    try:
        together.agree(_refusal(path, problem))
    except UsageError:
        _undo(loading)
        raise
    if loading is None:
        raise AssertionError(problem)  # it was refused
    try:
        storage.read(loading.tensors, path, metadata, together)
    except storage.StorageError as error:
        raise EzpzError(
            f"cannot load {path}: {error}; expected files as they were written. The model may be changed in part: start again "
            "from another checkpoint."
        ) from error
    contents.apply(loading, layout)
    _tell(path, manifest, layout)
    return manifest.step


def _look(path: Path, together: Together) -> Manifest:
    manifest, error = None, None
    if together.rank == 0:
        try:
            manifest = look_at(path)
        except Unusable as reason:
            error = _refusal(path, _found(path) or str(reason))
    manifest, error = together.broadcast((manifest, error))
    if manifest is None:
        raise UsageError(str(error))
    return manifest


def _found(path: Path) -> str:
    """Say what a path is that is no folder of a checkpoint."""
    if not path.exists():
        return "there is nothing"
    if not path.is_dir():
        return "it is a file"
    names = sorted(each.name for each in path.iterdir())
    if "checkpoint.json" in names:
        return ""
    return f"it holds {', '.join(names[:4])}{', …' if len(names) > 4 else ''}" if names else "the folder is empty"


def _refusal(path: Path, problem: str) -> UsageError | None:
    if not problem:
        return None
    return UsageError(
        f"cannot load {path}: {problem}; expected a complete checkpoint of this model. `--resume auto` takes the newest, "
        "`--resume none` starts afresh."
    )


def _undo(loading: Loading | None) -> None:
    if loading is not None and loading.optimizer is not None:
        loading.optimizer.undo()


def _tell(path: Path, manifest: Manifest, layout: Layout) -> None:
    logger.info(f"loaded {path}: step {manifest.step}, saved {manifest.saved}")
    if layout.is_that_of(manifest):
        return
    before, now = (
        f"{size} ranks {mesh or ''}".strip()
        for size, mesh in (
            (manifest.world_size, manifest.mesh),
            (layout.world_size, layout.mesh),
        )
    )
    logger.info(
        f"saved by {before}, loaded by {now}: each rank goes on with the random numbers of the first rank that had its data-parallel "
        "place; places that there were not draw new ones, derived from rank 0's"
    )
