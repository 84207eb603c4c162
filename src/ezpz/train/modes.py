"""Leave each part of a model in the mode, training or evaluation, in which its owner has put it.

``model.train()`` sets every part to training, also a frozen batch norm that was put to ``eval()`` for good.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["begin_training", "kept_modes"]


def begin_training(model: Any) -> None:
    """Set a model to training that is in evaluation as a whole, as it comes from a file; else leave its parts alone."""
    inner = model
    while (inside := getattr(inner, "_orig_mod", None) or _inside(inner)) is not None:
        inner = inside  # a wrapper's own mode tells nothing: it is new
    if not any(module.training for module in inner.modules()):
        model.train()


@contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Give each part of a model its mode back at the end of a block."""
    kept = [(module, module.training) for module in model.modules()]  # what is outside comes first
    try:
        yield
    finally:
        for module, was_training in kept:
            if module.training != was_training:
                module.train(was_training)  # a module's own `train` may do more than to set a flag


def _inside(model: Any) -> Any:
    """Return what DistributedDataParallel or DeepSpeed's engine is around; None for all else."""
    wraps = hasattr(model, "no_sync") or hasattr(model, "is_gradient_accumulation_boundary")
    return getattr(model, "module", None) if wraps else None
