"""Activation checkpointing: keep only the input of a block, and compute it again during the backward pass.

    full         every block
    selective    every second block: about half of the memory back for half of the extra time
    n            every n-th block

torch's `checkpoint_wrapper` is not used: it is private, and puts a word of its own into the parameters' names.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

__all__ = ["recompute_blocks", "stride_of"]


def stride_of(activation_checkpoint: str | int | None) -> int:
    """Return n for "every n-th block", 0 for none.

    Raises:
        UsageError: The wish is none of None, "full", "selective" and a positive number.
    """
    if activation_checkpoint in {None, "none"}:
        return 0
    if activation_checkpoint in {"full", "selective"}:
        return 1 if activation_checkpoint == "full" else 2
    whole = isinstance(activation_checkpoint, int) and not isinstance(activation_checkpoint, bool)
    if whole and int(activation_checkpoint) > 0:
        return int(activation_checkpoint)
    raise UsageError(
        f"unknown activation_checkpoint={activation_checkpoint!r}; expected None, 'full', 'selective', "
        "or n for every n-th block."
    )


def recompute_blocks(model: nn.Module, blocks: Sequence[nn.Module], stride: int) -> None:
    """Let every ``stride``-th block be recomputed; names in ``state_dict`` and of parameters stay as they are.

    Raises:
        UsageError: The model has no blocks, so nothing would be saved.
    """
    if not stride:
        return
    if not blocks:
        raise UsageError(
            f"activation_checkpoint found no repeated blocks in {type(model).__name__}; expected for example an "
            "nn.ModuleList of layers. Name what shall be recomputed: blocks=<module class>."
        )
    for block in blocks[::stride]:
        forward = block.forward
        block.forward = functools.update_wrapper(functools.partial(_again_in_backward, forward), forward)


def _again_in_backward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
