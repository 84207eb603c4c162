"""Describe the settings in effect, read from the live objects and not from what was meant to be passed.

`describe` returns one flat dict, the ``effective`` part of ``run.json``:

    model.class                  "Transformer"; wrappers are looked through
    model.wrappers               ["DistributedDataParallel", "torch.compile"], outermost first
    model.parameters, .trainable numbers of elements, all of a model that is cut over ranks
    model.dtypes, .buffers       {"float32": 1234}, elements of parameters and of buffers by dtype
    model.devices                {"cuda": 1234}, elements by type of device
    model.checksum               of all parameters, see `ezpz.view.effective.live_model`; absent where it is not whole
    model.sharded, model.meta    true where it is not: cut over ranks, without memory yet
    model.modules                {"Linear": 48}, the 20 most frequent classes of modules without parts
    model.training               false if it is in evaluation mode
    dropout.<path>               0.1, of a module or an attribute; layers that agree share one path with ``*``
    dropout_places               {"layers.*.attn.dropout": 24}, how many share it
    optimizer.class, .wrappers   "AdamW", ["ZeroRedundancyOptimizer"]
    optimizer.groups.0.lr        and every other setting of a group; ``parameters`` and ``tensors`` count what it holds
    schedule.class, .T_max, …    and every other setting that is a number
    schedule.lr                  {"0": 0.001, "10": 0.00098}, by step; see `ezpz.view.effective.learning_rates`
    attention.backends           {"flash": true}, what scaled_dot_product_attention may choose
    attention.<path>             "sdpa" or true, what modules and their configurations hold about attention
    module.<path>.<name>         1e-05, the numbers and short texts that a module holds as attributes: a norm's eps
    numerics.<switch>            see `ezpz.view.effective.describing`
    problems                     what could not be read, and why

Nothing here waits for another rank: the first rank alone calls it. Objects are read by duck typing; torch is not
loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ezpz.redact import redact_config
from ezpz.view.effective.learning_rates import describe_schedule
from ezpz.view.effective.live_model import describe_model

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 200  # characters of a text
_MOST_GROUPS = 16


def describe(model: Any = None, optimizer: Any = None, scheduler: Any = None) -> dict[str, object]:
    """Return what live objects really use; the keys are listed at the top of this module.

    Nothing is changed: no weight, no random state, no state of the optimizer or of the scheduler.

    Args:
        model: A ``torch.nn.Module``, wrapped and compiled as it may be.
        optimizer: One of torch's or one that has ``param_groups``, wrapped as it may be.
        scheduler: A learning-rate scheduler.

    Returns:
        A dict that JSON can hold, without secrets. What cannot be read is a sentence in ``problems``.
    """
    facts: dict[str, object] = {}
    problems: list[str] = []
    parts: list[tuple[str, Callable[[], dict[str, object]]]] = []
    if model is not None:
        parts.append(("model", lambda: describe_model(model)))
    if optimizer is not None:
        parts.append(("optimizer", lambda: _optimizer(optimizer)))
    if scheduler is not None:
        parts.append(("schedule", lambda: describe_schedule(scheduler)))
    if parts:
        parts.append(("numerics", _switches))
    for name, read in parts:
        try:
            facts.update(read())
        except Exception as error:  # noqa: BLE001  # foreign objects may raise anything; training must continue
            problems.append(f"{name}: {error!r}")
    if problems:
        facts["problems"] = problems
    shown = redact_config(_shortened(facts))
    return shown if isinstance(shown, dict) else {}


def _switches() -> dict[str, object]:
    backends = attention_backends()
    switches = {f"numerics.{name}": value for name, value in numeric_switches().items()}
    return {**({"attention.backends": backends} if backends else {}), **switches}


def _optimizer(optimizer: Any) -> dict[str, object]:
    wrappers = []
    groups = getattr(optimizer, "param_groups", None)
    # accelerate and DeepSpeed keep the real one as `optimizer`, ZeroRedundancyOptimizer as `optim`; all show its groups
    while (inner := getattr(optimizer, "optimizer", None) or getattr(optimizer, "optim", None)) is not None:
        wrappers.append(type(optimizer).__name__)
        optimizer = inner
        groups = groups if groups is not None else getattr(optimizer, "param_groups", None)
        if len(wrappers) > 8:  # no one wraps that often: it holds itself
            break
    facts: dict[str, object] = {"optimizer.class": type(optimizer).__name__}
    if wrappers:
        facts["optimizer.wrappers"] = wrappers
    for index, group in enumerate(list(groups or ())[:_MOST_GROUPS]):
        held = list(group["params"])
        facts[f"optimizer.groups.{index}.parameters"] = sum(tensor.numel() for tensor in held)
        facts[f"optimizer.groups.{index}.tensors"] = len(held)
        for name, value in group.items():
            if name not in {"params", "param_names"} and (shown := _setting(value)) is not ...:
                facts[f"optimizer.groups.{index}.{name}"] = shown
    if groups is not None and len(groups) > _MOST_GROUPS:
        facts["optimizer.more_groups"] = len(groups) - _MOST_GROUPS
    return facts


def _setting(value: Any) -> object:
    """Return a setting as JSON can hold it; ``...`` for what is no short setting."""
    if isinstance(value, (list, tuple)):
        return [_setting(item) for item in value] if len(value) <= 8 else ...
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a rate that lives in a tensor (capturable)
        return value.item()
    return value


def _shortened(value: object) -> object:
    if isinstance(value, dict):
        return {str(key)[:_LONGEST]: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def attention_backends() -> dict[str, bool]:
    """Return the ways of ``scaled_dot_product_attention`` that torch may choose from; empty without torch."""
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
    switches = {name: _ask(function) for name, function in ask.items()}
    return {name: value for name, value in switches.items() if value is not None}


def _ask(function: Callable[[], object]) -> object:
    try:
        return function()
    except (AttributeError, RuntimeError, TypeError):  # an older torch, or one whose newer spelling is in use (2.9)
        return None


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
