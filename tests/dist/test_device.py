"""Device and backend without an accelerator: torch is replaced where a test needs one, by a plain object."""

import sys
import types

import pytest

from ezpz.dist import device
from ezpz.errors import MachineError, UsageError


def fake_torch(monkeypatch, **kinds):
    """A torch that shows `kinds` (name: number of devices) and remembers the device that was set."""
    torch = types.ModuleType("torch")
    torch.device = lambda kind, index=None: kind if index is None else f"{kind}:{index}"
    torch.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: "mps" in kinds))
    for kind in ("cuda", "xpu"):
        count = kinds.get(kind, 0)
        module = types.SimpleNamespace(is_available=lambda n=count: n > 0, device_count=lambda n=count: n)
        setattr(torch, kind, module)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def rank(monkeypatch, local, local_world):
    for name, value in {
        "RANK": local,
        "WORLD_SIZE": local_world,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": local_world,
    }.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("kinds", "wish", "expected"),
    [
        ({}, "", ("cpu", "cpu", "gloo")),
        ({"cuda": 4}, "", ("cuda", "cuda:2", "nccl")),
        ({"cuda": 1}, "", ("cuda", "cuda:0", "nccl")),
        ({"cuda": 4, "xpu": 4}, "", ("cuda", "cuda:2", "nccl")),
        ({"mps": 1}, "", ("mps", "mps", "gloo")),
        ({"cuda": 4}, "cpu", ("cpu", "cpu", "gloo")),
        ({"cuda": 4}, "CUDA:1", ("cuda", "cuda:1", "nccl")),
    ],
)
def test_the_device_follows_what_is_there_and_the_users_word(monkeypatch, kinds, wish, expected):
    fake_torch(monkeypatch, **kinds)
    rank(monkeypatch, 2, 4)
    if wish:
        monkeypatch.setenv("TORCH_DEVICE", wish)
    assert (device.get_torch_device_type(), device.get_torch_device(), device.get_torch_backend()) == expected


def test_more_ranks_than_devices_is_an_error_that_names_both(monkeypatch):
    fake_torch(monkeypatch, cuda=2)
    rank(monkeypatch, 3, 4)
    with pytest.raises(MachineError, match=r"local rank 3 of 4 .* 2 cuda devices are visible.*--ppn 2"):
        device.get_torch_device()


def test_a_device_that_is_not_there_names_those_that_are(monkeypatch):
    fake_torch(monkeypatch, cuda=2)
    monkeypatch.setenv("TORCH_DEVICE", "xpu")
    with pytest.raises(UsageError, match=r"no usable xpu device .*cuda, cpu"):
        device.get_torch_device_type()


@pytest.mark.parametrize(
    ("backend", "kind", "expected"),
    [
        ("gloo", "cpu", "gloo"),
        ("nccl", "cuda", "cpu:gloo,cuda:nccl"),
        ("xccl", "xpu", "cpu:gloo,xpu:xccl"),
        ("gloo", "cuda", "gloo"),
        ("gloo", "mps", "gloo"),
    ],
)
def test_accelerators_get_gloo_beside_their_own_backend(backend, kind, expected):
    assert device.group_backend(backend, kind) == expected


def test_xpu_without_any_backend_says_what_to_install(monkeypatch):
    torch = fake_torch(monkeypatch, xpu=2)
    torch.distributed = types.ModuleType("torch.distributed")
    torch.distributed.is_xccl_available = lambda: False
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    monkeypatch.setitem(sys.modules, "oneccl_bindings_for_pytorch", None)
    with pytest.raises(MachineError, match="no collective backend for xpu"):
        device.get_torch_backend()
    torch.distributed.is_xccl_available = lambda: True
    assert device.get_torch_backend() == "xccl"
    monkeypatch.setenv("TORCH_BACKEND", "gloo")
    assert device.get_torch_backend() == "gloo"


def test_synchronize_waits_for_an_accelerator_and_probes_nothing_once_it_is_bound(monkeypatch):
    torch = fake_torch(monkeypatch, cuda=1)
    calls = []
    torch.cuda.set_device = lambda chosen: calls.append("set")
    torch.cuda.synchronize = lambda: calls.append("wait")
    monkeypatch.setattr(device, "_bound", "")
    device.bind_device(types.SimpleNamespace(type="cuda"))
    monkeypatch.setattr(device, "get_torch_device_type", None)
    device.synchronize()
    assert calls == ["set", "wait"]


def test_synchronize_on_a_cpu_asks_torch_for_nothing(monkeypatch):
    fake_torch(monkeypatch)
    monkeypatch.setattr(device, "_bound", "cpu")
    device.synchronize()
