"""Set how long a collective may take before it fails.

The first step is slow on purpose: kernels are compiled, connections are made, files are read for the first time. After
it a collective that waits for minutes waits for a rank that is gone, and a shorter time-out says so sooner.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ezpz.dist.mesh import get_mesh
from ezpz.errors import UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def set_timeout(seconds: float) -> bool:
    """Let the collectives of the default group and of the mesh's groups fail after so many seconds; all ranks call it.

    It waits until all ranks have come, so that none still takes the longer time that it was given before. Groups that
    were made for other things, such as writing checkpoints, keep theirs.

    Returns:
        Whether every backend took it; those that cannot are named in the log.

    Raises:
        UsageError: The time is not positive.
    """
    import torch.distributed as dist

    if seconds <= 0:
        raise UsageError(f"unusable time-out of {seconds} seconds (from set_timeout); expected a positive number.")
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return True
    from ezpz.dist.accelerator import synchronize
    from ezpz.dist.collectives import barrier

    synchronize()
    barrier()
    refused = {name for group in _groups() for name in _set(group, timedelta(seconds=seconds))}
    if refused:
        get_logger(__name__).info(
            f"the time-out of collectives stays as it is for {', '.join(sorted(refused))}: no such setting"
        )
    return not refused


def _groups() -> list[ProcessGroup]:
    import torch.distributed as dist

    mesh = get_mesh()
    groups = [dist.group.WORLD, *(mesh.get_all_groups() if mesh is not None else [])]
    return list({id(group): group for group in groups}.values())


def _set(group: Any, timeout: timedelta) -> list[str]:
    """Set the time-out of a group's backends; return the names of those that have none."""
    import torch

    refused = []
    for pair in _backends(group):
        device, _, name = pair.partition(":")
        try:
            # torch's own function knows nccl and gloo only, and warns of others.
            group._get_backend(torch.device(device))._set_default_timeout(timeout)  # noqa: SLF001  # no public way
        except (AttributeError, RuntimeError, NotImplementedError):
            refused.append(name)
    return refused


def _backends(group: Any) -> list[str]:
    """Return ``["cpu:gloo", "cuda:nccl"]``."""
    import torch.distributed as dist

    return [str(pair) for pair in dist.get_backend_config(group).split(",")]
