"""Names of number formats, and how a model computes in one while its weights stay as they are.

bf16 bfloat16    fp16 float16    fp32 float32    or a torch.dtype of these three

Nothing else is taken: a mistyped name that silently becomes another format is found weeks later in a loss curve.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from ezpz.dist.job_around import this_rank
from ezpz.errors import UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import torch
    from torch import nn

DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
}


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch.dtype that a name means.

    Args:
        dtype: bf16, bfloat16, fp16, float16, fp32, float32 in any case, or one of the three as torch.dtype.

    Raises:
        UsageError: Anything else.
    """
    import torch

    name = DTYPES.get(str(dtype).removeprefix("torch.").lower())
    if name is None:
        raise UsageError(
            f"unknown dtype {dtype!r} (from dtype=); expected one of {', '.join(DTYPES)}. "
            'For full precision write dtype="fp32".'
        )
    resolved: torch.dtype = getattr(torch, name)
    return resolved


def usable_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in: the wanted one, or float32 with one warning where the device has no bfloat16.

    Scripts that ask for bfloat16 run on devices without it (V100, for example), too. float16 would need a GradScaler
    that the script does not have, therefore float32. A CPU always computes bfloat16, fast or slowly.
    """
    import torch

    wanted = resolve_dtype(dtype)
    if wanted != torch.bfloat16 or device.type == "cpu":
        return wanted
    from ezpz.dist.device import device_name, is_bf16_supported

    if is_bf16_supported(device):
        return wanted
    if this_rank().rank == 0:
        get_logger(__name__).warning(
            f"dtype=bf16 becomes fp32: {device_name(device)} does not compute bfloat16. "
            'Write dtype="fp32", or dtype="fp16" with a torch.amp.GradScaler.'
        )
    return torch.float32


def fsdp_policies(dtype: torch.dtype | None, stored: Collection[torch.dtype]) -> tuple[Any, Any]:
    """Return the MixedPrecisionPolicy of blocks and of the root.

    Gradients are summed in float32, because a sum over many ranks loses bits in 16. Under a lower precision that was
    asked for, the root returns float32, so that a loss computed outside of the model is not computed in 16 bits.

    Args:
        dtype: To compute in; None is the weights' own.
        stored: Formats of the weights.
    """
    import torch

    from ezpz.dist.torch_support import fsdp2

    policy = fsdp2().MixedPrecisionPolicy
    reduce = {"reduce_dtype": torch.float32} if _HALVES & {_name(each) for each in (*stored, dtype)} else {}
    if dtype is None or set(stored) <= {dtype}:
        return policy(**reduce), policy(**reduce)
    inside = {"param_dtype": dtype, **reduce}
    return policy(**inside), policy(**inside, output_dtype=torch.float32)


def stored_formats(model: nn.Module) -> list[torch.dtype]:
    """Return the formats of the model's floating-point weights, those of most numbers first."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            counts[parameter.dtype] += parameter.numel()
    return [each for each, _ in counts.most_common()]


def log_precision(strategy: str, dtype: torch.dtype | None, stored: Collection[torch.dtype]) -> None:
    """Say on rank 0 which number formats compute, reduce and store; warn where the wanted one cannot compute."""
    import torch

    if not stored or this_rank().rank != 0:
        return
    sharded = strategy in {"fsdp", "hsdp"}
    computes = list(stored) if dtype is None else [dtype]
    if dtype == torch.float32 and _HALVES & {_name(each) for each in stored} and not sharded:
        computes = list(stored)
        get_logger(__name__).warning(
            f"dtype=fp32 has no effect: the model's weights are {_names(stored)}, and {strategy} computes in what "
            "they are. Call model.float() before wrap_model, or leave out dtype=."
        )
    halves = _HALVES & {_name(each) for each in (*stored, *computes)}
    reduces = "float32" if sharded and halves else _names(stored)
    sums = "" if strategy == "none" else f", reduces gradients in {reduces}"
    asked = "" if dtype is not None else " (the model's own; lower precision: dtype=)"
    scaled = f"; {_SCALED}" if dtype == torch.float16 and torch.float32 in stored else ""
    get_logger(__name__).info(
        f"{strategy} computes in {_names(computes)}{sums}, stores weights in {_names(stored)}{asked}{scaled}"
    )


_HALVES = {"bfloat16", "float16"}
_SCALED = "small gradients vanish in it: Loop scales its losses, a loop of your own needs torch.amp.GradScaler"


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(map(_name, dtypes))


def autocast_forward(model: nn.Module, dtype: torch.dtype | None, device_type: str) -> None:
    """Let ``model.forward`` compute under autocast and return float32; weights and gradients keep their format.

    None and float32 leave it as it is.
    """
    import torch

    if dtype not in {None, torch.float32}:
        forward = model.forward
        model.forward = functools.update_wrapper(
            functools.partial(_under_autocast, forward, device_type, dtype), forward
        )


def _under_autocast(
    forward: Callable[..., Any], device_type: str, dtype: torch.dtype, *args: Any, **kwargs: Any
) -> Any:
    import torch

    with torch.autocast(device_type, dtype=dtype):
        output = forward(*args, **kwargs)
    return _to_float32(output, dtype)


def _to_float32(value: Any, dtype: torch.dtype) -> Any:
    """Cast what autocast has left in 16 bits; other objects than tensors in tuples, lists and dicts stay as they
    are.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == dtype else value
    if isinstance(value, dict):
        result = copy.copy(value)  # keeps subclasses, such as the outputs of Hugging Face models
        for key, item in value.items():
            result[key] = _to_float32(item, dtype)
        return result
    if isinstance(value, (tuple, list)):
        items = [_to_float32(item, dtype) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
