"""Choose where a run begins: fresh, at its newest checkpoint, or at the one that was named."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from ezpz.checkpoint.finding import FOLDER, complete_in, find_latest, look_at
from ezpz.checkpoint.manifest import NAME, Unusable, read_manifest
from ezpz.errors import UsageError
from ezpz.log import get_logger

__all__ = ["Choice", "choose"]

logger = get_logger(__name__)


class Choice(NamedTuple):
    """The run's folder, for ``History(outdir=…)``, and the checkpoint to load; None for a new one, and a fresh run."""

    outdir: Path | None
    checkpoint: Path | None


def choose(wish: str, *, name: str, outdir: str | None, root: str = "outputs") -> Choice:
    """Decide where a run begins. Collective after `ezpz.setup_torch`: rank 0 looks, and all ranks get its answer.

    Args:
        wish: "none": a fresh run. "auto": the newest complete checkpoint of ``outdir``, or, where none is given, of the
            runs ``<root>/<name>/*``; a fresh run if there is none. Otherwise a run folder or a checkpoint, which must
            be there.
        name: Name of the run.
        outdir: The run's folder as the user gave it; None for ``<root>/<name>/<time>``.
        root: Folder of all runs.

    Returns:
        The run continues in the folder of its checkpoint, unless ``outdir`` names another.

    Raises:
        UsageError: The path that ``wish`` names is not there or holds no complete checkpoint; on all ranks.
    """
    from ezpz.dist.collectives import broadcast
    from ezpz.dist.job import get_rank

    choice, problem = Choice(None, None), ""
    if get_rank() == 0:
        try:
            choice = _look(
                wish, Path(root).expanduser() / name, Path(outdir).expanduser().absolute() if outdir else None
            )
        except UsageError as error:
            problem = str(error)
    choice, problem = broadcast((choice, problem))
    if problem:
        raise UsageError(problem)
    return choice


def _look(request: str, runs: Path, outdir: Path | None) -> Choice:
    if request == "none":
        return Choice(outdir, None)
    if request == "auto":
        checkpoint = find_latest(outdir) if outdir else _newest_of(runs.absolute())
        if checkpoint is None:
            logger.info(f"no complete checkpoint in {outdir or runs / '*'}: a fresh run")
            return Choice(outdir, None)
    else:
        checkpoint = _named(Path(request).expanduser().absolute(), request)
    return Choice(outdir or _run_of(checkpoint), checkpoint)


def _run_of(checkpoint: Path) -> Path:
    return checkpoint.parent.parent if checkpoint.parent.name == FOLDER else checkpoint.parent


def _newest_of(runs: Path) -> Path | None:
    newest = [path for run in sorted(runs.glob("*/")) if (path := find_latest(run)) is not None]
    return max(newest, key=_when, default=None)


def _when(path: Path) -> float:
    try:
        return datetime.fromisoformat(read_manifest(path).saved).timestamp()
    except (Unusable, ValueError):  # gone meanwhile, or a time that is none
        return 0.0


def _named(path: Path, request: str) -> Path:
    """Return the checkpoint that a path means."""
    if not path.is_dir():
        what = "it is a file" if path.exists() else "there is nothing"
        raise UsageError(
            f"cannot resume from {request!r}: {what}; expected a run folder or a checkpoint. {_near(path)}"
        )
    is_checkpoint = (path / NAME).exists() or path.name.startswith("step-")
    if not is_checkpoint:
        newest = find_latest(path)
        if newest is None:
            raise UsageError(
                f"cannot resume from {request!r}: it holds no complete checkpoint; expected a run folder with "
                f"{FOLDER}/step-*, or a checkpoint. {_near(path)}"
            )
        return newest
    try:
        look_at(path)
    except Unusable as reason:
        raise UsageError(
            f"cannot resume from {request!r}: {reason}; expected a complete checkpoint. {_near(path)}"
        ) from None
    return path


def _near(path: Path) -> str:
    """Say which checkpoints there are nearest to a path."""
    for folder in (path, *path.parents[:3]):
        there = [found for found, _ in complete_in(folder)] if folder.is_dir() else []
        if there:
            digits = "".join(filter(str.isdigit, path.name))
            if path.name.startswith("step-") and digits:
                there.sort(key=lambda found: abs(_step_of(found) - int(digits)))
                return f"The nearest are {' and '.join(map(str, there[:2]))}."
            return f"The newest is {there[-1]}."
    return "Use `--resume auto` for the newest checkpoint that there is."


def _step_of(path: Path) -> int:
    try:
        return read_manifest(path).step
    except Unusable:
        return 0
