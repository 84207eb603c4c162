"""Look for what model, optimizer, data and mesh would get wrong together without a word: `findings`.

Each part is right by itself, and trains. That ranks average nothing, see the wrong samples or leave weights out shows
only in a loss that is a little worse.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist import all_ranks_agree, coordinate, degree
from ezpz.dist.mesh import axis
from ezpz.dist.wrapped_models import mesh_of, wrapped
from ezpz.errors import UsageError
from ezpz.train.data.prepare import warn_once
from ezpz.train.preparing import refuse_strangers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Finding", "check", "findings"]

ERROR, WARNING = "error", "warning"
_OF_SEQUENCES = ("_context_parallel", "ring_flash_attn", "yunchang", "transformer_engine", "magi_attention")


class Finding(NamedTuple):
    """What does not fit together.

    Attributes:
        kind: "error": what is trained is not what was meant; "warning": that is so unless it is meant so.
        text: What it is, and what to type.
    """

    kind: str
    text: str


def check(model: Any, optimizer: Any = None, loader: Any = None, schedule: Any = None) -> None:
    """Look before the first step at what belongs together; all ranks call it alike, and `Loop` does by itself.

        model, optimizer, loader = ezpz.prepare(model, optimizer, loader)
        ezpz.check(model, optimizer, loader)

    Weights that nothing averages or no optimizer changes, a model per rank, a whole model on every pipeline stage, data
    that are not cut: what would only show in a loss that is a little worse. A warning is a line of rank 0.

    Args:
        model: The model as it is trained.
        optimizer: Its optimizer.
        loader: What batches come from.
        schedule: Of the learning rate.

    Raises:
        UsageError: What is trained is not what was meant.
    """
    if optimizer is not None and not hasattr(model, "is_gradient_accumulation_boundary"):  # DeepSpeed has its own
        refuse_strangers(optimizer, schedule)
    for each in findings(model, optimizer, loader):
        if each.kind == ERROR:
            raise UsageError(each.text)
        warn_once(each.text)


def findings(model: Any, optimizer: Any = None, loader: Any = None, *, mesh: DeviceMesh | None = None) -> list[Finding]:
    """Return what does not fit together, errors first; all ranks call it alike, before the first step.

    Args:
        model: The model as it is trained, wrapped.
        optimizer: Its optimizer, if it is to be looked at.
        loader: What batches come from, if it is to be looked at: a DataLoader of torch, or any other object.
        mesh: By default the model's own.
    """
    mesh = mesh if mesh is not None else mesh_of(model)
    found = [*_of_mesh(model, mesh), *_of_weights(model, optimizer, mesh), *_of_data(loader, mesh)]
    return sorted(found, key=lambda each: each.kind != ERROR)


def _of_mesh(model: Any, mesh: DeviceMesh | None) -> Iterator[Finding]:
    """Look at the model and the axes of the mesh."""
    stages = axis(mesh, "pp") if mesh is not None else None
    if stages is not None and stages.size() > 1 and all_ranks_agree(_digest(model), stages.get_group()):
        yield Finding(
            WARNING,
            f"pp={stages.size()} (from the mesh), and all stages hold the same weights: the whole model is on each, "
            f"they do the same work, and gradient norms are √{stages.size()} times too large; expected a part of the "
            "model per stage. Leave pp= out of init_mesh, or give each rank the layers of its stage.",
        )
    ranks = degree(mesh, "dp") * degree(mesh, "cp") * degree(mesh, "tp")
    if ranks > 1 and _is_grouped() and not _is_shared(model):
        yield Finding(
            ERROR,
            f"{type(model).__name__} is not wrapped: each of {ranks} ranks would train a model of its own, since "
            "nothing averages gradients; expected what wrap_model returns. Type `model = ezpz.wrap_model(model)` "
            'before the optimizer; `wrap_model(model, "none")` is for a model per rank, or averaging of your own.',
        )
    elif degree(mesh, "cp") > 1 and not any(word in name for name in sys.modules for word in _OF_SEQUENCES):
        parts = degree(mesh, "cp")
        yield Finding(
            WARNING,
            f"cp={parts} (from the mesh): {parts} ranks get the same batch and do the same work, unless the model cuts "
            "sequences; expected torch.distributed.tensor.experimental.context_parallel, or attention that does so. "
            "Leave cp= out of init_mesh to train on other samples in place of that.",
        )


def _is_grouped() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _digest(model: Any) -> tuple[Any, ...]:
    """Return names, shapes and sums of this rank's weights; it waits for the device once."""
    import torch

    named = [(name, getattr(each, "_local_tensor", each).detach()) for name, each in model.named_parameters()]
    there = [each for _, each in named if not each.is_meta]
    home = there[0].device if there else None
    sums = [each.double().sum() if home is not None and home.type != "mps" else each.float().sum() for each in there]
    values = torch.stack([each.to(home) for each in sums]).tolist() if sums else []
    return tuple((name, tuple(each.shape)) for name, each in named), tuple(values)


