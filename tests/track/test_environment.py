import sys

import pytest

from ezpz.track.run_facts import began, collect_environment, timeline

FILES = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  "
    "Tue Mar  5 22:23:56 UTC 2024\nGCC version: x\n",
    "/sys/module/amdgpu/version": "6.7.0\n",
    "/etc/os-release": 'NAME="SLES"\nPRETTY_NAME="SUSE Linux Enterprise Server 15 SP5"\n',
}
ENVIRON = {
    "LOADEDMODULES": "gcc/12.2:cuda/12.4:",
    "NCCL_SOCKET_IFNAME": "hsn0",
    "OMP_NUM_THREADS": "8",
    "TORCHELASTIC_RUN_ID": "4a224bb7",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "TORCH_API_TOKEN": "hunter2",
    "TORCH_PROXY": "http://me:hunter2@proxy:80",
    "HOME": "/home/me",
    "FILES": "x",
    "WANDB_API_KEY": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
}


def test_what_can_change_numbers_is_kept_and_nothing_else():
    found = collect_environment(ENVIRON, lambda path: FILES.get(path, ""))
    assert found["modules"] == ["gcc/12.2", "cuda/12.4"]
    assert found["driver"] == {"nvidia": "550.54.15", "amdgpu": "6.7.0"}
    assert found["system"] == "SUSE Linux Enterprise Server 15 SP5"
    shown = found["variables"]
    kept = {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_API_TOKEN", "TORCH_PROXY"}
    assert (shown["NCCL_SOCKET_IFNAME"], shown.keys()) == ("hsn0", {"NCCL_SOCKET_IFNAME", *kept})
    assert "hunter2" not in str(found)


def test_the_open_kernel_module_of_nvidia_is_read_and_a_machine_that_tells_nothing_is_empty(monkeypatch):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n"
    found = collect_environment({}, lambda path: text if "nvidia" in path else "")
    assert found["driver"] == {"nvidia": "565.57.01"}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert collect_environment({}, lambda _: "") == {}


@pytest.mark.slow
def test_versions_below_torch_are_asked_only_when_it_is_there(run_python):
    code = """
import sys
from ezpz.track.run_facts import collect_environment
collect_environment({})
assert "torch" not in sys.modules
import torch
from ezpz.dist.info import library_versions
assert library_versions().keys() <= {"cuda", "hip", "xpu", "cudnn", "nccl", "oneccl"}
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_stages_count_from_the_birth_of_the_process(run_python):
    code = """
import time
start = time.time()
from ezpz.progress import stage
from ezpz.track.run_facts import began, timeline
assert 0 <= start - began() < 60, (start, began())
stage("torch"); time.sleep(0.05); stage("group"); stage("torch")
found = timeline(first_step=time.time())
assert list(found) == ["torch", "group", "first_step"], found
assert found["group"] - found["torch"] >= 0.04  # each is rounded
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert began() < 4e9
    assert isinstance(timeline(), dict)
