"""What a sample costs, and the rates that follow from it: samples, tokens and FLOP/s of all ranks and of one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.dist.peaks import Peak

__all__ = ["Cost", "rates"]


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

    ``sps`` and ``tps`` count the samples and tokens of all ranks, ``…_per_gpu`` is that by the number of ranks, whatever
    device they have, and ``mfu`` is the share of the devices' peak FLOP/s in percent (PaLM, arXiv 2204.02311, appendix B).

    Args:
        sps: Samples per second of all data-parallel ranks together.
        world_size: Ranks, tensor-parallel ones included: all of them have a device that counts.
        cost: What a sample costs; without it there are no tokens and no MFU.
        peak: FLOP/s of one device; None where nobody has stated it, and then there is no MFU.
    """
    values = {"sps": sps, "sps_per_gpu": sps / world_size}
    if cost is not None and cost.tokens_per_sample:
        tps = sps * cost.tokens_per_sample
        values |= {"tps": tps, "tps_per_gpu": tps / world_size}
    if cost is not None and peak is not None:
        values["mfu"] = 100.0 * cost.flops_per_sample * sps / (world_size * peak.flops)
    return values
