"""Switches of torch that hold for the whole process and change numbers or speed: read here, never set.

Only Python's half of torch is asked: no device is started by it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attention_backends", "numeric_switches"]


def attention_backends() -> dict[str, bool]:
    """Return which ways of ``scaled_dot_product_attention`` torch may choose from; empty as long as torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    cuda = torch.backends.cuda  # its name notwithstanding, these hold on every device
    names = {"flash": "flash", "mem_efficient": "mem_efficient", "math": "math", "cudnn": "cudnn"}
    asked = {name: getattr(cuda, f"{word}_sdp_enabled", None) for name, word in names.items()}
    return {name: bool(ask()) for name, ask in asked.items() if ask is not None}


def numeric_switches() -> dict[str, object]:
    """Return the switches by name; empty as long as torch is not loaded, and without those that this torch has not.

    Returns:
        ``default_dtype``, ``matmul_precision``, ``tf32.matmul``, ``tf32.cudnn``, ``reduced_precision.bf16``,
        ``reduced_precision.fp16``, ``deterministic``, ``cudnn.deterministic``, ``cudnn.benchmark``, ``threads``, and
        ``autocast.<device type>`` with the dtype where autocast is on.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    backends = torch.backends
    ask: dict[str, Callable[[], object]] = {
        "default_dtype": lambda: _short(torch.get_default_dtype()),
        "matmul_precision": torch.get_float32_matmul_precision,
        "tf32.matmul": lambda: backends.cuda.matmul.allow_tf32,
        "tf32.cudnn": lambda: backends.cudnn.allow_tf32,
        "reduced_precision.bf16": lambda: backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "reduced_precision.fp16": lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "cudnn.deterministic": lambda: backends.cudnn.deterministic,
        "cudnn.benchmark": lambda: backends.cudnn.benchmark,
        "threads": torch.get_num_threads,
    }
    for kind in ("cuda", "xpu", "cpu"):
        ask[f"autocast.{kind}"] = lambda kind=kind: (  # type: ignore[misc]  # mypy sees no default in a lambda's type
            _short(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
        )
    told = {name: _ask(function) for name, function in ask.items()}
    return {name: value for name, value in told.items() if value is not None}


def _ask(function: Callable[[], object]) -> object:
    try:
        return function()
    except (AttributeError, RuntimeError, TypeError):  # an older torch, or one whose newer spelling is in use (2.9)
        return None


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
