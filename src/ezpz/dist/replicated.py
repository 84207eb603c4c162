"""DistributedDataParallel with the arguments that fit this rank's device and mesh."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ezpz.dist.mesh import axis, degree, fsdp_mesh
from ezpz.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ddp_group", "ddp_options", "replicate"]


def ddp_options() -> set[str]:
    """Return the keywords of this torch's DistributedDataParallel that a user may pass on."""
    from torch.nn.parallel import DistributedDataParallel

    ours = {"self", "module", "device_ids", "output_device", "dim", "process_group", "device_mesh", "mixed_precision"}
    return set(inspect.signature(DistributedDataParallel.__init__).parameters) - ours


def replicate(model: nn.Module, group: Any, device: torch.device, **options: Any) -> nn.Module:
    """Return the model under DistributedDataParallel; it is on ``device`` already.

    Weights come from the first rank of the group (None: all ranks). Gradients are views into the buffers that are sent,
    which saves one copy of them.
    """
    from torch.nn.parallel import DistributedDataParallel

    options = {"gradient_as_bucket_view": True, **options}
    return DistributedDataParallel(
        model,
        device_ids=None if device.index is None else [device.index],  # cpu and mps have no index, and DDP wants none
        process_group=group,
        **options,
    )


def ddp_group(mesh: DeviceMesh | None) -> Any:
    """Return the ranks that average gradients, context-parallel ones included; None is every rank.

    Raises:
        UsageError: The mesh has axes that DDP does not serve.
    """
    if mesh is None:
        return None
    if degree(mesh, "tp") > 1:
        raise UsageError(
            f"strategy='ddp' does not go with tp={degree(mesh, 'tp')}: DistributedDataParallel cannot average DTensors; "
            "expected another strategy. Use strategy='fsdp', which with dp_shard=1 and dp_replicate=-1 keeps whole copies."
        )
    if degree(mesh, "pp") == 1:
        return None
    sharded = fsdp_mesh(mesh)
    if sharded.ndim == 1:
        return sharded.get_group()
    if degree(mesh, "cp") == 1:
        both = axis(mesh, "dp")
        return both.get_group() if both is not None else None
    raise UsageError(
        "strategy='ddp' does not go with pp, cp and dp_replicate together: no single group averages them; "
        "expected another strategy. Use strategy='hsdp'."
    )
