"""AdamW for a wrapped model: matrices decay, norms, biases and position tables do not; fused where torch has it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ezpz.dist.sharding import make_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

# Names of tables of positions and of learned tokens, as timm, torchvision, transformers and nanoGPT spell them:
# pos_embed, wpe.weight, position_embeddings.weight, embed_positions.weight, relative_position_bias_table, cls_token.
_UNDECAYED = re.compile(
    r"(^|[._])(wpe|rel_pos(_[hw])?|positions?|pos(ition(al)?)?_?(emb(ed(ding)?)?s?|bias_table|bias|table|enc(oding)?s?)"
    r"|(cls|dist|class|mask|reg|register)_tokens?)(\.weight)?$"
)


def make_adamw(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    weight_decay: float = 1e-2,
    fused: bool | None = None,
    **options: Any,
) -> torch.optim.Optimizer:
    """Return AdamW for a wrapped model, as timm and nanoGPT set it up.

        optimizer = ezpz.make_adamw(model, lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95))

    Args:
        model: As `ezpz.wrap_model` returned it; under ``zero1`` the optimizer's state is cut over ranks.
        lr: Learning rate.
        weight_decay: Of matrices and embeddings; see `decay_groups` for what is left out.
        fused: Update all weights in one kernel; by default wherever torch has one for the model's device.
        **options: Further arguments of ``torch.optim.AdamW``, such as ``betas`` and ``eps``.
    """
    from torch.optim import AdamW

    groups = decay_groups(model, weight_decay)
    if fused is None:
        fused = has_fused(each for group in groups for each in group["params"])
    how = {"lr": lr, "weight_decay": weight_decay, **options}
    return make_optimizer(model, AdamW, params=groups, **how, **({"fused": True} if fused else {}))


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups in which norms, biases and position tables have no weight decay.

    Left out are parameters of fewer than two dimensions; those that the model's own ``no_weight_decay()`` names, as
    models of timm have it; and those whose names say that they are tables of positions or class tokens, such as
    ``pos_embed``, ``wpe.weight`` and ``cls_token``.

    Args:
        model: Wrapped or not; parameters that are not trained are in no group.
        weight_decay: Of all others.

    Returns:
        The decayed group and then the other; one group where nothing is to be kept apart.
    """
    network = model.module if hasattr(model, "module") and hasattr(model, "no_sync") else model
    named = getattr(network, "no_weight_decay", None)
    own = set(named()) if callable(named) else set()
    trained = [(name, each) for name, each in network.named_parameters() if each.requires_grad]
    left = [each.dim() < 2 or name in own or bool(_UNDECAYED.search(name)) for name, each in trained]
    decayed, others = (
        [each for (_, each), out in zip(trained, left, strict=True) if out is which] for which in (False, True)
    )
    if not weight_decay:
        decayed, others = [each for _, each in trained], []
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]] or groups[:1]


def has_fused(parameters: Iterable[torch.Tensor]) -> bool:
    """Tell whether torch updates all these parameters in one kernel."""
    import torch

    try:
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices as supported_devices
    except ImportError:  # it is private
        known = {"cuda", "cpu"}
    else:
        known = set(supported_devices())
    return all(torch.is_floating_point(each) and each.device.type in known for each in parameters)
