"""Return rank, size and group of each kind of parallelism, under the names that users of Megatron's kind of code know.

They answer from the mesh of the last `ezpz.init_mesh`; without one, all ranks are data parallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.mesh import axis, coordinate, degree, get_mesh, new_groups
from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

_alone: list[tuple[Any, Any]] = []  # the world and the group of this rank only, made when first asked for


def _getters(name: str, members: str) -> tuple[Callable[[], int], Callable[[], int], Callable[[], ProcessGroup]]:
    """Return the three questions about one dimension of the mesh.

    Args:
        name: The dimension.
        members: The ranks along it, for the docstrings.
    """

    def rank() -> int:
        return coordinate(get_mesh(), name)

    def world_size() -> int:
        return degree(get_mesh(), name)

    def group() -> ProcessGroup:
        return _group(name)

    rank.__doc__ = f"Return this rank's place among {members}, from 0."
    world_size.__doc__ = f"Return the number of {members}, 1 without them."
    group.__doc__ = (
        f"Return the group of {members}; without them of this rank alone. Those ranks ask together the first time."
    )
    return rank, world_size, group


get_tensor_parallel_rank, get_tensor_parallel_world_size, get_tensor_parallel_group = _getters(
    "tp", "the ranks that share this rank's layers"
)
get_data_parallel_rank, get_data_parallel_world_size, get_data_parallel_group = _getters(
    "dp", "the ranks that see different data"
)
get_pipeline_parallel_rank, get_pipeline_parallel_world_size, get_pipeline_parallel_group = _getters(
    "pp", "the ranks that pass one batch on, a pipeline stage each"
)
get_context_parallel_rank, get_context_parallel_world_size, get_context_parallel_group = _getters(
    "cp", "the ranks that share this rank's sequences"
)


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
