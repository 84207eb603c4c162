"""FSDP2: weights, gradients and optimizer state cut over the data-parallel ranks, gathered block by block.

On a 2-D mesh (dp_replicate x shard) it is HSDP: cut inside a host, copied across hosts. FSDP1, the class, is not used:
torch calls it deprecated, and it refuses CPUs.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ezpz.dist.mesh import axis, degree, fsdp_mesh
from ezpz.dist.precision import fsdp_policies, stored_formats
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


# ZeRO-1: every rank keeps all weights, and the optimizer's state for its own share of them.
#
# The model runs under DistributedDataParallel; torch's ZeroRedundancyOptimizer updates a share per rank and sends it to
# the others. The method: Rajbhandari et al., arXiv 1910.02054, stage 1.

_MARK = "_ezpz_strategy"


def mark(model: nn.Module) -> nn.Module:
    """Remember that the optimizer of this model shall be spread over its ranks."""
    setattr(model, _MARK, "zero1")
    return model


def make_optimizer(
    model: nn.Module,
    optimizer_class: type[torch.optim.Optimizer],
    *,
    params: Iterable[Any] | None = None,
    **defaults: Any,
) -> torch.optim.Optimizer:
    """Return an optimizer for a wrapped model.

    Under ``zero1`` it is a ZeroRedundancyOptimizer: before ``state_dict()`` all ranks call
    ``optimizer.consolidate_state_dict(to=0)``, and rank 0 then has the whole state. Under every other strategy it is
    ``optimizer_class`` itself.

    Args:
        model: As `wrap_model` returned it.
        optimizer_class: For example ``torch.optim.AdamW``.
        params: Parameters or parameter groups; by default all trainable ones of the model.
        **defaults: The optimizer's own arguments, such as ``lr``.
    """
    chosen = list(params) if params is not None else [each for each in model.parameters() if each.requires_grad]
    if getattr(model, _MARK, "") != "zero1":
        return optimizer_class(chosen, **defaults)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # Weights become views into one buffer per rank, so that a rank's share is sent as one message instead of many.
    return ZeroRedundancyOptimizer(
        chosen, optimizer_class, process_group=model.process_group, parameters_as_bucket_view=True, **defaults
    )


# DistributedDataParallel with the arguments that fit this rank's device and mesh.


def ddp_options() -> set[str]:
    """Return the keywords of this torch's DistributedDataParallel that a user may pass on."""
    from torch.nn.parallel import DistributedDataParallel

    ours = {"self", "module", "device_ids", "output_device", "dim", "process_group", "device_mesh", "mixed_precision"}
    return set(inspect.signature(DistributedDataParallel.__init__).parameters) - ours


def replicate(model: nn.Module, group: Any, device: torch.device, **options: Any) -> nn.Module:
    """Return the model under DistributedDataParallel; it is on ``device`` already.

    Weights come from the first rank of the group (None: all ranks), and so do constant buffers, once. Gradients are
    views into the buffers that are sent, which saves one copy of them.
    """
    from torch.nn.parallel import DistributedDataParallel

    if not options.keys() & {"broadcast_buffers", "forward_sync_buffers", "init_sync_buffers"}:
        _send_constants_once(model, group)
    options = {"gradient_as_bucket_view": True, **options}
    if "broadcast_buffers" in options and "forward_sync_buffers" in ddp_options():  # the older word warns
        options.setdefault("forward_sync_buffers", options.pop("broadcast_buffers"))
    return DistributedDataParallel(
        model,
        device_ids=None if device.index is None else [device.index],  # cpu and mps have no index, and DDP wants none
        process_group=group,
        **options,
    )


