"""One save, in the order that leaves a usable checkpoint whatever happens.

    1  all ranks: collect what is to be saved; rank 0: make a hidden folder; all hear whether everybody could
    2  all ranks: their parts into it, fsynced         from here on in a thread, when asynchronous
    3  rank 0: checkpoint.json, and the folder's name
    4  all ranks: hear how it went; rank 0 removes the oldest

A failure before the name is given removes the hidden folder, and every rank has it at the same moment.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ezpz import __version__
from ezpz.checkpoint import optimizers, storage
from ezpz.checkpoint.contents import over_ranks
from ezpz.checkpoint.folder import Draft, begin, discard, prune, seal
from ezpz.checkpoint.layout import current_layout
from ezpz.checkpoint.manifest import Manifest, sizes_of
from ezpz.checkpoint.packing import digest_of
from ezpz.checkpoint.together import raise_first
from ezpz.errors import EzpzError

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.checkpoint.contents import Contents, Fingerprint
    from ezpz.checkpoint.together import Together

__all__ = ["Saving", "prepare_save", "write_save"]


class Saving(NamedTuple):
    """A save under way: its folder, this rank's tensors, and what it will say of itself but for the sizes of files."""

    draft: Draft
    tensors: dict[str, Any]
    manifest: Manifest


class _Said(NamedTuple):
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
    error, draft, found = None, None, None
    try:
        found = _collect(contents)
        draft = _begin(base, step) if together.rank == 0 else None
    except EzpzError as problem:
        error = problem
    has_state = contents.optimizer is not None and optimizers.has_state(contents.optimizer)
    said = together.gather(_Said(error, draft, has_state, digest_of(found[2]) if found else ""))
    if draft is not None and any(each.error for each in said):
        discard(draft.folder)
    raise_first(each.error for each in said)
    agreed = said[0].draft
    if agreed is None or found is None:
        raise AssertionError  # an error was raised in either case
    tensors, fingerprint, objects, random = found
    own_objects = len({each.objects for each in said}) > 1
    rank = f"rank-{together.rank}"
    tensors["random"] = {rank: random}
    if own_objects or together.rank == 0:
        tensors["objects"] = {rank: objects}
    manifest = _describe(contents, over_ranks(fingerprint, together), together)
    optimizer = manifest.optimizer and {**manifest.optimizer, "fresh": not any(each.has_state for each in said)}
    manifest = replace(manifest, step=step, number=agreed.number, own_objects=own_objects, optimizer=optimizer)
    return Saving(agreed, tensors, manifest)


def _collect(contents: Contents) -> tuple[dict[str, Any], Fingerprint, torch.Tensor, torch.Tensor]:
    return (*contents.collect(), contents.objects(), contents.random())


def _begin(base: Path, step: int) -> Draft:
    try:
        return begin(base, step)
    except OSError as error:
        raise _failed(base, error.strerror or str(error)) from error


def _describe(contents: Contents, model: Fingerprint, together: Together) -> Manifest:
    layout = current_layout(together.rank, together.size)
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
        optimizer=optimizer
        and {"kind": optimizers.kind_of(optimizer), "groups": optimizers.describe_groups(optimizer)},
        schedule=type(contents.schedule).__name__ if contents.schedule is not None else "",
        state=sorted(contents.state),
        own_objects=False,
        files={},
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
        storage.write(saving.tensors, draft.folder, together, ahead=ahead)
        error = together.broadcast(_seal(saving) if together.rank == 0 else None)
    except storage.StorageError as problem:  # told to all ranks by torch
        error = _failed(draft.final, str(problem))
    if together.rank == 0:
        if error is None:
            prune(draft.final.parent, keep)
        else:
            discard(draft.folder)
    return error


def _seal(saving: Saving) -> EzpzError | None:
    try:
        files = dict(sizes_of(saving.draft.folder))
        seal(saving.draft, replace(saving.manifest, files=files))
    except OSError as error:
        return _failed(saving.draft.final, error.strerror or str(error))
    return None


def _failed(where: Path, why: str) -> EzpzError:
    return EzpzError(
        f"cannot save {where}: {why}; expected a folder with space that all ranks can write. Earlier checkpoints are as they were; "
        "free space, or choose another folder with `--outdir`."
    )
