"""Choose the kernel that computes attention, among those that this device has.

    math         softmax(Q K^T / sqrt(d)) V, written out: runs everywhere, holds every score in memory
    sdpa         torch's scaled_dot_product_attention, which chooses a kernel itself
    flash        … restricted to FlashAttention
    efficient    … restricted to the memory-efficient kernel of xFormers
    cudnn        … restricted to NVIDIA's cuDNN

Which of the last three there are depends on device, number format and size of a head: `check_attention` finds out.
"""

from __future__ import annotations

import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ezpz.errors import UsageError, did_you_mean

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": getattr(SDPBackend, "CUDNN_ATTENTION", None),  # the youngest
}
ATTENTIONS = ("math", "sdpa", *_KERNELS)
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def attend(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention of every position to every other, without a mask.

    Args:
        name: One of `ATTENTIONS`.
        q: Queries ``(batch, heads, length, head_dim)``; keys and values have the same shape.
        k: Keys.
        v: Values.

    Returns:
        ``(batch, heads, length, head_dim)``.
    """
    if name == "math":
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return scores.softmax(-1).to(v.dtype) @ v  # autocast leaves a softmax in float32
    if name == "sdpa" or q.is_meta:  # on meta nothing is computed, so that no kernel is missing there
        return _sdpa(q, k, v)
    with sdpa_kernel(_KERNELS[name]):
        return _sdpa(q, k, v)


def check_attention(name: str, device: torch.device | str, dtype: torch.dtype | str, head_dim: int) -> None:
    """Check, before training, that this device can compute attention in this way, forward and backward.

    A tiny attention is computed to find out. All ranks of equal devices get the same answer.

    Args:
        name: One of `ATTENTIONS`.
        device: Where the model will run.
        dtype: What it computes in: ``torch.bfloat16``, or its name (bf16, fp16, fp32).
        head_dim: Features of one head, which kernels limit.

    Raises:
        UsageError: The name is unknown, or the device cannot do it; the error names those that it can.
    """
    check_name(name)
    number_format = _format_of(dtype)
    if _can(name, device, number_format, head_dim):
        return
    able = [each for each in ATTENTIONS if _can(each, device, number_format, head_dim)]
    raise UsageError(
        f"attention={name!r} cannot run on {device} in {str(number_format).removeprefix('torch.')} with heads of "
        f"{head_dim} (torch {torch.__version__} tried it); expected one that can: {', '.join(able)}. Use 'sdpa' to let "
        "torch choose."
    )


def check_name(name: str) -> None:
    """Refuse a name that is none of `ATTENTIONS`."""
    if name not in ATTENTIONS:
        raise UsageError(
            f"unknown attention {name!r}; expected one of {', '.join(ATTENTIONS)}."
            f"{did_you_mean(str(name), ATTENTIONS, otherwise=' Use sdpa to let torch choose.')}"
        )


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = scaled_dot_product_attention(q, k, v)
    return out


def _can(name: str, device: torch.device | str, dtype: torch.dtype, head_dim: int) -> bool:
    if name not in _KERNELS:
        return True
    if _KERNELS[name] is None:
        return False
    q = torch.zeros(1, 1, 16, head_dim, device=device, dtype=dtype, requires_grad=True)
    try:
        with warnings.catch_warnings():  # torch warns once per kernel that it does not take
            warnings.simplefilter("ignore")
            attend(name, q, q, q).sum().backward()
    except RuntimeError:
        return False
    return True


def _format_of(dtype: torch.dtype | str) -> torch.dtype:
    word = str(dtype).lower().removeprefix("torch.")
    format_ = getattr(torch, _SHORT.get(word, word), None)
    if not isinstance(format_, torch.dtype) or not format_.is_floating_point:
        raise UsageError(f"unknown number format {dtype!r}; expected {', '.join(_SHORT)} or a dtype of torch.")
    return format_
