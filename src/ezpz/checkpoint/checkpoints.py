"""`Checkpoints`: the checkpoints of one run, saved and loaded by all ranks together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ezpz import __version__
from ezpz.checkpoint import optimizers, storage
from ezpz.checkpoint.checkpoint_folder import Draft, begin, discard, problem_of, prune, seal
from ezpz.checkpoint.contents import Contents, differing, over_ranks, staged
from ezpz.checkpoint.digests import verify_in_ranks, was_just_verified
from ezpz.checkpoint.finding import complete_in, folder_of, is_folder, is_there, look_at
from ezpz.checkpoint.layout import current_layout
from ezpz.checkpoint.manifest import Manifest, Unusable
from ezpz.checkpoint.owner import claim
from ezpz.checkpoint.packing import NotPlainError, digest_of
from ezpz.checkpoint.several import as_one, holds, kind_of, models_in
from ezpz.checkpoint.small_collectives import Together, raise_first
from ezpz.dist.buffers import share_buffers
from ezpz.errors import EzpzError, UsageError
from ezpz.fields import replace
from ezpz.log import get_logger
from ezpz.progress import counted, patience
from ezpz.save_requests import saved

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from torch import nn

    from ezpz.checkpoint.contents import Averaging, Fingerprint, Loading, Stateful
    from ezpz.checkpoint.layout import Layout
    from ezpz.checkpoint.manifest import WrittenFile


# One load: first everything is compared, on all ranks; then everything is changed.


def load(path: Path, contents: Contents, together: Together, *, verify: bool) -> int:
    """Load a checkpoint and return the steps done; collective. See `Checkpoints.load`."""
    manifest = _look(path, together)
    objection = contents.objection(manifest, over_ranks(contents.fingerprint(), together))
    together.agree(_refusal(path, objection))
    is_known = together.broadcast(was_just_verified(path, manifest))
    if verify and not is_known:
        damage = verify_in_ranks(path, manifest, rank=together.rank, size=together.size, gather=together.gather)
        if damage is not None:
            raise UsageError(_damage(path, damage))
    is_sound = bool(manifest.sha256) and (verify or is_known)
    layout = current_layout(together.rank, together.size, contents.model)
    loading, metadata, problem = None, None, ""
    try:
        metadata = storage.read_metadata(path)
        loading = contents.prepare(manifest, metadata, layout)
        problem = loading.problem
    except storage.StorageError as error:
        problem = str(error)
    except Exception as error:  # damaged bytes can lead to any error; of sound ones it is a mistake of the program
        if is_sound:
            raise
        problem = f".metadata is damaged, it seems: {_in_words(error)}"
    try:
        together.agree(_refusal(path, problem))
        together.agree(_refusal(path, _tied_otherwise(contents, path, metadata, together)))
    except UsageError:
        _undo(loading)
        raise
    if loading is None:
        raise AssertionError(problem)  # it was refused
    try:
        storage.read(loading.tensors, path, metadata, together)
        remarks = contents.apply(loading, layout, manifest)
    except NotPlainError as error:
        raise EzpzError(_half_loaded(path, f"{storage.files_of(metadata, error.path)}: {error}")) from None
    except Exception as error:  # as above
        if is_sound and not isinstance(error, storage.StorageError):
            raise
        problem = str(error) if isinstance(error, storage.StorageError) else _in_words(error)
        raise EzpzError(_half_loaded(path, problem)) from error
    _tell(path, manifest, layout, remarks)
    return manifest.step


def _half_loaded(path: Path, problem: str) -> str:
    return (
        f"cannot load {path}: {problem}; expected files as they were written. The model may be changed in part: "
        "start again from another checkpoint."
    )


def _tied_otherwise(contents: Contents, path: Path, metadata: Any, together: Together) -> str:
    """Say which weights of a checkpoint would end up in one tensor although they differ; collective."""
    tied = sorted({names for each in together.gather(contents.tied()) for names in each})
    if not tied:
        return ""
    scratch = contents.scratch(name for names in tied for name in names)
    try:
        storage.read({"model": scratch}, path, metadata, together)
    except storage.StorageError as error:
        return str(error)
    return differing(tied, scratch)


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
    if not is_folder(path):
        return "it is a file" if is_there(path) else "there is nothing"
    try:
        names = sorted(each.name for each in path.iterdir())
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if "checkpoint.json" in names:
        return ""
    return f"it holds {', '.join(names[:4])}{', …' if len(names) > 4 else ''}" if names else "the folder is empty"


def _refusal(path: Path, problem: str) -> UsageError | None:
    if not problem:
        return None
    return UsageError(
        f"cannot load {path}: {problem}; expected a complete checkpoint of this model. `--resume auto` takes the "
        "newest, `--resume none` starts afresh."
    )


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _damage(path: Path, problem: Unusable) -> str:
    return (
        f"cannot load {path}: {problem}; expected files as they were written. Nothing was loaded. `--resume auto` "
        "takes the newest checkpoint that is sound; `--no_verify`, or Checkpoints(verify=False), loads this one all "
        "the same."
    )


def _undo(loading: Loading | None) -> None:
    if loading is not None and loading.optimizer is not None:
        loading.optimizer.undo()


def _tell(path: Path, manifest: Manifest, layout: Layout, remarks: list[str]) -> None:
    logger.info(f"loaded {path}: step {manifest.step}, saved {manifest.saved}")
    for remark in remarks:
        logger.warning(f"{path}: {remark}")
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
        f"saved by {before}, loaded by {now}: each rank continues with the random numbers of the first rank that had "
        "its data-parallel place; places that there were not draw new ones, derived from rank 0's"
    )


# One save, in the order that leaves a usable checkpoint whatever happens.
#
# 1  all ranks: collect what is to be saved; rank 0: make a hidden folder, unless another run saves there; all hear
#    whether everybody could
# 2  all ranks: their parts into it, fsynced         from here on in a thread, when asynchronous
# 3  rank 0: checkpoint.json, and the folder's name
# 4  all ranks: hear how it went; rank 0 removes the oldest
#
# A failure before the name is given removes the hidden folder, and every rank has it at the same moment.


class Saving(NamedTuple):
    """A save under way: its folder, this rank's tensors, and what it will say of itself but for the sizes of files.

    The metadata of the first one of a process are read back, so that no run works for days without a checkpoint that
    this Python and this torch can load.
    """

    draft: Draft
    tensors: dict[str, Any]
    manifest: Manifest
    is_read_back: bool = False


class _Report(NamedTuple):
    """What every rank tells the others first."""

    error: EzpzError | None
    draft: Draft | None  # of rank 0
    has_state: bool
    objects: str


def prepare_save(contents: Contents, together: Together, base: Path, step: int) -> Saving:
    """Do step 1; collective. The tensors are the live ones.

    Raises:
        UsageError: An object's state cannot be saved; on all ranks.
        EzpzError: The folder cannot be made; on all ranks.
    """
    error, draft, collected = None, None, None
    for each in models_in(contents.model):
        share_buffers(each)
    try:
        collected = _collect(contents)
        draft = _begin(base, step) if together.rank == 0 else None
    except EzpzError as problem:
        error = problem
    has_state = contents.optimizer is not None and optimizers.has_state(contents.optimizer)
    reports = together.gather(_Report(error, draft, has_state, digest_of(collected[2]) if collected else ""))
    if draft is not None and any(each.error for each in reports):
        discard(draft.folder)
    raise_first(each.error for each in reports)
    agreed = reports[0].draft
    if agreed is None or collected is None:
        raise AssertionError  # an error was raised in either case
    tensors, fingerprint, objects, random = collected
    own_objects = len({each.objects for each in reports}) > 1
    rank = f"rank-{together.rank}"
    tensors["random"] = {rank: random}
    if own_objects or together.rank == 0:
        tensors["objects"] = {rank: objects}
    manifest = _describe(contents, over_ranks(fingerprint, together), together)
    optimizer = manifest.optimizer and {**manifest.optimizer, "fresh": not any(each.has_state for each in reports)}
    manifest = replace(manifest, step=step, number=agreed.number, own_objects=own_objects, optimizer=optimizer)
    return Saving(agreed, tensors, manifest)


def _collect(contents: Contents) -> tuple[dict[str, Any], Fingerprint, torch.Tensor, torch.Tensor]:
    return (*contents.collect(), contents.objects(), contents.random())


def _begin(base: Path, step: int) -> Draft:
    try:
        claim(base)
        return begin(base, step)
    except OSError as error:
        raise _failed(base, error.strerror or str(error)) from error


def _describe(contents: Contents, model: Fingerprint, together: Together) -> Manifest:
    layout = current_layout(together.rank, together.size, contents.model)
    optimizer = contents.optimizer
    return Manifest(
        step=0,
        number=0,
        saved=datetime.now().astimezone().isoformat(timespec="seconds"),
        world_size=together.size,
        mesh=layout.mesh,
        torch=str(torch.__version__),
        ezpz=__version__,
        model=model,
        optimizer=None
        if optimizer is None
        else {
            "kind": optimizers.kind_of(optimizer),
            "groups": optimizers.describe_groups(optimizer),
            "rates": optimizers.rates(optimizer),
        },
        schedule=kind_of(contents.schedule) if contents.schedule is not None else "",
        state=sorted(contents.state),
        own_objects=False,
        files={},
        sha256={},
    )


def write_save(saving: Saving, together: Together, keep: int, *, ahead: bool) -> EzpzError | None:
    """Do steps 2 to 4; collective over the ranks' own group, in any thread.

    Args:
        saving: From `prepare_save`; an asynchronous one with copies of the tensors.
        together: The ranks.
        keep: How many checkpoints to keep.
        ahead: See `ezpz.checkpoint.storage.write`.

    Returns:
        Why it failed, the same on all ranks; None when the checkpoint is complete.
    """
    draft, error = saving.draft, None
    try:
        written = storage.write(saving.tensors, draft.folder, together, ahead=ahead)
        error = together.broadcast(_seal(saving, written) if together.rank == 0 else None)
    except storage.StorageError as problem:  # torch gives it to all ranks
        error = _failed(draft.final, str(problem))
    except (OSError, RuntimeError) as lost:  # gloo's word for a rank that is gone
        error = EzpzError(
            f"cannot save {draft.final}: {_in_words(lost).partition('. ')[0]}; expected all ranks to be there. Look "
            "for the rank that ended first."
        )
    if together.rank == 0:
        if error is None:
            prune(draft.final.parent, keep)
        else:
            discard(draft.folder)
    return error


def _seal(saving: Saving, written: Mapping[str, WrittenFile]) -> EzpzError | None:
    files = {name: file.size for name, file in sorted(written.items())}
    digests = {name: written[name].sha256 for name in files}
    try:
        if saving.is_read_back:
            storage.read_metadata(saving.draft.folder)
        seal(saving.draft, replace(saving.manifest, files=files, sha256=digests))
    except OSError as error:
        return _failed(saving.draft.final, error.strerror or str(error))
    except storage.StorageError as error:
        return _failed(saving.draft.final, f"it was written and cannot be read again ({error})")
    return None


def _failed(where: Path, why: str) -> EzpzError:
    return EzpzError(
        f"cannot save {where}: {why}; expected a folder with space that all ranks can write. Earlier checkpoints are "
        "as they were; free space, or choose another folder with `--outdir`."
    )


__all__ = ["Checkpoints"]

logger = get_logger(__name__)

_TIMEOUT = 1800.0  # seconds without a heartbeat that a save may take under `launch --idle-timeout`


class Checkpoints:
    """The checkpoints of one run. All ranks make it, and call its methods, together.

    In a simulated world (`ezpz simulate`) nothing is saved, and nothing can be loaded.

    Attributes:
        folder: Where they are.
    """

    def __init__(
        self,
        folder: Path | str | None,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None = None,
        schedule: Stateful | Mapping[str, Stateful] | None = None,
        state: Mapping[str, Stateful] | None = None,
        ema: Averaging | None = None,
        keep: int = 3,
        asynchronous: bool = False,
        verify: bool = True,
    ) -> None:
        """Remember what is to be saved, and make a group for the ranks' messages; nothing is written yet.

        Args:
            folder: The run's folder, whose ``checkpoints`` is used, or a folder of that name. Rank 0's counts.
            model: Plain, or as `ezpz.wrap_model` returned it; or several by words of yours, such as a generator and a
                critic, or a student and its teacher. No two of them may share weights.
            optimizer: As `ezpz.make_optimizer` or torch returned it; or several by words, which need not be those of
                the models.
            schedule: Of the learning rate; or several by words.
            state: Further objects with ``state_dict`` and ``load_state_dict``, by name.
            ema: An `ezpz.train.EMA` of the model, or of one of several.
            keep: How many checkpoints to keep; 0 keeps all.
            asynchronous: Copy to the CPU's memory, and write while the training continues.
            verify: Whether `load` compares files with their digests first; they are saved in either case.

        Raises:
            UsageError: ``keep`` is negative, or rank 0 gave no folder, or one that cannot be written; on all ranks. A
                word cannot be a name, or two optimizers hold the same weights.
        """
        one = [as_one("model", model), as_one("optimizer", optimizer), as_one("schedule", schedule)]
        self._together = Together()
        self._contents = Contents(one[0], one[1], one[2], dict(state or {}), _device_type(one[0]), set())
        self._contents = self._contents._replace(ema=_average_of(one[0], ema))
        self._keep, self._asynchronous, self._verify = keep, asynchronous, verify
        self._pending: tuple[Future[EzpzError | None], Path] | None = None
        self._error: EzpzError | None = None  # of the last save
        start: tuple[Path | None, Path | None, str] = (None, None, "")
        if self._together.is_simulated:
            start = folder_of(folder or "."), None, ""
        elif self._together.rank == 0:
            start = _look_around(folder, keep)
        base, self._latest, problem = self._together.broadcast(start)
        if base is None:
            raise UsageError(problem)
        self.folder = base
        self._foreign = self._latest if keep else None  # of an earlier run, until this one loads or saves

    def include(self, name: str, stateful: Stateful, *, optional: bool = False) -> None:
        """Save and load a further object from now on, as if it had been given as ``state``.

        Args:
            name: Not used yet.
            stateful: Has ``state_dict`` and ``load_state_dict``.
            optional: Load checkpoints that lack it, too, and leave it as it is then.

        Raises:
            UsageError: The name is taken.
        """
        if name in self._contents.state:
            raise UsageError(
                f"two objects are called {name!r} (from Checkpoints); expected one. Rename yours in `state=`."
            )
        self._contents.state[name] = stateful
        if optional:
            self._contents.optional.add(name)

    def complete(self, *, optimizer: Any = None, schedule: Any = None, ema: Any = None) -> None:
        """Save and load these too, where none were given: `ezpz.train.Loop` calls it with its own.

        Checkpoints that lack them load all the same, with a line that says what begins anew.

        Args:
            optimizer: Of torch; another kind, as DeepSpeed's, is not saved, and a line says so.
            schedule: Likewise, one with ``state_dict`` and ``load_state_dict``.
            ema: An `ezpz.train.EMA`.

        Raises:
            UsageError: This saves another optimizer or schedule.
        """
        if ema is not None and self._contents.ema is None:
            self._contents = self._contents._replace(ema=_average_of(self._contents.model, ema))
        contents = self._contents
        can = {
            "optimizer": isinstance(optimizer, torch.optim.Optimizer),
            "schedule": hasattr(schedule, "state_dict") and hasattr(schedule, "load_state_dict"),
        }
        for what, given, own in (
            ("optimizer", optimizer, contents.optimizer),
            ("schedule", schedule, contents.schedule),
            ("ema", ema, contents.ema),
        ):
            if given is None or holds(own, given):
                continue
            if own is not None:
                raise UsageError(
                    f"Checkpoints saves another {what} ({kind_of(own)}) than the one that Loop uses "
                    f"({type(given).__name__}); expected the same object. Leave {what}= out of Checkpoints(…), which "
                    "takes the loop's."
                )
            if can[what]:
                self._contents = self._contents._replace(**{what: given}, completed=self._contents.completed | {what})
            else:
                logger.warning(f"checkpoints hold no {what}: {type(given).__name__} is none that they can save")

    def claim(self) -> None:
        """Refuse at once where another run saves into the folder, which the first save would find; collective.

        Raises:
            UsageError: Another process, or another job, saves there.
            EzpzError: The folder cannot be written.
        """
        error = None
        if self._together.rank == 0 and not self._together.is_simulated:
            try:
                claim(self.folder)
            except EzpzError as problem:
                error = problem
            except OSError as problem:
                error = _failed(self.folder, problem.strerror or str(problem))
        self._together.agree(error)

    @property
    def latest(self) -> Path | None:
        """The newest complete checkpoint in the folder that this object knows; reads no disk, waits for nothing."""
        if self._pending is not None and self._pending[0].done():
            future, path = self._pending
            if future.exception() is None and future.result() is None:
                return path
        return self._latest

    def save(self, step: int, *, wait: bool = False) -> Path:
        """Save everything; collective. An asynchronous save that is still under way is finished first.

        Args:
            step: Number of steps done.
            wait: Return when the checkpoint is complete, also where saves are asynchronous.

        Returns:
            The checkpoint's folder; after an asynchronous save it appears later.

        Raises:
            EzpzError: It cannot be written: no space, a folder that cannot be written; on all ranks. Earlier
                checkpoints are as they were. If an earlier asynchronous save failed, that is one line in the log and no
                error here.
            UsageError: An object's state holds what cannot be loaded again.
        """
        if self._together.is_simulated:
            logger.info("nothing is saved: the world is a simulated one")
            return self.folder
        with patience("checkpoint", _TIMEOUT):
            return self._save(step, wait=wait)

    def wait(self) -> None:
        """Finish an asynchronous save; collective. Call it before the program ends.

        Raises:
            EzpzError: The last save failed; on all ranks. It is raised once.
        """
        with patience("checkpoint", _TIMEOUT):
            self._finish()
        self._raise()

    def load(self, path: Path | str) -> int:
        """Load model, optimizer, schedule, objects and random numbers; collective.

        Any number of ranks, mesh and strategy may load what others have saved. Everything is compared before anything
        is changed.

        Args:
            path: A checkpoint, such as `find_latest` and `choose` return. Without your own optimizer only
                weights are taken from it, and likewise for the schedule and other objects.

        Returns:
            The number of steps done.

        Raises:
            UsageError: The path is no complete checkpoint, one whose files are not as they were written, or one of
                another model, optimizer or schedule; on all ranks.
            EzpzError: A file cannot be read, or digests were not compared and one is damaged. The model may be changed
                in part then.
        """
        if self._together.is_simulated:
            raise UsageError(
                f"cannot load {path}: the world is a simulated one; expected real ranks. Leave `--resume` out of a "
                "simulation."
            )
        with counted("load"):
            return self._load(Path(path).expanduser().absolute())

    def _load(self, path: Path) -> int:
        self._finish()
        self._report()
        step = load(path, self._contents, self._together, verify=self._verify)
        self._foreign = None
        return step

    def _save(self, step: int, *, wait: bool) -> Path:
        began = monotonic()
        self._finish()
        self._report()
        saving = prepare_save(self._contents, self._together, self.folder, step)
        saving = saving._replace(is_read_back=self._latest is None)
        self._warn_of_foreign()
        final = saving.draft.final
        if self._asynchronous and not wait:
            saving = saving._replace(tensors=staged(saving.tensors))
            executor = ThreadPoolExecutor(1, thread_name_prefix="ezpz-checkpoint")
            self._pending = executor.submit(write_save, saving, self._together, self._keep, ahead=False), final
            self._pending[0].add_done_callback(lambda future: _tell_launcher(future, began, step))
            executor.shutdown(wait=False)  # the thread ends with its work
            return final
        self._settle(write_save(saving, self._together, self._keep, ahead=True), final)
        self._raise()
        saved(monotonic() - began, step)
        return final

    def _warn_of_foreign(self) -> None:
        """Say once that a run that has loaded nothing will remove the checkpoints of an earlier one."""
        foreign, self._foreign = self._foreign, None
        if foreign is not None and self._together.rank == 0:
            logger.warning(
                f"{foreign} is of an earlier run, which this one did not continue, and keep={self._keep} removes it as "
                'more are saved; expected a folder of its own. Continue it with `choose("auto", …)` and `load`, or '
                "`--resume auto`; or save in another folder."
            )

    def _finish(self) -> None:
        """Wait for the asynchronous save, if there is one."""
        if self._pending is None:
            return
        (future, path), self._pending = self._pending, None
        self._settle(future.result(), path)

    def _settle(self, error: EzpzError | None, path: Path) -> None:
        self._error = error
        if error is None:
            self._latest = path

    def _report(self) -> None:
        """Say in one line that an asynchronous save has failed."""
        error, self._error = self._error, None
        if error is not None and self._together.rank == 0:
            logger.error(f"an asynchronous save has failed, and the training continues: {error}")

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _tell_launcher(save: Future[EzpzError | None], began: float, step: int) -> None:
    """Tell the launcher how long an asynchronous save took, if it is complete."""
    if save.exception() is None and save.result() is None:
        saved(monotonic() - began, step)


def _look_around(folder: Path | str | None, keep: int) -> tuple[Path | None, Path | None, str]:
    """Return the folder of checkpoints and the newest one in it, or what is wrong."""
    if keep < 0:
        return None, None, f"keep={keep} (from Checkpoints) keeps nothing; expected 1 or more, or 0 to keep all."
    if folder is None:
        return (
            None,
            None,
            "no folder for checkpoints (from Checkpoints on rank 0); expected one. Give it the run's folder.",
        )
    base = folder_of(folder)
    problem = problem_of(base)
    if problem:
        return (
            None,
            None,
            (
                f"cannot save in {base}: {problem} (from Checkpoints); expected a folder that can be written. Choose "
                "another with `--outdir`."
            ),
        )
    there = complete_in(base)
    return base, there[-1][0] if there else None, ""


def _average_of(model: nn.Module, ema: Averaging | None) -> Averaging | None:
    """Return an average that is one of these weights.

    Raises:
        UsageError: It is one of others.
    """
    if ema is not None and not any(ema.model is each for each in models_in(model)):
        raise UsageError(
            "ema= averages another model than the one that is saved (from Checkpoints); expected the same object. Make "
            "it behind wrap_model: `ema = ezpz.train.EMA(model)`."
        )
    return ema


def _device_type(model: nn.Module) -> str:
    return next((parameter.device.type for parameter in model.parameters()), "cpu")