def _is_shared(model: Any) -> bool:
    """Tell whether something lets ranks train one model: ezpz, or whatever else a user has taken for it."""
    if wrapped(model) is not None:
        return True
    wraps = ("no_sync", "set_requires_gradient_sync", "is_gradient_accumulation_boundary")
    if any(hasattr(module, name) for module in model.modules() for name in wraps):
        return True
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of those who average by hand, Horovod among them
    return any(
        hasattr(each, "placements") or any(getattr(each, name, None) for name in hooks) for each in model.parameters()
    )


def _of_weights(model: Any, optimizer: Any, mesh: DeviceMesh | None) -> Iterator[Finding]:
    """Look for weights that are not averaged, or that no optimizer changes."""
    if hasattr(model, "is_gradient_accumulation_boundary"):  # DeepSpeed's engine has its own weights and optimizer
        return
    alone = _never_averaged(model) if degree(mesh, "dp") > 1 and _is_grouped() else ""
    if alone:
        yield Finding(
            ERROR,
            f"{alone} came into the model, or began to be trained, behind wrap_model: every rank changes them in its "
            "own way, since nothing averages their gradients; expected all of them before. Add and thaw weights "
            "first, then call wrap_model, then make the optimizer.",
        )
    held = {id(each) for group in getattr(optimizer, "param_groups", ()) for each in group["params"]}
    if not held:
        return
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    left = [name for name, each in trained.items() if id(each) not in held]
    kind = type(optimizer).__name__
    if trained and len(left) == len(trained):
        is_known = type(optimizer).__module__.partition(".")[0] == "torch"  # others may keep copies of weights
        yield Finding(
            ERROR if is_known else WARNING,
            f"{kind} holds none of the model's weights, so that its steps would train nothing; expected the optimizer "
            "of this model. Make it behind wrap_model: `optimizer = ezpz.make_optimizer(model, …)`.",
        )
        return
    if left:
        yield Finding(
            WARNING,
            f"{_some(left)} of {len(trained)} are in no group of {kind}, and stay as they are, though gradients are "
            "computed for them; expected all that are trained. Make the optimizer behind the last change of the model, "
            "or freeze them: requires_grad_(False).",
        )
    strangers = len(held - {id(each) for each in model.parameters()})
    if strangers and degree(mesh, "dp") > 1:
        yield Finding(
            WARNING,
            f"{strangers} of {len(held)} weights of {kind} are not the model's, and nothing averages their gradients "
            "over ranks; expected the model's alone. Make those of a loss a part of the model before wrap_model; make "
            "the optimizer behind the last change of the model.",
        )


def _never_averaged(model: Any) -> str:
    """Say which weights are trained that DDP or FSDP2 did not see when it wrapped the model; empty if none are."""
    model = getattr(model, "_orig_mod", model)
    how = wrapped(model)
    apart = how.apart if how is not None else frozenset()
    named = {name: each for name, each in model.named_parameters() if each.requires_grad and id(each) not in apart}
    if any(hasattr(module, "set_requires_gradient_sync") for module in model.modules()):
        is_cut = any(hasattr(each, "placements") for each in named.values())  # not by torch's `replicate`
        return _some([name for name, each in named.items() if not hasattr(each, "placements")]) if is_cut else ""
    known = getattr(model, "_module_parameters", None)  # of torch's DistributedDataParallel
    if known is None or not hasattr(model, "_get_ddp_logging_data"):
        return ""
    ignored = {f"module.{name}" for name in getattr(model, "parameters_to_ignore", ())}
    there = {id(each) for each in known}
    trained = {name: each for name, each in named.items() if name not in ignored}
    new = [name for name, each in trained.items() if id(each) not in there]
    thawed = len(trained) - model._get_ddp_logging_data().get("num_parameter_tensors", len(trained))  # noqa: SLF001  # no public way
    return _some(new) or (f"{thawed} of {len(trained)} weights" if thawed > 0 else "")


def _some(names: list[str]) -> str:
    """Return ``3 weights (a, b, …)``, empty for none."""
    if not names:
        return ""
    shown = ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
    return f"{len(names)} weight{'s' * (len(names) != 1)} ({shown})"


def _of_data(loader: Any, mesh: DeviceMesh | None) -> Iterator[Finding]:
    """Look at how a DataLoader of torch, which nobody has prepared, shares out its samples."""
    from torch.utils.data import DataLoader, IterableDataset

    ranks, place = degree(mesh, "dp"), coordinate(mesh, "dp")
    if not isinstance(loader, DataLoader) or not _is_grouped():
        return
    batches = loader.batch_sampler
    sampler = batches if hasattr(batches, "num_replicas") else getattr(batches, "sampler", None) or loader.sampler
    parts, part = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if parts is None and ranks > 1 and not isinstance(loader.dataset, IterableDataset):
        yield Finding(
            WARNING,
            f"the DataLoader is not cut: each of {ranks} ranks goes through all samples; expected a part per "
            "rank. Type `loader = ezpz.prepare(loader)`.",
        )
    elif parts is not None and (parts, part) != (ranks, place):
        yield Finding(
            ERROR,
            f"{type(sampler).__name__} gives this rank part {part} of {parts} (from the DataLoader), and the mesh has "
            f"{ranks} data-parallel places, of which this is number {place}; expected that part. Type `loader = "
            "ezpz.prepare(loader)` with a plain loader, or pass num_replicas=ezpz.degree(mesh, 'dp') and "
            "rank=ezpz.coordinate(mesh, 'dp').",
        )
