"""ZeRO-1: every rank keeps all weights, and the optimizer's state for its own share of them.

The model runs under DistributedDataParallel; torch's ZeroRedundancyOptimizer updates a share per rank and sends it to
the others. The method: Rajbhandari et al., arXiv 1910.02054, stage 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

__all__ = ["make_optimizer", "mark"]

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
