"""The guarded calls: on the real CPU of this machine, and on devices that stand in for those it lacks."""

import ast
import os
import re
import sys
import types
from pathlib import Path

import pytest
from fake_torch import Event, be_rank, install

import ezpz
from ezpz.dist import device, host_memory

MB = 1_000_000


@pytest.fixture(autouse=True)
def _nothing_is_told(monkeypatch):
    for name in ("TORCH_DEVICE", "CUDA_VISIBLE_DEVICES", "EZPZ_OVERSUBSCRIBE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "_bound", None)
    be_rank(monkeypatch, 0, 1)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE", "cpu")


def everything(where=None):
    return {
        "synchronize": device.synchronize(where),
        "memory_allocated": device.memory_allocated(where),
        "max_memory_allocated": device.max_memory_allocated(where),
        "reset_peak_memory": device.reset_peak_memory(where),
        "total_memory": device.total_memory(where),
        "device_name": device.device_name(where),
        "empty_cache": device.empty_cache(),
        "bf16": device.is_bf16_supported(where),
        "event": device.make_event(),
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_cpus_memory_is_that_of_the_process(on_cpu):
    before = device.memory_allocated()
    block = bytearray(os.urandom(1024)) * (80 * 1024)
    assert device.memory_allocated() - before == pytest.approx(80 * 2**20, rel=0.1)
    assert device.max_memory_allocated() >= device.memory_allocated() - MB
    assert device.total_memory() > device.memory_allocated()
    del block
    assert device.max_memory_allocated() - device.memory_allocated() > 60 * MB
    if not host_memory.reset_peak():
        pytest.skip("this kernel lets no process reset its peak")
    assert device.max_memory_allocated() - device.memory_allocated() < 20 * MB


def test_every_call_works_on_a_cpu(on_cpu):
    told = everything()
    assert told["device_name"]
    assert told["bf16"] is True
    assert told["event"] is None
    assert set(device.get_device_properties()) == {"name", "total_memory"}


def test_the_cpus_model_is_the_kernels_or_else_the_architecture(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "_PROC", tmp_path)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7A53 64-Core Processor\n")
    assert host_memory.cpu_model() == "AMD EPYC 7A53 64-Core Processor"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert re.fullmatch(r"\w+", host_memory.cpu_model())


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/", {"memory.max": "max"}, None),
        ("0::/job_1/step_0", {"memory.max": "max", "job_1/memory.max": "4096", "job_1/step_0/memory.max": "max"}, 4096),
        ("0::/docker/abc", {"memory.max": "8192"}, 8192),
        (
            "5:cpu:/x\n4:memory:/slurm/job_1",
            {
                "memory/slurm/memory.limit_in_bytes": "9223372036854771712",
                "memory/slurm/job_1/memory.limit_in_bytes": "77",
            },
            77,
        ),
    ],
    ids=["no limit", "version 2, on the job", "in a container", "version 1"],
)
def test_a_control_groups_limit_is_the_cpus_memory(monkeypatch, tmp_path, groups, limits, expected):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in limits.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(host_memory, "_ROOT", str(tmp_path))
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_memory.total() == (host if expected is None else expected)


def test_without_proc_the_peak_of_getrusage_stands_in(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "_PROC", tmp_path)
    assert host_memory.current() == host_memory.peak() > 10 * MB
    assert host_memory.reset_peak() is False


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_accelerators_own_module_is_asked_about_this_ranks_device(monkeypatch, kind):
    torch = install(monkeypatch, **{kind: 4}, names={kind: "Fast Device 9000"})
    torch.distributed.is_initialized = lambda: True
    device.bind_device(torch.device(kind, 3))
    torch.calls.clear()
    told = everything()
    assert (told["memory_allocated"], told["max_memory_allocated"], told["total_memory"]) == (103, 203, 4096)
    assert (told["device_name"], told["bf16"]) == ("Fast Device 9000", True)
    assert isinstance(told["event"], Event)
    assert told["event"].enable_timing
    assert torch.calls == [(kind, "synchronize", "3"), (kind, "reset_peak_memory_stats", "3"), (kind, "empty_cache")]
    assert device.memory_allocated(f"{kind}:1") == 101
    assert device.get_device_properties(2) == {"name": "Fast Device 9000", "total_memory": 4096, "major": 8}


def test_a_gpu_that_only_emulates_bf16_does_not_support_it(monkeypatch):
    torch = install(monkeypatch, cuda=1)
    torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(major=7)
    assert device.is_bf16_supported() is False
    torch.version.hip = "6.4"
    assert device.is_bf16_supported() is True


def test_mps_is_asked_in_its_own_words(monkeypatch):
    torch = install(monkeypatch, mps=1)
    told = everything()
    assert (told["memory_allocated"], told["max_memory_allocated"], told["total_memory"]) == (11, 22, 33)
    assert told["device_name"]
    assert isinstance(told["event"], Event)
    assert torch.calls == [("mps", "synchronize"), ("mps", "empty_cache")]
    torch.backends.mps.get_name = lambda: "Apple M4"
    assert device.get_device_properties() == {"name": "Apple M4", "total_memory": 33}


def test_what_a_vendors_module_lacks_is_nothing_and_no_attribute_error(monkeypatch):
    torch = install(monkeypatch, vendor="npu", npu=1)
    bare = {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0}
    torch.npu = types.SimpleNamespace(**bare)
    told = everything()
    assert {name for name, value in told.items() if value} == {"device_name"}
    assert told["device_name"] == "npu"
    torch.npu.mem_get_info = lambda index: (10, 64)
    torch.npu.get_amp_supported_dtype = lambda: [torch.bfloat16]
    assert device.total_memory() == 64
    assert device.is_bf16_supported() is True


def test_synchronize_probes_nothing_once_the_device_is_bound(monkeypatch):
    torch = install(monkeypatch, cuda=1)
    device.bind_device(torch.device("cuda", 0))
    monkeypatch.setattr(device, "get_torch_device_type", None)
    torch.cuda.is_available = None
    device.synchronize()
    assert torch.calls == [("cuda", "set_device", "cuda:0"), ("cuda", "synchronize", "0")]


def test_synchronize_without_torch_returns_without_loading_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device.synchronize()
    assert "torch" not in sys.modules


@pytest.mark.slow
def test_nothing_else_of_ours_calls_a_devices_module():
    """``torch.cuda.anything`` ends a run on every other device, so it is looked up by name, here and nowhere else."""
    for path in Path(ezpz.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr not in {"cuda", "xpu", "mps"}, f"{path}:{node.lineno}"


_COMMON = "is_available device_count current_device set_device synchronize empty_cache memory_allocated Event "
_COMMON += "max_memory_allocated reset_peak_memory_stats mem_get_info get_device_name get_device_properties"
_MPS = "synchronize empty_cache current_allocated_memory driver_allocated_memory recommended_max_memory event.Event"


@pytest.mark.parametrize(("kind", "names"), [("cuda", _COMMON), ("xpu", _COMMON), ("mps", _MPS)])
def test_the_stand_ins_speak_as_torch_does(kind, names):
    import torch

    assert not [name for name in names.split() if not callable(_attribute(getattr(torch, kind), name))]


def _attribute(thing, path):
    for name in path.split("."):
        thing = getattr(thing, name, None)
    return thing
