"""From a loss to new weights: backward, scaling of float16's gradients, clipping and the optimizer's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ezpz.dist import accumulating, clip_grad_norm_, get_torch_device_type
from ezpz.dist.precision import resolve_dtype

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

__all__ = ["Update", "make_update"]


class Update(Protocol):
    """One optimizer step, made of one or several backwards.

    Attributes:
        scaler: What scales losses, whose state belongs into checkpoints; None where nothing is scaled.
    """

    scaler: Any

    def within(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the block for forward and backward of one micro-batch."""

    def backward(self, loss: torch.Tensor, share: float) -> None:
        """Add the gradients of ``share * loss``."""

    def step(self) -> Any:
        """Change the weights, forget the gradients, and return the gradients' norm; None where it was not computed."""


def make_update(model: Any, optimizer: Any, *, max_norm: float, dtype: str) -> Update:
    """Return what updates this model.

    Args:
        model: As `ezpz.wrap_model` returned it.
        optimizer: Its optimizer.
        max_norm: Largest norm of the gradients; 0 leaves them alone and does not compute it.
        dtype: Format of the forward pass; float16 needs its losses scaled up, because small gradients vanish in it.
    """
    if all(hasattr(model, name) for name in ("backward", "step", "is_gradient_accumulation_boundary")):
        return _ByEngine(model)
    return _ByOptimizer(model, optimizer, max_norm=max_norm, scale=str(resolve_dtype(dtype)) == "torch.float16")


class _ByOptimizer:
    def __init__(self, model: Any, optimizer: Any, *, max_norm: float, scale: bool) -> None:
        import torch

        self._model = model
        self._parameters: list[Any] = []  # to walk through the modules in every step would cost as much as to clip
        self._optimizer = optimizer
        self._max_norm = max_norm
        self.scaler = torch.amp.GradScaler(get_torch_device_type()) if scale else None

    def within(self, *, last: bool) -> AbstractContextManager[None]:
        return accumulating(self._model, last=last)

    def backward(self, loss: torch.Tensor, share: float) -> None:
        weighted = loss if share == 1.0 else loss * share
        (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()

    def step(self) -> Any:
        norm = None
        if self.scaler is not None and self._max_norm:
            self.scaler.unscale_(self._optimizer)
        if self._max_norm:
            self._parameters = self._parameters or list(self._model.parameters())
            norm = clip_grad_norm_(self._parameters, self._max_norm)
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.step(self._optimizer)
            self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return norm


class _ByEngine:
    """DeepSpeed's engine scales, accumulates, clips and updates as its configuration says."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.scaler = None

    def within(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  # the engine counts by itself
        from contextlib import nullcontext

        return nullcontext()

    def backward(self, loss: torch.Tensor, share: float) -> None:  # noqa: ARG002  # the engine divides by itself
        self._engine.backward(loss)
        self._engine.step()

    def step(self) -> Any:
        return None
