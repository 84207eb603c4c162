import pytest

from ezpz.cluster import count_devices
from ezpz.errors import UsageError

NVIDIA_SMI = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n"
KFD = "/sys/class/kfd/kfd/topology/nodes/{}/properties"


def nothing(_):
    return None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, "cpu", "no driver found")),
        ({"EZPZ_NGPU_PER_HOST": "4"}, (4, "cuda", "EZPZ_NGPU_PER_HOST")),
        ({"EZPZ_NGPU_PER_HOST": "0", "CUDA_VISIBLE_DEVICES": "0"}, (0, "cpu", "EZPZ_NGPU_PER_HOST")),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, (2, "cuda", "CUDA_VISIBLE_DEVICES")),
        ({"CUDA_VISIBLE_DEVICES": ""}, (0, "cpu", "CUDA_VISIBLE_DEVICES")),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, (0, "cpu", "CUDA_VISIBLE_DEVICES")),
        ({"ROCR_VISIBLE_DEVICES": "0"}, (1, "cuda", "ROCR_VISIBLE_DEVICES")),
        ({"SLURM_GPUS_ON_NODE": "4"}, (4, "cuda", "SLURM_GPUS_ON_NODE")),
        ({"TORCH_DEVICE": "cpu", "SLURM_GPUS_ON_NODE": "4"}, (0, "cpu", "TORCH_DEVICE")),
    ],
)
def test_variables_tell_the_devices(environ, expected):
    assert tuple(count_devices(environ, nothing, nothing)) == expected


def test_the_nvidia_driver_is_asked_when_it_is_loaded():
    files = {"/proc/driver/nvidia/version": "NVRM version"}
    assert tuple(count_devices({}, files.get, lambda _: NVIDIA_SMI)) == (2, "cuda", "nvidia-smi -L")
    assert count_devices({}, files.get, nothing).count == 0


def test_amd_devices_are_those_with_compute_units():
    files = {KFD.format(0): "cpu_cores_count 64\nsimd_count 0\n", KFD.format(1): "cpu_cores_count 0\nsimd_count 440\n"}
    assert tuple(count_devices({}, files.get, nothing)) == (1, "cuda", "/sys/class/kfd/kfd/topology/nodes")


def test_a_number_that_is_none_is_refused():
    with pytest.raises(UsageError, match="'four' \\(from EZPZ_NGPU_PER_HOST\\)"):
        count_devices({"EZPZ_NGPU_PER_HOST": "four"}, nothing, nothing)
