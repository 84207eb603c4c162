"""Activation checkpointing: keep only a part of what a block computes, and compute the rest again during the backward
pass.

    full         every block; only its input is kept
    selective    every second block: about half of the memory back for half of the extra time
    op           every block, but the results of what takes long are kept: every second matrix product, attention, and
                 what was communicated. Cheap operations are done again
    n            every n-th block

torch's `checkpoint_wrapper` is not used: it is private, and puts a word of its own into the parameters' names. Which
operations ``op`` keeps is torchtitan's choice (its option ``selective_ac_option = "op"``).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

# Operations whose results are kept, by library and name; a torch may have some of them only.
_KEPT = (
    ("aten", "_scaled_dot_product_flash_attention"),
    ("aten", "_scaled_dot_product_efficient_attention"),
    ("aten", "_scaled_dot_product_cudnn_attention"),
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
    ("aten", "_scaled_dot_product_fused_attention_overrideable"),  # Intel's GPUs
    ("_c10d_functional", "reduce_scatter_tensor"),
)

# Matrix products, of which every second one is kept.
_PRODUCTS = ("mm", "addmm", "linear")


def stride_of(activation_checkpoint: str | int | None) -> int:
    """Return n for "every n-th block", 0 for none.

    Raises:
        UsageError: The value is none of None, "full", "selective", "op" and a positive number.
    """
    if activation_checkpoint in {None, "none"}:
        return 0
    if activation_checkpoint in {"full", "selective", "op"}:
        return 2 if activation_checkpoint == "selective" else 1
    whole = isinstance(activation_checkpoint, int) and not isinstance(activation_checkpoint, bool)
    if whole and int(activation_checkpoint) > 0:
        return int(activation_checkpoint)
    raise UsageError(
        f"unknown activation_checkpoint={activation_checkpoint!r}; expected None, 'full', 'selective', 'op', "
        "or n for every n-th block."
    )


def recompute_blocks(model: nn.Module, blocks: Sequence[nn.Module], kind: str | int | None) -> None:
    """Let blocks be recomputed as asked; names in ``state_dict`` and of parameters stay as they are.

    Raises:
        UsageError: The model has no blocks, so nothing would be saved.
        MachineError: ``op`` is wanted, and this torch cannot choose among operations.
    """
    stride = stride_of(kind)
    if not stride:
        return
    if not blocks:
        raise UsageError(
            f"activation_checkpoint found no repeated blocks in {type(model).__name__}; expected for example an "
            "nn.ModuleList of layers. Name what shall be recomputed: blocks=<module class>."
        )
    more = {"context_fn": _op_contexts()} if kind == "op" else {}
    for block in blocks[::stride]:
        forward = block.forward
        block.forward = functools.update_wrapper(functools.partial(_again_in_backward, block, forward, more), forward)


def _again_in_backward(
    block: nn.Module, forward: Callable[..., Any], more: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a block so that its backward runs it again.

    The second run would append keys and values to a cache once more: in training, where transformers' models make one
    that nobody reads, the block gets none; a block that generates is run as it is.
    """
    from torch.utils.checkpoint import checkpoint

    if any(map(_is_cache, (*args, *kwargs.values()))):
        if not block.training:
            return forward(*args, **kwargs)
        args = tuple(None if _is_cache(value) else value for value in args)
        kwargs = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
    return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)


def _is_cache(value: Any) -> bool:
    """Tell whether a value is a cache of transformers, of whatever class."""
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


def _op_contexts() -> Callable[[], Any]:
    """Return what makes the two contexts of a block, of its forward and of its recomputation."""
    import torch
    from torch.utils import checkpoint

    if not hasattr(checkpoint, "create_selective_checkpoint_contexts"):
        raise MachineError(
            f"activation_checkpoint='op' needs torch 2.5, and this is {torch.__version__}; expected a newer torch. "
            "Use 'selective'."
        )
    kept = {operation for library, name in _KEPT if (operation := _operation(torch, library, name)) is not None}
    # A layer with a bias is `addmm`; a graph that was kept whole for inference or export has `linear`.
    products = {operation for name in _PRODUCTS if (operation := _operation(torch, "aten", name)) is not None}
    save, again = checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        seen = {False: 0, True: 0}  # products in the forward, and in its recomputation: the same ones are chosen

        def policy(context: Any, operation: Any, *_: Any, **__: Any) -> Any:
            if operation in products:
                seen[context.is_recompute] += 1
                return save if seen[context.is_recompute] % 2 else again
            return save if operation in kept else again

        return checkpoint.create_selective_checkpoint_contexts(policy)

    return contexts


def _operation(torch: Any, library: str, name: str) -> Any:
    overloads = getattr(getattr(torch.ops, library), name, None)
    return getattr(overloads, "default", None)
