"""Learning rates over the steps of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# How much is left of the way down, from 1 to 0, as a function of the part of the steps that has passed.
_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda passed: 1.0 - passed,
    "cosine": lambda passed: 0.5 * (1.0 + math.cos(math.pi * passed)),
}


def make_schedule(optimizer: Any, kind: str, *, steps: int, warmup: int = 0, min_ratio: float = 0.0) -> Any:
    """Return a ``LambdaLR`` to be stepped once per step.

    With s steps done, the rate is ``(s + 1) / warmup`` of the optimizer's own in the first ``warmup`` steps, so that no
    step is lost at a rate of 0. Then it falls as ``kind`` says, and would reach ``min_ratio`` at ``s = steps``.

    Args:
        optimizer: Its present rates are the highest.
        kind: ``constant``, ``linear`` or ``cosine``.
        steps: Steps of the whole run, warm-up included.
        warmup: Steps in which the rate rises.
        min_ratio: The end of ``linear`` and ``cosine``, as a part of the highest rate.

    Raises:
        UsageError: The kind is unknown, or the warm-up is as long as the run.
    """
    from torch.optim.lr_scheduler import LambdaLR

    if kind not in _SHAPES:
        raise UsageError(f"unknown schedule {kind!r} (from make_schedule); expected one of {', '.join(_SHAPES)}.")
    if warmup and not 0 < warmup < steps:
        raise UsageError(
            f"a warm-up of {warmup} steps does not fit a run of {steps}; expected 0 to {max(0, steps - 1)}."
        )
    shape = _SHAPES[kind]

    def factor(done: int) -> float:
        if done < warmup:
            return (done + 1) / warmup
        passed = min(1.0, (done - warmup) / max(1, steps - warmup))
        return min_ratio + (1.0 - min_ratio) * shape(passed) if kind != "constant" else 1.0

    return LambdaLR(optimizer, factor)
