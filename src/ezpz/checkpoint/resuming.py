"""Choose where a run begins: fresh, at its newest checkpoint, or at the one that was named."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ezpz.checkpoint.digests import remember_verified, verify_in_ranks
from ezpz.checkpoint.finding import (
    FOLDER,
    complete_in,
    is_folder,
    is_there,
    look_at,
    newest_first,
    pass_over,
    saved_at,
    set_aside,
)
from ezpz.checkpoint.manifest import NAME, Damaged, Manifest, Unusable, read_manifest
from ezpz.errors import UsageError
from ezpz.log import get_logger

__all__ = ["Choice", "choose"]

logger = get_logger(__name__)


class Choice(NamedTuple):
    """The run's folder, for ``History(outdir=…)``, and the checkpoint to load; None for a new one, and a fresh run."""

    outdir: Path | None
    checkpoint: Path | None


def choose(wanted: str, *, name: str, outdir: str | None, root: str = "outputs", verify: bool = True) -> Choice:
    """Decide where a run begins. Collective after `ezpz.setup_torch`: rank 0 looks, and all ranks get its answer.

    The files of the checkpoint are compared with their digests, by all ranks together. Where ``wanted`` leaves the
    choice open, a damaged checkpoint is renamed to ``damaged-<name>``, with a line in the log, and the next newest is
    taken.

    Args:
        wanted: "none": a fresh run. "auto": the newest complete checkpoint of ``outdir``, or, where none is given, of
            the runs ``<root>/<name>/*``; a fresh run if there is none. Otherwise a run folder or a checkpoint, which
            must be there.
        name: Name of the run.
        outdir: The run's folder as the user gave it; None for ``<root>/<name>/<time>``.
        root: Folder of all runs.
        verify: False compares no digests and renames nothing.

    Returns:
        The run continues in the folder of its checkpoint, unless ``outdir`` names another.

    Raises:
        UsageError: The path that ``wanted`` names is not there or holds no complete checkpoint, or is a checkpoint that
            is damaged; on all ranks.
    """
    from ezpz.dist.collectives import broadcast, gather_objects
    from ezpz.dist.job_around import get_rank, get_world_size

    rank, size = get_rank(), get_world_size()
    search = _Search(
        wanted, Path(root).expanduser() / name, Path(outdir).expanduser().absolute() if outdir else None, verify=verify
    )
    while True:
        choice, manifest, problem = broadcast(search.look() if rank == 0 else (Choice(None, None), None, ""))
        if problem:
            raise UsageError(problem).everywhere()
        if choice.checkpoint is None or manifest is None:
            return choice
        damage = verify_in_ranks(choice.checkpoint, manifest, rank=rank, size=size, gather=gather_objects)
        if damage is None:
            remember_verified(choice.checkpoint, manifest)
            return choice
        if search.is_named(choice.checkpoint):
            raise UsageError(_refusal(wanted, damage, choice.checkpoint)).everywhere()
        if rank == 0:
            search.leave_out(choice.checkpoint, damage)


