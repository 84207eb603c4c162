"""`EMA`: an exponential moving average of a model's weights, which lies where the weights lie.

    ema = EMA(model, decay=0.999)                     # behind wrap_model
    loop = Loop(model, optimizer, …, ema=ema)         # follows every step, and evaluates the average
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer, ema=ema)

Every rank averages its own part: under FSDP no rank ever holds the whole average, and no step has a collective more.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EMA"]

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")  # in the names of weights


class EMA:
    """The average of the weights that are trained: after each step, ``decay`` of it and ``1 - decay`` of the weights.

    Formats of 16 bits are averaged in float32, because steps of a small weight would be lost in them.

    Attributes:
        model: Whose weights they are.
        updates: How often `update` was called.
    """

    def __init__(self, model: Any, decay: float = 0.999, *, warmup: bool = False) -> None:
        """Begin with the weights as they are.

        Args:
            model: As `ezpz.wrap_model` returned it: plain, under DistributedDataParallel or FSDP, also compiled.
            decay: From 0 to below 1.
            warmup: Begin with a shorter memory: of the n-th update the decay is at most (1 + n) / (10 + n).

        Raises:
            UsageError: ``decay`` is out of range, or the model is DeepSpeed's engine, which keeps weights elsewhere.
        """
        if not 0 <= decay < 1:
            raise UsageError(f"unusable decay={decay} (from EMA); expected a number from 0 to below 1, such as 0.999.")
        if hasattr(model, "is_gradient_accumulation_boundary"):
            raise UsageError("EMA does not work on DeepSpeed's engine (from the model); expected FSDP or DDP.")
        self.model, self.updates, self._decay, self._warmup = model, 0, decay, warmup
        self._is_swapped = False
        self._reshard()
        self._weights = [each for each in model.parameters() if each.requires_grad]
        self._averages = [_wide(each) for each in self._weights]

    def update(self) -> None:
        """Take the weights in; call it once behind each step of the optimizer."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates)) if self._warmup else self._decay
        self.updates += 1
        with torch.no_grad():
            for average, weight in zip(self._averages, self._weights, strict=True):
                own = _local(average)
                own.lerp_(_local(weight).to(own.dtype), 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Give the model the average for a block, and its own weights back behind it, also after an exception.

        All ranks do this together, as what they evaluate in it. It needs memory for this rank's weights once more.
        """
        if self._is_swapped:
            raise UsageError("the average is in the model already (from EMA.swapped); expected one block at a time.")
        kept = [_local(each).detach().clone() for each in self._weights]
        self._is_swapped = True
        try:
            self._fill([_local(each) for each in self._averages])
            yield
        finally:
            self._fill(kept)
            self._is_swapped = False

    def begin_anew(self) -> None:
        """Forget the past: the average is the weights as they are."""
        self.updates = 0
        for average, weight in zip(self._averages, self._weights, strict=True):
            _local(average).copy_(_local(weight).detach())

    def tensors(self) -> dict[str, Any]:
        """Return the averages by the names of the plain model, a tied weight under each of its names; live and cut as
        the weights are.

        Raises:
            UsageError: The model has the averages now, and a checkpoint would take them for its weights.
        """
        if self._is_swapped:
            raise UsageError(
                "the model has its average in place of its weights (from EMA.swapped); expected its own weights in a "
                "checkpoint. Save behind the block."
            )
        by_weight = {id(weight): average for weight, average in zip(self._weights, self._averages, strict=True)}
        named = self.model.named_parameters(remove_duplicate=False)
        is_around = hasattr(self.model, "no_sync") and hasattr(self.model, "module")  # DistributedDataParallel
        found = {}
        for name, weight in named:
            parts = [part for part in name.split(".") if part not in _WRAPPERS]
            if is_around or (parts[0] == "module" and hasattr(getattr(self.model, "_orig_mod", None), "no_sync")):
                parts = parts[1:]
            if id(weight) in by_weight:
                found[".".join(parts)] = by_weight[id(weight)]
        return found

    def _fill(self, values: list[torch.Tensor]) -> None:
        self._reshard()
        with torch.no_grad():
            for weight, value in zip(self._weights, values, strict=True):
                _local(weight).copy_(value)

    def _reshard(self) -> None:
        """Have FSDP forget weights that it has gathered: a forward without a backward leaves some, as they were."""
        for module in self.model.modules():
            if hasattr(module, "reshard") and hasattr(module, "set_requires_gradient_sync"):
                module.reshard()


def _wide(weight: torch.Tensor) -> torch.Tensor:
    average = weight.detach().clone()
    return average.float() if average.dtype in {torch.float16, torch.bfloat16} else average


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value
