"""The loss that trainers of language models share, and model and loss compiled as one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.device import device
from ezpz.dist.job_around import this_rank
from ezpz.dist.wrap import compiler_problem
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def next_token_loss(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Return the summed loss of a batch in nats, and how many tokens it is of: what `Loop` calls.

    Args:
        model: Returns logits ``(B, T, V)`` for tokens ``(B, T)``.
        batch: Tokens ``(B, T)`` and the token that follows each, ``(B, T)``.
    """
    from torch.nn.functional import cross_entropy

    tokens, following = batch
    # DeepSpeed gives logits in its own number format.
    loss: Any = cross_entropy(model(tokens).float().flatten(0, 1), following.flatten(), reduction="sum")
    loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss  # cut over tp ranks under a parallel loss
    return loss, following.numel()


def compile_loss(compute_loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``compute_loss`` with the model that it calls compiled as one graph.

    `wrap_model`'s ``compile=True`` compiles equal blocks once and leaves out what lies between them. One graph takes
    longer to compile, and then joins the blocks, the number format of the logits and the loss: with a large vocabulary
    the logits are not written a second time. For models that are whole on each rank (ddp, zero1, none). Where this
    machine has no compiler it warns once and returns ``compute_loss`` itself.

    Args:
        compute_loss: Called with model and batch, as `Loop` does.
    """
    problem = compiler_problem(device().type)
    if problem:
        if this_rank().rank == 0:
            get_logger(__name__).warning(f"the loss cannot be compiled here: {problem}. It runs uncompiled.")
        return compute_loss
    import torch

    compiled: Callable[[Any, Any], Any] = torch.compile(compute_loss)
    return compiled