class _Search:
    """Rank 0's search for the checkpoint that ``wanted`` means; what it has left out it does not find again."""

    def __init__(self, wanted: str, runs: Path, outdir: Path | None, *, verify: bool) -> None:
        self._wanted, self._runs, self._outdir, self._verify = wanted, runs, outdir, verify
        self._left_out: set[Path] = set()

    def look(self) -> tuple[Choice, Manifest | None, str]:
        """Return the choice, the manifest if its digests are to be compared, or why there is no choice."""
        try:
            choice = self._choice()
            manifest = read_manifest(choice.checkpoint) if self._verify and choice.checkpoint else None
        except UsageError as error:
            return Choice(None, None), None, str(error)
        except Unusable as reason:  # removed in this moment, by the run that writes there
            return Choice(None, None), None, _refusal(self._wanted, reason)
        return choice, manifest, ""

    def is_named(self, checkpoint: Path) -> bool:
        """Tell whether the user has named this checkpoint itself."""
        return self._wanted not in {"none", "auto"} and Path(self._wanted).expanduser().absolute() == checkpoint

    def leave_out(self, path: Path, reason: Unusable) -> None:
        """Say why a folder is not used, once, and set it aside if it is a damaged checkpoint."""
        if path in self._left_out:
            return
        self._left_out.add(path)
        if self._verify and isinstance(reason, Damaged):
            set_aside(path, reason)
        else:
            pass_over(path, reason)

    def newest_in(self, folder: Path) -> Path | None:
        """Return the newest checkpoint of a run folder that was not left out."""
        found = newest_first(folder, self.leave_out)
        return next((path for path in found if path not in self._left_out), None)

    def _choice(self) -> Choice:
        if self._wanted == "none":
            return Choice(self._outdir, None)
        if self._wanted == "auto":
            checkpoint = self.newest_in(self._outdir) if self._outdir else self._newest_of_runs()
            if checkpoint is None:
                where = self._outdir or self._runs / "*"
                (logger.warning if self._left_out else logger.info)(f"no complete checkpoint in {where}: a fresh run")
                return Choice(self._outdir, None)
        else:
            checkpoint = self._named(Path(self._wanted).expanduser().absolute())
        return Choice(self._outdir or _run_of(checkpoint), checkpoint)

    def _newest_of_runs(self) -> Path | None:
        newest = [self.newest_in(run) for run in sorted(self._runs.absolute().glob("*/"))]
        return max(filter(None, newest), key=saved_at, default=None)

    def _named(self, path: Path) -> Path:
        """Return the checkpoint that a path means; ``step-5`` is ``step-00000005``, as its folder is called."""
        path = _in_full(path)
        if not is_folder(path):
            what = "it is a file" if is_there(path) else "there is nothing"
            raise UsageError(
                f"cannot resume from {self._wanted!r}: {what}; expected a run folder or a checkpoint. {_near(path)}"
            )
        is_checkpoint = is_there(path / NAME) or path.name.startswith("step-")
        if not is_checkpoint:
            newest = self.newest_in(path)
            if newest is None:
                raise UsageError(
                    f"cannot resume from {self._wanted!r}: it holds no complete checkpoint; expected a run folder with "
                    f"{FOLDER}/step-*, or a checkpoint. {_near(path)}"
                )
            return newest
        try:
            look_at(path)
        except Unusable as reason:
            raise UsageError(_refusal(self._wanted, reason, path)) from None
        return path


def _refusal(wanted: str, reason: Unusable, path: Path | None = None) -> str:
    expected = f"cannot resume from {wanted!r}: {reason}; expected a complete checkpoint."
    return f"{expected} {_near(path)}" if path is not None else expected


def _in_full(path: Path) -> Path:
    """Return a path whose step is written without zeros as it is on the disk, if that is there."""
    word, _, digits = path.name.partition("-")
    if word != "step" or not digits.isdecimal() or is_there(path):
        return path
    full = path.with_name(f"step-{int(digits):08d}")
    return full if is_folder(full) else path


def _run_of(checkpoint: Path) -> Path:
    return checkpoint.parent.parent if checkpoint.parent.name == FOLDER else checkpoint.parent


def _near(path: Path) -> str:
    """Say which checkpoints there are nearest to a path."""
    for folder in (path, *path.parents[:3]):
        there = [found for found, _ in complete_in(folder) if found != path] if is_folder(folder) else []
        if there:
            digits = "".join(filter(str.isdigit, path.name))
            if path.name.startswith("step-") and digits:
                there.sort(key=lambda found: abs(_step_of(found) - int(digits)))
                return f"The nearest {'are' if there[1:] else 'is'} {' and '.join(map(str, there[:2]))}."
            return f"The newest is {there[-1]}."
    return "Use `--resume auto` for the newest checkpoint that there is."


def _step_of(path: Path) -> int:
    try:
        return read_manifest(path).step
    except Unusable:
        return 0
