"""List the most FLOP/s that a device can do, per number format; the MFU is a measured rate divided by it.

Dense figures (no structured sparsity) of what torch calls one device: one GCD of an MI250X and one tile of a Max 1550,
not the card. A device that is not in the table has no peak; no other device's is taken for it. The bf16 figures agree
with the tables of torchtitan and nanochat of August 2026; those of other formats are the makers' printed ones, and no
second table was compared.

EZPZ_PEAK_FLOPS=312e12      the user's own figure, above the table, whatever the number format
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ezpz.dist.device import device_name, get_device_properties
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Peak(NamedTuple):
    """Most FLOP/s of one device, and who says so."""

    flops: float
    source: str


class _Entry(NamedTuple):
    words: str  # all of these words, in any order, stand in the device's name
    tera: Mapping[str, float]  # number format -> 1e12 FLOP/s; a format that the maker gives no figure for is left out
    source: str


def _halves(dense: float, **others: float) -> dict[str, float]:
    """Return the figures of a device that is as fast in fp16 as in bf16."""
    return {"bf16": dense, "fp16": dense, **others}


_A100 = _halves(312, tf32=156, fp32=19.5)
_H100 = _halves(989, tf32=494.5, fp32=67)
_H100_NVL = _halves(835, tf32=417.5, fp32=60)

# NVIDIA prints most tensor figures with sparsity; here they are halved. AMD's fp32 is that of its matrix cores, which
# torch's matrix products use. fp16 and bf16 figures of GeForce cards are those with fp32 accumulation.
TABLE = (
    _Entry("v100 pcie", {"fp16": 112, "fp32": 14}, "NVIDIA V100 data sheet"),  # no bf16 before the A100
    _Entry("v100", {"fp16": 125, "fp32": 15.7}, "NVIDIA V100 data sheet"),
    _Entry("a100", _A100, "NVIDIA A100 data sheet"),
    _Entry("a100 sxm 64gb", {}, "a chip of Leonardo's own with more cores, without a figure for torch's formats"),
    _Entry("a800", _A100, "NVIDIA A800 data sheet"),
    _Entry("a40", _halves(149.7, tf32=74.8, fp32=37.4), "NVIDIA A40 data sheet"),
    _Entry("a30", _halves(165, tf32=82, fp32=10.3), "NVIDIA A30 data sheet"),
    _Entry("rtx a6000", _halves(154.8, tf32=77.4, fp32=38.7), "NVIDIA RTX A6000 data sheet"),
    _Entry("l4", _halves(121, tf32=60, fp32=30.3), "NVIDIA L4 data sheet"),
    _Entry("l40s", _halves(362, tf32=183, fp32=91.6), "NVIDIA L40S data sheet"),
    _Entry("h100", _H100, "NVIDIA H100 data sheet, SXM"),
    _Entry("h100 pcie", _halves(756, tf32=378, fp32=51), "NVIDIA H100 data sheet, PCIe"),
    _Entry("h100 nvl", _H100_NVL, "NVIDIA H100 data sheet, NVL"),
    _Entry("h200", _H100, "NVIDIA H200 data sheet, SXM"),
    _Entry("h200 nvl", _H100_NVL, "NVIDIA H200 data sheet, NVL"),
    _Entry("gh200", _H100, "NVIDIA GH200 data sheet"),
    _Entry("h20", _halves(148, tf32=74, fp32=44), "press figures of the NVIDIA H20"),
    _Entry("b100", _halves(1800), "NVIDIA Blackwell data sheet, HGX B100"),
    _Entry("b200", _halves(2250), "NVIDIA Blackwell data sheet, HGX B200"),
    _Entry("b300", _halves(2250), "NVIDIA Blackwell data sheet, HGX B300"),
    _Entry("gb200", _halves(2500), "NVIDIA Blackwell data sheet, GB200"),
    _Entry("gb300", _halves(2500), "NVIDIA Blackwell data sheet, GB300"),
    _Entry("geforce rtx 3090", _halves(71, tf32=35.6, fp32=35.6), "NVIDIA GA102 whitepaper"),
    _Entry("geforce rtx 4090", _halves(165.2, tf32=82.6, fp32=82.6), "NVIDIA Ada whitepaper"),
    _Entry("geforce rtx 5090", _halves(209.5, tf32=104.8, fp32=104.8), "NVIDIA RTX Blackwell whitepaper"),
    _Entry("mi250", _halves(181.05, fp32=45.25), "AMD Instinct MI250 data sheet, half of the card"),
    _Entry("mi250x", _halves(191.5, fp32=47.85), "AMD Instinct MI250X data sheet, half of the card"),
    _Entry("mi300a", _halves(980.6, tf32=490.3, fp32=122.6), "AMD Instinct MI300A data sheet"),
    _Entry("mi300x", _halves(1307.4, tf32=653.7, fp32=163.4), "AMD Instinct MI300X data sheet"),
    _Entry("mi325x", _halves(1307.4, tf32=653.7, fp32=163.4), "AMD Instinct MI325X data sheet"),
    _Entry("mi350x", _halves(2300, fp32=144.2), "AMD Instinct MI350X data sheet"),
    _Entry("mi355x", _halves(2500, fp32=157.3), "AMD Instinct MI355X data sheet"),
)

# Another chip, or a part of one, under a listed name: laptops' GPUs, slices (MIG), variants.
_OTHER_CHIP = {"laptop", "mobile", "max", "mig", "ti", "super", "d"}

# Intel's Max series, per compute unit and clock: a tile of Aurora has 448 units and the full chip 512 per tile, and
# under COMPOSITE a device is a card with both tiles, which max_compute_units follows. The clock is what the chip holds
# in matrix products, not the 1.6 GHz of the data sheet (Intel oneAPI GPU optimization guide; 419e12 per tile would
# result).
_MAX_SERIES = {"bf16": 512, "fp16": 512, "tf32": 256, "fp32": 32}
_MAX_CLOCK = 1.3e9

_FORMATS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "tf32": "tf32",
}


def peak_flops(dtype: object = "bf16", device: torch.device | str | None = None) -> Peak | None:
    """Return the most FLOP/s of a device in a number format, None where it is not known.

    ``fp32`` means tf32 where torch was set to use it for fp32 products (``torch.set_float32_matmul_precision``).

    Args:
        dtype: Format of the matrix products: ``bf16``, ``fp16``, ``fp32``, ``tf32``, or torch's own dtype.
        device: By default this rank's.

    Raises:
        UsageError: ``EZPZ_PEAK_FLOPS`` is no number of FLOP/s.
    """
    own = _own_figure(os.environ.get("EZPZ_PEAK_FLOPS", ""))
    if own is not None:
        return own
    kind = str(device).partition(":")[0] if device is not None else ""
    if kind in {"cpu", "mps"}:
        return None
    wanted = _FORMATS.get(str(dtype).lower().removeprefix("torch."), "")
    name = device_name(device)
    if wanted == "fp32" and _is_tf32_allowed(name):
        wanted = "tf32"
    return _of_max_series(name, wanted, device) or _of_table(name, wanted)


def peak_of(name: str, dtype: str = "bf16") -> Peak | None:
    """Return the most FLOP/s of a device by its name alone, such as ``A100`` or ``NVIDIA H100 80GB HBM3``."""
    return _of_table(name, _FORMATS.get(dtype, ""))


def _of_table(name: str, wanted: str) -> Peak | None:
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    if words & _OTHER_CHIP:
        return None
    fitting = [entry for entry in TABLE if words.issuperset(entry.words.split())]
    if not fitting:
        return None
    entry = max(fitting, key=lambda entry: len(entry.words))
    return Peak(entry.tera[wanted] * 1e12, f"{entry.source}, {wanted}") if wanted in entry.tera else None


def _of_max_series(name: str, wanted: str, device: torch.device | str | None) -> Peak | None:
    """Return the peak of ``Intel(R) Data Center GPU Max 1550`` and its like from what the device has."""
    if not re.search(r"data center gpu max \d", name.lower()) or wanted not in _MAX_SERIES:
        return None
    units = get_device_properties(device).get("max_compute_units")
    if not units:
        return None
    per_clock = _MAX_SERIES[wanted]
    source = f"Intel Max series, {wanted}: {per_clock} per clock x {units} compute units x {_MAX_CLOCK / 1e9:g} GHz"
    return Peak(per_clock * units * _MAX_CLOCK, source)


def _is_tf32_allowed(name: str) -> bool:
    import torch

    if "nvidia" not in name.lower():
        return False
    try:
        return str(torch.get_float32_matmul_precision()) != "highest"
    except RuntimeError:  # torch 2.9 and later refuse to answer where old and new switches were mixed
        return False


def _own_figure(text: str) -> Peak | None:
    if not text.strip():
        return None
    try:
        flops = float(text)
    except ValueError:
        flops = -1.0
    if not 1e9 <= flops <= 1e18:
        raise UsageError(
            f"unusable peak {text!r} (from EZPZ_PEAK_FLOPS); expected FLOP/s of one device, such as 312e12. "
            "Run `unset EZPZ_PEAK_FLOPS` to use the table."
        )
    return Peak(flops, "EZPZ_PEAK_FLOPS")
