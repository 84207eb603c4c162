"""What a version of torch cannot do on a device, told by a stand-in that carries the version."""

import sys
import types

import pytest
from fake_torch import install

from ezpz.dist import torch_support
from ezpz.errors import MachineError

VERSIONS = [
    ("2.5.1+cxx11.abi", (2, 5)),
    ("2.10.0a0+git1eba9b3", (2, 10)),
    ("2.13.0", (2, 13)),
    ("2.8.0.dev20250601+xpu", (2, 8)),
]


def test_versions_of_wheels_nightlies_and_own_builds_are_read(subtests, monkeypatch):
    for text, expected in VERSIONS:
        with subtests.test(text=text), monkeypatch.context() as patch:
            install(patch, version=text)
            assert torch_support.torch_version() == expected


FSDP2 = [
    ("cuda", "2.4.1", True),
    ("cpu", "2.7.1", False),
    ("cpu", "2.8.0", True),
    ("xpu", "2.5.1+cxx11.abi", False),
    ("xpu", "2.7.1", False),
    ("xpu", "2.8.0+xpu", True),
    ("xpu", "2.10.0", True),
    ("npu", "2.7.1", False),
    ("npu", "2.8.0", True),
    ("mps", "2.13.0", False),
]


def test_fsdp2_is_refused_where_this_torch_would_fail_later(subtests, monkeypatch):
    for kind, version, works in FSDP2:
        with subtests.test(kind=kind, version=version), monkeypatch.context() as patch:
            install(patch, version=version)
            if works:
                torch_support.check_fsdp2(kind)
                continue
            short = ".".join(version.split(".")[:2])
            with pytest.raises(
                MachineError, match=rf"FSDP2 does not work on {kind} with torch {short}: .+; expected .*ddp"
            ):
                torch_support.check_fsdp2(kind)


def test_the_refusal_on_aurora_names_the_reason_and_the_version(monkeypatch):
    install(monkeypatch, version="2.5.1+cxx11.abi")
    with pytest.raises(MachineError, match=r"fully_shard calls torch\.cuda.*expected torch >= 2\.8"):
        torch_support.check_fsdp2("xpu")


@pytest.mark.parametrize(
    ("version", "home"), [("2.5.1", "torch.distributed._composable.fsdp"), ("2.6.0", "torch.distributed.fsdp")]
)
def test_fully_shard_is_taken_from_where_this_torch_has_it(monkeypatch, version, home):
    install(monkeypatch, version=version)
    monkeypatch.setitem(sys.modules, home, types.SimpleNamespace(fully_shard="here"))
    assert torch_support.fsdp2().fully_shard == "here"


AVERAGES = [
    ("cuda", "2.4.0", True),
    ("xpu", "2.13.0", False),
    ("cpu", "2.9.1", False),
    ("cpu", "2.13.0", True),
    ("npu", "2.13.0", False),
]


def test_averages_are_trusted_only_where_they_are_known_to_be_right(subtests, monkeypatch):
    for kind, version, expected in AVERAGES:
        with subtests.test(kind=kind, version=version), monkeypatch.context() as patch:
            install(patch, version=version)
            assert torch_support.average_is_supported(kind) is expected


def test_gpus_whose_group_is_made_of_gloo_average_as_gloo_does(monkeypatch):
    dist = install(monkeypatch, version="2.9.1", cuda=1).distributed
    dist.is_initialized = lambda: True
    dist.get_backend_config = lambda: "cpu:gloo,cuda:gloo"
    assert torch_support.average_is_supported("cuda") is False
    dist.get_backend_config = lambda: "cpu:gloo,cuda:nccl"
    assert torch_support.average_is_supported("cuda") is True


def sharded(summed, count=3):
    """A model with `count` wrapped modules and one plain one; `summed` gets what each was told."""

    def told(*, enable):
        summed.append(enable)

    wrapped = [types.SimpleNamespace(set_force_sum_reduction_for_comms=told) for _ in range(count)]
    return types.SimpleNamespace(modules=lambda: iter([*wrapped, types.SimpleNamespace()]))


def test_gradients_are_summed_where_the_backend_cannot_average(subtests, monkeypatch):
    for kind, changed in (("xpu", True), ("npu", True), ("cuda", False)):
        with subtests.test(kind=kind), monkeypatch.context() as patch:
            install(patch)
            told = []
            assert torch_support.sum_gradients(sharded(told), kind) is changed
            assert told == [True] * 3 * changed
