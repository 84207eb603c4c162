"""The table of peaks: names that resemble each other, formats, and nothing for what nobody knows."""

import re
import types

import pytest
from fake_torch import be_rank, install

from ezpz.dist import device
from ezpz.dist.peaks import TABLE, peak_flops
from ezpz.errors import UsageError


@pytest.fixture
def on(monkeypatch):
    """`on("NVIDIA A100-SXM4-40GB")`: this rank's device has that name."""

    def become(name, kind="cuda", units=None):
        torch = install(monkeypatch, **{kind: 1}, names={kind: name})
        properties = types.SimpleNamespace(max_compute_units=units) if units else types.SimpleNamespace()
        getattr(torch, kind).get_device_properties = lambda index: properties
        return torch

    for name in ("TORCH_DEVICE", "EZPZ_PEAK_FLOPS", "EZPZ_OVERSUBSCRIBE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "_bound", None)
    be_rank(monkeypatch, 0, 1)
    return become


PEAKS = [
    ("NVIDIA A100-SXM4-40GB", 312),
    ("NVIDIA A100-SXM4-80GB", 312),
    ("NVIDIA A100-PCIE-40GB", 312),
    ("NVIDIA A100 80GB PCIe", 312),
    ("NVIDIA A800-SXM4-80GB", 312),
    ("NVIDIA A40", 149.7),
    ("NVIDIA A30", 165),
    ("NVIDIA RTX A6000", 154.8),
    ("NVIDIA L4", 121),
    ("NVIDIA L40S", 362),
    ("NVIDIA H100 80GB HBM3", 989),
    ("NVIDIA H100 PCIe", 756),
    ("NVIDIA H100 NVL", 835),
    ("NVIDIA H200", 989),
    ("NVIDIA H200 NVL", 835),
    ("NVIDIA H20", 148),
    ("NVIDIA GH200 480GB", 989),
    ("NVIDIA GH200 120GB", 989),
    ("NVIDIA B200", 2250),
    ("NVIDIA GB200", 2500),
    ("NVIDIA GB300", 2500),
    ("NVIDIA GeForce RTX 4090", 165.2),
    ("AMD Instinct MI250X", 191.5),
    ("AMD Instinct MI250", 181.05),
    ("AMD Instinct MI250X/MI250", 191.5),
    ("AMD Instinct MI300A", 980.6),
    ("AMD Instinct MI300X", 1307.4),
    ("AMD Instinct MI355X", 2500),
]


def test_bf16_peaks_are_those_of_one_device_with_their_source(subtests, on):
    for name, tera in PEAKS:
        with subtests.test(name=name):
            on(name)
            peak = peak_flops()
            assert peak.flops == pytest.approx(tera * 1e12)
            assert re.search("NVIDIA|AMD", peak.source)


ALIKE = [
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA A10",
    "NVIDIA A10G",
    "NVIDIA H2000",
    "NVIDIA RTX 6000 Ada Generation",
    "Tesla T4",
    "AMD Instinct MI100",
    "AMD Radeon Graphics",
    "",
]


def test_a_device_that_only_resembles_a_listed_one_has_no_peak(subtests, on):
    for name in ALIKE:
        with subtests.test(name=name):
            on(name)
            assert [peak_flops(dtype) for dtype in ("bf16", "fp16", "fp32", "tf32")] == [None] * 4


FORMATS = [
    ("bf16", 312),
    ("bfloat16", 312),
    ("torch.bfloat16", 312),
    ("fp16", 312),
    ("torch.float16", 312),
    ("tf32", 156),
    ("fp32", 19.5),
    ("float32", 19.5),
    ("torch.float32", 19.5),
    ("fp64", None),
    ("torch.int8", None),
]


def test_the_peak_is_that_of_the_number_format(subtests, on):
    for dtype, tera in FORMATS:
        with subtests.test(dtype=dtype):
            on("NVIDIA A100-SXM4-40GB")
            peak = peak_flops(dtype)
            assert (peak and peak.flops) == (pytest.approx(tera * 1e12) if tera else None)


def test_fp32_products_that_may_use_tf32_are_measured_against_tf32(on):
    torch = on("NVIDIA A100-SXM4-40GB")
    torch.get_float32_matmul_precision = lambda: "high"
    assert peak_flops("fp32").flops == 156e12
    assert peak_flops("bf16").flops == 312e12
    torch = on("AMD Instinct MI250X")
    torch.get_float32_matmul_precision = lambda: "high"
    assert peak_flops("fp32").flops == pytest.approx(47.85e12)

    def mixed():
        raise RuntimeError("old and new switches")

    torch = on("NVIDIA A100-SXM4-40GB")
    torch.get_float32_matmul_precision = mixed
    assert peak_flops("fp32").flops == 19.5e12


def test_a_v100_has_no_bf16_peak(on):
    on("Tesla V100-SXM2-32GB")
    assert peak_flops("bf16") is None
    assert peak_flops("fp16").flops == 125e12
    on("Tesla V100-PCIE-16GB")
    assert peak_flops("fp16").flops == 112e12


@pytest.mark.parametrize(("units", "tera"), [(448, 298.1888), (512, 340.7872), (896, 596.3776)])
def test_intels_max_series_is_counted_in_compute_units(on, units, tera):
    on("Intel(R) Data Center GPU Max 1550", "xpu", units)
    peak = peak_flops("bf16")
    assert peak.flops == pytest.approx(tera * 1e12)
    assert f"512 per clock x {units} compute units x 1.3 GHz" in peak.source
    assert peak_flops("fp32").flops == pytest.approx(tera / 16 * 1e12)
    assert peak_flops("fp64") is None


def test_a_max_device_that_hides_its_units_has_no_peak(on):
    on("Intel(R) Data Center GPU Max 1550", "xpu")
    assert peak_flops() is None


@pytest.mark.parametrize("where", ["cpu", "mps"])
def test_cpus_and_mps_have_no_peak(on, where, monkeypatch):
    on("NVIDIA A100-SXM4-40GB")
    assert peak_flops(device=where) is None
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    assert peak_flops() is None


def test_the_users_own_peak_stands_above_the_table(on, monkeypatch):
    on("NVIDIA A100-SXM4-40GB")
    monkeypatch.setenv("EZPZ_PEAK_FLOPS", "1.5e14")
    assert peak_flops("fp32") == (1.5e14, "EZPZ_PEAK_FLOPS")
    assert peak_flops(device="cpu").flops == 1.5e14


def test_a_peak_that_is_no_rate_is_refused(subtests, on, monkeypatch):
    for text in ("312", "312T", "-1e12", "nan", "inf", "many"):
        with subtests.test(text=text), monkeypatch.context() as patch:
            on("NVIDIA A100-SXM4-40GB")
            patch.setenv("EZPZ_PEAK_FLOPS", text)
            with pytest.raises(UsageError, match=r"EZPZ_PEAK_FLOPS\); expected FLOP/s of one device, such as 312e12"):
                peak_flops()


def test_every_entry_is_plausible_and_none_stands_twice():
    names = [frozenset(entry.words.split()) for entry in TABLE]
    assert len(set(names)) == len(names)
    for entry in TABLE:
        assert entry.words == entry.words.lower()
        assert entry.source
        tera = [entry.tera[name] for name in ("fp32", "tf32", "fp16") if name in entry.tera]
        assert tera == sorted(tera), entry
        assert all(10 <= value <= 3000 for value in tera), entry
