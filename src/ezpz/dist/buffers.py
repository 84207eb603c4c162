"""Give all data-parallel ranks the buffers of the first one, as DistributedDataParallel does before a forward.

A batch norm in training adds to its running statistics what its own rank sees, under FSDP and under DDP alike, and
uses them in evaluation alone. So they are made equal where they count: before an evaluation, and before a checkpoint.
What DDP does before every forward comes to the same, because the first rank's statistics are its own throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ezpz.log import get_logger

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["share_buffers"]

_COPIES = ("dp", "dp_replicate", "dp_shard", "cp")  # dimensions of a mesh along which a model is the same

_told: WeakSet[Any] = WeakSet()  # models of whose batch norms was told


def share_buffers(model: Any) -> None:
    """Give every rank the first data-parallel rank's buffers that a checkpoint holds; collective.

    Args:
        model: Plain or wrapped. One without such buffers of floating point, or of which ranks have different ones, is
            left as it is.
    """
    import torch
    import torch.distributed as dist

    from ezpz.dist.collectives import gather_objects
    from ezpz.dist.whole_tensors import broadcast
    from ezpz.dist.wrapped_models import wrapped

    alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    if alone or dist.get_backend() == "fake" or not isinstance(model, torch.nn.Module):
        return
    how = wrapped(model)
    if how is not None and not how.cuts_data:  # strategy="none": a model per rank
        return
    if any(getattr(model, name, True) is False for name in ("broadcast_buffers", "forward_sync_buffers")):
        return  # DistributedDataParallel was told to leave them alone
    buffers = _held_buffers(model)
    place, groups = _copies(model)
    of_place: dict[Any, set[Any]] = {}
    for where, kinds in gather_objects((place, [(name, str(each.dtype), *each.shape) for name, each in buffers])):
        of_place.setdefault(where, set()).add(tuple(kinds))
    is_alike = all(len(kinds) == 1 for kinds in of_place.values())
    if not is_alike or not groups or not any(each.is_floating_point() for _, each in buffers):
        return
    _tell(model)
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, each in buffers:
        by_device.setdefault(each.device, []).append(each)
    for tensors in by_device.values():
        raw = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in tensors]
        data = torch.cat(raw)  # one message for all of them
        for group in groups:
            data = broadcast(data, dist.get_process_group_ranks(group)[0], group)
        with torch.no_grad():
            for each, part in zip(tensors, data.split([len(one) for one in raw]), strict=True):
                each.copy_(part.clone().view(each.dtype).reshape(each.shape))  # a view begins where its format can


def _held_buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the whole buffers that a checkpoint holds, each once."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in model.named_modules():
        for name, each in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and _is_whole(each):  # noqa: SLF001  # torch has no public way to tell them
                found.setdefault(id(each), (f"{path}.{name}", each))
    return list(found.values())


def _is_whole(buffer: torch.Tensor) -> bool:
    """Tell whether a buffer has its numbers in memory one by one: not a shard, a sparse or an expanded one."""
    import torch

    if hasattr(buffer, "placements") or buffer.layout != torch.strided:
        return False
    return all(step or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True))


def _copies(model: nn.Module) -> tuple[tuple[int, ...], list[Any]]:
    """Return this rank's coordinates in what cuts a model, and the groups along which it is the same, innermost first.

    One message along each of them, from its first rank, brings the first rank's values to all.
    """
    import torch.distributed as dist

    from ezpz.dist.mesh import coordinate
    from ezpz.dist.wrapped_models import mesh_of, wrapped

    own: Any = getattr(model, "process_group", None)
    if own is not None and wrapped(model) is None:  # torch's own DistributedDataParallel, of these ranks
        return (), [own]
    mesh = mesh_of(model)
    if mesh is None:
        return (), [dist.group.WORLD]
    names = mesh.mesh_dim_names or ()
    groups = [mesh[name].get_group() for name in reversed(names) if name in _COPIES and mesh[name].size() > 1]
    return tuple(coordinate(mesh, name) for name in names if name not in _COPIES), groups


def _tell(model: nn.Module) -> None:
    """Say once whose statistics a batch norm has."""
    import torch

    if model in _told:
        return
    _told.add(model)
    kinds = {type(each).__name__ for each in model.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)}  # noqa: SLF001  # the base of all of them
    if kinds - {"SyncBatchNorm"}:
        get_logger(__name__).info(
            f"{' and '.join(sorted(kinds))} takes its statistics from the batches of its own rank; evaluation and "
            "checkpoints take the first rank's. For those of all ranks: "
            "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before wrap_model (on GPUs)."
        )
