"""Rank, size and group of each kind of parallelism, under the names that users of Megatron's kind of code know.

They answer from the mesh of the last `ezpz.init_mesh`; without one, all ranks are data parallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.mesh import axis, coordinate, degree, get_mesh, new_groups
from ezpz.errors import MachineError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "get_context_parallel_group",
    "get_context_parallel_rank",
    "get_context_parallel_world_size",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_pipeline_parallel_group",
    "get_pipeline_parallel_rank",
    "get_pipeline_parallel_world_size",
    "get_tensor_parallel_group",
    "get_tensor_parallel_rank",
    "get_tensor_parallel_world_size",
]

_alone: list[tuple[Any, Any]] = []  # the world and the group of this rank only, made when first asked for


def get_tensor_parallel_rank() -> int:
    """Return this rank's place among those that share its layers, from 0."""
    return coordinate(get_mesh(), "tp")


def get_tensor_parallel_world_size() -> int:
    """Return the number of ranks that share a layer, 1 without tensor parallel."""
    return degree(get_mesh(), "tp")


def get_tensor_parallel_group() -> ProcessGroup:
    """Return the group of the ranks that share this rank's layers; a group of one without tensor parallel."""
    return _group("tp")


def get_data_parallel_rank() -> int:
    """Return this rank's place among those that see different data, from 0: the one that selects its batch."""
    return coordinate(get_mesh(), "dp")


def get_data_parallel_world_size() -> int:
    """Return the number of ranks that see different data."""
    return degree(get_mesh(), "dp")


def get_data_parallel_group() -> ProcessGroup:
    """Return the group of the ranks that see different data; all ranks must ask for it the first time."""
    return _group("dp")


def get_pipeline_parallel_rank() -> int:
    """Return the pipeline stage of this rank, from 0."""
    return coordinate(get_mesh(), "pp")


def get_pipeline_parallel_world_size() -> int:
    """Return the number of pipeline stages, 1 without a pipeline."""
    return degree(get_mesh(), "pp")


def get_pipeline_parallel_group() -> ProcessGroup:
    """Return the group of the ranks that pass one batch on; a group of one without a pipeline."""
    return _group("pp")


def get_context_parallel_rank() -> int:
    """Return this rank's place among those that share a sequence, from 0."""
    return coordinate(get_mesh(), "cp")


def get_context_parallel_world_size() -> int:
    """Return the number of ranks that share a sequence, 1 without context parallel."""
    return degree(get_mesh(), "cp")


def get_context_parallel_group() -> ProcessGroup:
    """Return the group of the ranks that share this rank's sequences; a group of one without context parallel."""
    return _group("cp")


def _group(name: str) -> ProcessGroup:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise MachineError(
            f"there is no {name} group, because this process has no process group (from torch.distributed); expected "
            "one of all ranks. Call `ezpz.setup_torch()` first."
        )
    mesh = get_mesh()
    if mesh is None and name == "dp":
        return dist.group.WORLD
    dimension = axis(mesh, name) if mesh is not None else None
    return dimension.get_group() if dimension is not None else _group_of_one()


def _group_of_one() -> ProcessGroup:
    """Return a group of this rank alone; None would mean the whole world to every collective of torch."""
    import torch.distributed as dist

    world = dist.group.WORLD
    if dist.get_world_size() == 1:
        return world
    if not _alone or _alone[0][0] is not world:
        # Only this rank may be asking, so nothing here may wait for the others.
        with new_groups(split=False) as keep_device:
            group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            keep_device([group])
        _alone[:] = [(world, group)]
    return _alone[0][1]
