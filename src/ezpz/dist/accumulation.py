"""Gradient accumulation: gradients of several micro-batches add up locally and are averaged over ranks once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["accumulating"]


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