def _send_constants_once(model: nn.Module, group: Any) -> None:
    """Send buffers that no checkpoint holds now, and keep them out of what DDP sends before every forward.

    They follow from the configuration, as tables of positions do. Buffers that a checkpoint holds may be statistics,
    as those of batch norms, which DDP takes from the first rank at every step.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from ezpz.dist.whole_tensors import broadcast

    ignore = getattr(DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model", None)
    named = dict(model.named_buffers(remove_duplicate=False))
    owners = {name.rpartition(".")[0] for name in named}
    held = {name: module._non_persistent_buffers_set for name, module in model.named_modules() if name in owners}  # noqa: SLF001  # torch has no public way to tell them
    state = {id(buffer) for name, buffer in named.items() if not _is_constant(name, held)}
    constants = {name: buffer for name, buffer in named.items() if id(buffer) not in state}
    if ignore is None or not constants:
        return
    source = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    for buffer in {id(each): each for each in constants.values()}.values():
        buffer.copy_(broadcast(buffer, source, group))
    ignore(model, [*getattr(model, "_ddp_params_and_buffers_to_ignore", ()), *constants])


def _is_constant(name: str, held: dict[str, set[str]]) -> bool:
    owner, _, own = name.rpartition(".")
    return own in held.get(owner, set())


def ddp_group(mesh: DeviceMesh | None) -> Any:
    """Return the ranks that average gradients, context-parallel ones included; None is every rank.

    Raises:
        UsageError: The mesh has axes that DDP does not serve.
    """
    if mesh is None:
        return None
    if degree(mesh, "tp") > 1:
        raise UsageError(
            f"strategy='ddp' does not go with tp={degree(mesh, 'tp')}: DistributedDataParallel cannot average "
            "DTensors; expected another strategy. Use strategy='fsdp', which with dp_shard=1 and dp_replicate=-1 "
            "keeps whole copies."
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


def fsdp_options() -> set[str]:
    """Return the keywords of this torch's ``fully_shard`` that a user may pass on."""
    from ezpz.dist.torch_support import fsdp2

    ours = {"module", "mesh", "reshard_after_forward", "mp_policy", "dp_mesh_dims"}
    return set(inspect.signature(fsdp2().fully_shard).parameters) - ours


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    blocks: Sequence[nn.Module],
    dtype: torch.dtype | None,
    *,
    reshard_after_forward: bool | int = True,
    **options: Any,
) -> None:
    """Shard every block and then what is left, in place.

    The last block and the root are kept whole after forward, as torch advises: backward begins with them and would
    gather them at once. With ``reshard_after_forward=False`` every block is kept: more memory, half of the gathering.

    Weights are taken as they are on each rank, and moved to the device block by block, so that no device ever holds the
    whole model. Build it from the same seed on every rank.

    Args:
        model: The model, on any device, or on meta.
        mesh: 1-D, or 2-D with the copies first.
        blocks: Units to gather and free together; none shares a parameter with another.
        dtype: What forward and backward compute in, None for the weights' own; gradients of 16 bits are averaged in
            float32.
        reshard_after_forward: As for torch's ``fully_shard``; a number keeps the weights cut over that many ranks.
        **options: Passed on to ``fully_shard``.
    """
    from ezpz.dist.torch_support import fsdp2, sum_gradients

    fully_shard = fsdp2().fully_shard
    inner, outer = fsdp_policies(dtype, stored_formats(model))
    chosen = {id(block) for block in blocks}
    last = blocks[-1] if blocks else None
    for module in reversed(list(model.modules())):  # what is inside comes first, where a user names nested blocks
        if id(module) in chosen:
            keep = module is last and reshard_after_forward is True
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=inner,
                reshard_after_forward=False if keep else reshard_after_forward,
                **options,
            )
    # Left out, torch keeps the root whole; older versions do so always and do not know the word for it, None.
    root = {} if reshard_after_forward is True else {"reshard_after_forward": reshard_after_forward}
    fully_shard(model, mesh=mesh, mp_policy=outer, **root, **options)
    sum_gradients(model, mesh.device_type)  # where the collective library has no average that can be trusted
    if mesh.ndim == 2:
        _agree_across_copies(model, mesh)


def _agree_across_copies(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give every copy of a shard the first one's numbers: copies that start apart stay apart for ever."""
    import torch
    import torch.distributed as dist

    group = mesh.get_group(0)
    source = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.detach().to_local() if hasattr(parameter, "to_local") else parameter.detach()
            if not local.is_meta:
                sent = local.to(mesh.device_type)  # shards may stay on the CPU (CPUOffloadPolicy)
                dist.broadcast(sent, src=source, group=group)
                if sent is not local:
                    local.copy_(sent)
