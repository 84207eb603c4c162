"""Leave each part of a model in the mode, training or evaluation, in which its owner has put it.

``model.train()`` sets every part to training, also a frozen batch norm that was put to ``eval()`` for good.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ezpz.train.data.prepare import warn_once

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
        return
    still = [
        name
        for name, module in inner.named_modules()
        if not module.training and any(each.requires_grad for each in module.parameters(recurse=False))
    ]
    if still:
        shown = ", ".join(still[:2]) + (", …" if len(still) > 2 else "")
        warn_once(
            f"{len(still)} module{'s' * (len(still) != 1)} with weights to train ({shown}) stay in evaluation, as they "
            "were put: no dropout, and batch norms as they are, such as in a model that was loaded and put into "
            "another. Type `model.train()` before the Loop if they shall not, or freeze them: requires_grad_(False)."
        )


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
