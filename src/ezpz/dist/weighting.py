"""Scale a loss to the mean over all tokens of all ranks, also where ranks hold different numbers of them.

DDP and FSDP average gradients over ranks. If each rank takes the mean of its own tokens, a rank with few tokens counts
as much as one with many: 10 sequences over 4 ranks are not the batch of 10 any more. The remedy is to give each rank

    (sum of its token losses) x (number of ranks) / (number of tokens on all ranks)

whose average over ranks is the sum of all token losses by the number of all tokens.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ezpz.dist.wrapped_models import gradients_are_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


weighed = 0  # calls of scale_loss: who weighs by counts of their own is told nothing of weights


# Gradient accumulation: gradients of several micro-batches add up locally and are averaged over ranks once.


@contextmanager
def accumulating(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Keep gradients local until the last micro-batch of a step; works under every strategy.

        for index, (x, y) in enumerate(micro_batches):
            with ezpz.dist.accumulating(model, last=index == len(micro_batches) - 1):
                (loss_of(model(x), y) / len(micro_batches)).backward()
        optimizer.step()

    Args:
        model: As `wrap_model` returned it.
        last: Whether this micro-batch is the step's last, so that gradients are exchanged during its backward.
    """
    is_shared = hasattr(model, "set_requires_gradient_sync") or hasattr(model, "no_sync")
    if is_shared and not last:
        gradients_are_local(model, are_local=True)
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
        model.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    elif hasattr(model, "no_sync") and not last:  # DDP reads its switch in forward, so that forward belongs inside
        with model.no_sync():
            yield
    else:
        yield
    if is_shared and last:
        gradients_are_local(model, are_local=False)


def scale_loss(loss_sum: torch.Tensor, count: float | torch.Tensor, mesh: DeviceMesh | None = None) -> Any:
    """Return the loss whose gradients, averaged over ranks, are those of the global mean.

    Costs one all_reduce of one number (two under HSDP) and waits for no device. With gradient accumulation, give each
    micro-batch the ``count`` of the whole step of this rank.

    Args:
        loss_sum: Sum of the losses of this rank's tokens or samples, a 0-d tensor that backward starts from; 0 for
            none.
        count: How many they are.
        mesh: The mesh of the wrapped model; by default that of the model wrapped last.

    Returns:
        A 0-d tensor. Its mean over data-parallel ranks is the global mean loss.
    """
    import torch
    import torch.distributed as dist

    global weighed
    weighed += 1
    if hasattr(loss_sum, "full_tensor"):
        loss_sum = loss_sum.full_tensor()  # under loss_parallel
    groups = averaging_groups(mesh)
    total = torch.as_tensor(count, device=loss_sum.device).detach().clone()
    ranks = 1
    for group in groups:
        dist.all_reduce(total, group=group)
        ranks *= dist.get_world_size(group)
    return loss_sum * (ranks / total.clamp(min=1))  # no tokens anywhere: the sum is 0, and so is the loss


def averaging_groups(mesh: DeviceMesh | None) -> list[Any]:
    """Return the groups over which gradients are averaged one after the other; none for a world of one."""
    import torch.distributed as dist

    from ezpz.dist.mesh import degree, fsdp_mesh
    from ezpz.dist.wrapped_models import mesh_in_use

    mesh = mesh if mesh is not None else mesh_in_use()
    if mesh is not None and degree(mesh, "dp") == degree(mesh, "cp") == 1:
        return []
    if mesh is not None:
        return list(fsdp_mesh(mesh).get_all_groups())
    return [dist.group.WORLD] if dist.is_initialized() else []
