"""Count the arithmetic of training, and turn it into rates: samples, tokens and FLOP/s, and the share of a device's
peak.

A FLOP is one multiplication or one addition; a matrix product of (m, k) and (k, n) has 2 m k n. Backward computes twice
what forward does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from ezpz.dist.peaks import Peak


@dataclass(frozen=True)
class Cost:
    """The work in one sample.

    Attributes:
        flops_per_sample: FLOPs of its forward and backward on the whole model, recomputation not counted
            (`ezpz.train.count_flops`, `ezpz.train.transformer_flops`).
        tokens_per_sample: Its tokens; 0 where samples have none.
        dtype: Number format of the matrix products, which chooses the device's peak.
    """

    flops_per_sample: float
    tokens_per_sample: int = 0
    dtype: str = "fp32"


def rates(sps: float, world_size: int, cost: Cost | None, peak: Peak | None) -> dict[str, float]:
    """Return what a number of samples per second means.

    ``sps`` and ``tps`` count the samples and tokens of all ranks, ``…_per_gpu`` is that by the number of ranks,
    whatever device they have, and ``mfu`` is the share of the devices' peak FLOP/s in percent (PaLM, arXiv 2204.02311,
    appendix B).

    Args:
        sps: Samples per second of all data-parallel ranks together.
        world_size: Ranks, tensor-parallel ones included: all of them have a device that counts.
        cost: What a sample costs; without it there are no tokens and no MFU.
        peak: FLOP/s of one device; None where it is unknown, and then there is no MFU.
    """
    values = {"sps": sps, "sps_per_gpu": sps / world_size}
    if cost is not None and cost.tokens_per_sample:
        tps = sps * cost.tokens_per_sample
        values |= {"tps": tps, "tps_per_gpu": tps / world_size}
    utilisation = mfu(cost.flops_per_sample * sps / world_size, peak) if cost is not None else None
    return values if utilisation is None else {**values, "mfu": utilisation}


def transformer_flops(parameters: int, n_layers: int, n_heads: int, head_dim: int, seq_len: int) -> float:
    """Return FLOPs per token of forward and backward: ``6 N + 12 L H Q T``.

    From PaLM (arXiv:2204.02311, appendix B): every weight is in one multiplication and one addition per token, three
    times; the second term is ``Q K^T`` and the product with V. Attention counts as if nothing were masked, and what
    activation checkpointing computes again does not count.

    Args:
        parameters: N; see `parameters_for_flops` for which to count.
        n_layers: L.
        n_heads: H, heads of queries.
        head_dim: Q, features of one head.
        seq_len: T, tokens of one sequence.
    """
    return float(6 * parameters + 12 * n_layers * n_heads * head_dim * seq_len)


def parameters_for_flops(model: nn.Module) -> int:
    """Return the number of parameters without embeddings, for they are looked up, not multiplied.

    So counts torchtitan. nanoGPT leaves out positions but keeps the token embedding, because GPT-2's is the output's
    weight too: such a tied weight counts here as well, once.

    Args:
        model: Wrapped or not; what is cut over ranks counts whole.
    """
    from torch import nn

    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    multiplied = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return sum(each.numel() for each in model.parameters() if id(each) not in looked_up - multiplied)


def count_flops(model: nn.Module, *inputs: Any, loss: Callable[[Any], torch.Tensor] | None = None) -> float:
    """Return the FLOPs of one forward and backward, counted by torch while the model runs on the meta device.

    Takes no memory, whatever the sizes, and changes neither model, gradients nor random numbers. Matrix products,
    convolutions and attention count, elementwise work does not.

    Args:
        model: Before `wrap_model`, on any device.
        *inputs: What the model is called with; of tensors only shape and dtype matter.
        loss: From the model's output to the scalar that ``backward`` starts from; by default the sum of the output.

    Raises:
        UsageError: The model is wrapped already, or gives no tensor and ``loss`` is not given.
    """
    import torch
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    if any(hasattr(each, "placements") for each in model.parameters()) or hasattr(model, "no_sync"):
        raise UsageError(
            f"{type(model).__name__} is wrapped for several ranks already (from count_flops); expected the plain "
            "model. Count before wrap_model."
        )
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = {name: _without_memory(tensor).requires_grad_(tensor.requires_grad) for name, tensor in tensors.items()}
    shapes = tuple(_without_memory(each) if isinstance(each, torch.Tensor) else each for each in inputs)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        output = functional_call(model, weights, shapes)
        if loss is None and not isinstance(output, torch.Tensor):
            raise UsageError(
                f"{type(model).__name__} gives a {type(output).__name__} (from count_flops); expected a tensor. Pass "
                "loss=lambda output: … , which returns the scalar to go backward from."
            )
        (output.sum() if loss is None else loss(output)).backward()
    return float(counter.get_total_flops())


def mfu(flops_per_second: float, peak: Peak | float | None) -> float | None:
    """Return the model FLOPs utilisation in percent: what the model's own arithmetic takes of the device's peak.

    Args:
        flops_per_second: FLOPs of the model (`transformer_flops`, `count_flops`) that one device did in a second of
            wall time.
        peak: FLOP/s of one device in the number format used (`ezpz.peak_flops`).

    Returns:
        None where the peak is unknown: no other device's is taken instead.
    """
    if peak is None:
        return None
    return 100.0 * flops_per_second / (peak.flops if isinstance(peak, tuple) else peak)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(tensor, device="meta", requires_grad=False)
