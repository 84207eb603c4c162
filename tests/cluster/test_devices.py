"""Which source decides, what stands in the notes, and what is refused."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ezpz.cluster import Allocation, count_devices, probe
from ezpz.cluster.devices import VENDORS, Devices
from ezpz.errors import UsageError

DATA = Path(__file__).parents[1] / "data"
NVIDIA = {
    "/proc/driver/nvidia/version": (DATA / "devices/nvidia-version-535.txt").read_text(),
    "/proc/bus/pci/devices": (DATA / "devices/proc-bus-pci-devices-2xnvidia.txt").read_text(),
}
SMI = (DATA / "devices/nvidia-smi-L-2xa100.txt").read_text()
NONE = "no driver found (/proc/driver/nvidia, /sys/class/kfd, /sys/class/drm)"


def nothing(_):
    return None


def never(argv):
    pytest.fail(f"started {argv}")


def job(*hosts, scheduler="slurm", devices=None):
    told = {"devices": "qstat -f 12"} if devices is not None else {}
    each = None if devices is None else (devices,) * len(hosts)
    return Allocation(scheduler, "12" if scheduler != "none" else "", hosts, devices=each, origin=told)


def site(name, device, devices_per_host):
    return SimpleNamespace(name=name, device=device, devices_per_host=devices_per_host)


POLARIS, AURORA, CPUS = site("polaris", "cuda", 4), site("aurora", "xpu", 12), site("cpus", "cpu", None)
ON_N1, ON_LOGIN = {"/proc/sys/kernel/hostname": "n1.cluster\n"}, {"/proc/sys/kernel/hostname": "login2\n"}


FIRST_SOURCES = [
    ({}, (0, "cpu", NONE)),
    ({"EZPZ_NGPU_PER_HOST": "4"}, (4, "cuda", "EZPZ_NGPU_PER_HOST")),
    ({"EZPZ_NGPU_PER_HOST": ""}, (0, "cpu", NONE)),
    ({"EZPZ_NGPU_PER_HOST": "6", "TORCH_DEVICE": "xpu"}, (6, "xpu", "EZPZ_NGPU_PER_HOST")),
    ({"EZPZ_NGPU_PER_HOST": "0", "CUDA_VISIBLE_DEVICES": "0"}, (0, "cpu", "EZPZ_NGPU_PER_HOST")),
    ({"EZPZ_NGPU_PER_HOST": "2", "SLURM_GPUS_ON_NODE": "many"}, (2, "cuda", "EZPZ_NGPU_PER_HOST")),
    ({"EZPZ_NGPU_PER_HOST": "8", "TORCH_DEVICE": "npu"}, (8, "npu", "EZPZ_NGPU_PER_HOST")),
    ({"TORCH_DEVICE": "cpu", "SLURM_GPUS_ON_NODE": "4"}, (0, "cpu", "TORCH_DEVICE")),
    ({"TORCH_DEVICE": "cpu:0", "EZPZ_NGPU_PER_HOST": "4"}, (0, "cpu", "TORCH_DEVICE")),
    ({"CUDA_VISIBLE_DEVICES": "0,3", "SLURM_GPUS_ON_NODE": "4"}, (2, "cuda", "CUDA_VISIBLE_DEVICES")),
    ({"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "4"}, (0, "cpu", "CUDA_VISIBLE_DEVICES")),
    ({"ZE_AFFINITY_MASK": "", "SLURM_GPUS_ON_NODE": "4"}, (4, "cuda", "SLURM_GPUS_ON_NODE")),
    ({"ZE_AFFINITY_MASK": "0,1"}, (2, "xpu", "ZE_AFFINITY_MASK, FLAT")),
    ({"ZE_AFFINITY_MASK": "0,1", "TORCH_DEVICE": "cuda"},
     (0, "cpu", "no driver found (/proc/driver/nvidia, /sys/class/kfd)")),
    ({"SLURM_GPUS_ON_NODE": "0"}, (0, "cpu", "SLURM_GPUS_ON_NODE")),
    ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "0-3"}, (1, "cuda", "SLURM_STEP_GPUS")),
    ({"SLURM_JOB_GPUS": "0,2-3"}, (3, "cuda", "SLURM_JOB_GPUS")),
    ({"SLURM_JOB_GPUS": "[0-7]"}, (8, "cuda", "SLURM_JOB_GPUS")),
    ({"SLURM_GPUS_PER_NODE": "4"}, (4, "cuda", "SLURM_GPUS_PER_NODE")),
    ({"SLURM_GPUS_PER_NODE": "a100:4"}, (4, "cuda", "SLURM_GPUS_PER_NODE")),
    ({"SLURM_GPUS_PER_NODE": "a100:2,h100:1"}, (3, "cuda", "SLURM_GPUS_PER_NODE")),
    ({"SLURM_GPUS_PER_NODE": "gpu:a100:4(S:0-1)"}, (4, "cuda", "SLURM_GPUS_PER_NODE")),
    ({"SLURM_GPUS_PER_NODE": "(null)"}, (0, "cpu", NONE)),
    ({"SLURM_GPUS_PER_TASK": "1"}, (0, "cpu", NONE)),
    ({"SLURM_GPUS_PER_TASK": "a100:1", "SLURM_NTASKS_PER_NODE": "4"},
     (4, "cuda", "SLURM_GPUS_PER_TASK times SLURM_NTASKS_PER_NODE")),
]  # fmt: skip


def test_the_first_source_that_tells_decides_and_no_process_is_started(subtests):
    for environ, expected in FIRST_SOURCES:
        with subtests.test(**environ):
            assert tuple(count_devices(environ, nothing, never))[:3] == expected


DISAGREEMENT = [
    ({"EZPZ_NGPU_PER_HOST": "4"}, NVIDIA, "EZPZ_NGPU_PER_HOST=4 tells 4, but the driver has 2"),
    ({"EZPZ_NGPU_PER_HOST": "2", "SLURM_GPUS_ON_NODE": "many"}, {}, "'many' (from SLURM_GPUS_ON_NODE)"),
    ({"EZPZ_NGPU_PER_HOST": "1", "SLURM_GPUS_ON_NODE": "2"}, NVIDIA,
     ("EZPZ_NGPU_PER_HOST=1 tells 1, SLURM_GPUS_ON_NODE=2 2; the first decides "
     "(`unset EZPZ_NGPU_PER_HOST` for all)")),
    ({"TORCH_DEVICE": "cpu", "EZPZ_NGPU_PER_HOST": "4"}, {}, "TORCH_DEVICE=cpu decides over EZPZ_NGPU_PER_HOST=4"),
    ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "2"}, NVIDIA,
     ("CUDA_VISIBLE_DEVICES=0 tells 1, SLURM_GPUS_ON_NODE=2 2; the first decides "
     "(`unset CUDA_VISIBLE_DEVICES` for all)")),
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "1"}, NVIDIA,
     "CUDA_VISIBLE_DEVICES=0,1 tells 2, SLURM_GPUS_ON_NODE=1 1; the first decides"),
    ({"SLURM_GPUS_ON_NODE": "4"}, NVIDIA, "SLURM_GPUS_ON_NODE=4 tells 4, but the driver has 2"),
    ({"SLURM_GPUS_ON_NODE": "4"}, {}, f"SLURM_GPUS_ON_NODE=4 tells 4, but {NONE} on this host"),
    ({"CUDA_VISIBLE_DEVICES": "0"}, {}, f"CUDA_VISIBLE_DEVICES=0 tells 1, but {NONE} on this host"),
    ({"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_NODE": "a100:4"}, NVIDIA,
     "SLURM_GPUS_ON_NODE=2 tells 2, SLURM_GPUS_PER_NODE 4; this host's own decides"),
    ({"TORCH_DEVICE": "cuda"}, {}, "TORCH_DEVICE=cuda asks for a device that this host does not show"),
]  # fmt: skip


def test_disagreement_is_noted_without_a_process(subtests):
    for environ, files, noted in DISAGREEMENT:
        with subtests.test(**environ):
            notes = count_devices(environ, files.get, never).notes
            assert len(notes) == 1
            assert noted in notes[0]


ORDINARY = [
    {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "6,7", "SLURM_GPUS_PER_NODE": "2"},
    {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "1", "SLURM_GPUS_ON_NODE": "1"},
    {"CUDA_VISIBLE_DEVICES": "-1"},
    {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
]


def test_what_slurm_and_flux_set_in_ordinary_jobs_is_not_worth_a_note(subtests):
    for environ in ORDINARY:
        with subtests.test(**environ):
            assert count_devices(environ, NVIDIA.get, never).notes == ()


UNREADABLE = [
    ("EZPZ_NGPU_PER_HOST", "four", "expected a whole number. Run `unset EZPZ_NGPU_PER_HOST` or give it one."),
    ("EZPZ_NGPU_PER_HOST", "-1", "expected a whole number"),
    ("EZPZ_NGPU_PER_HOST", "4.0", "expected a whole number"),
    ("EZPZ_NGPU_PER_HOST", "٤", "expected a whole number"),
    ("TORCH_DEVICE", "gpu", "expected one of cuda, xpu, mps, cpu"),
    ("TORCH_DEVICE", "cuda:", "expected one of cuda, xpu, mps, cpu"),
    ("SLURM_GPUS_ON_NODE", "many", "expected a count such as 4, a100:4 or a100:2,h100:1. Run `unset SLURM_"),
    ("SLURM_GPUS_PER_NODE", "a100:", "run `export EZPZ_NGPU_PER_HOST=N`"),
    ("SLURM_JOB_GPUS", "3-0", "expected device numbers such as 0,1 or 0-3"),
    ("SLURM_JOB_GPUS", "0-99999999", "expected device numbers such as 0,1 or 0-3"),
    ("ZE_AFFINITY_MASK", "all", "expected device numbers such as 0,1 or, under COMPOSITE, 0.1"),
]


def test_what_cannot_be_read_is_refused_with_the_way_out(subtests):
    for name, value, expected in UNREADABLE:
        with subtests.test(**{name: value}):
            with pytest.raises(UsageError) as caught:
                count_devices({name: value}, nothing, never)
            assert f"{value!r} (from {name})" in str(caught.value)
            assert expected in str(caught.value)
            assert "\n" not in str(caught.value)


SPEAKING = [
    # a shell that salloc left on a login host with two GPUs of its own
    ({"SLURM_GPUS_PER_NODE": "4"}, job("n1", "n2"), ON_LOGIN | NVIDIA, (4, "cuda", "SLURM_GPUS_PER_NODE")),
    (
        {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_NODE": "4"},
        job("n1"),
        ON_LOGIN,
        (4, "cuda", "SLURM_GPUS_PER_NODE"),
    ),
    ({"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_NODE": "4"}, job("n1"), ON_LOGIN, (4, "cuda", "SLURM_GPUS_PER_NODE")),
    ({}, job("n1", "n2"), ON_LOGIN | NVIDIA, (4, "cuda", "site polaris")),
    ({}, job("10.0.0.7", scheduler="none"), ON_LOGIN, (4, "cuda", "site polaris")),
    # a host of the job: by the first label, by Slurm's name for it, as localhost
    ({}, job("N1.other", "n2", scheduler="pbs"), ON_N1 | NVIDIA, (2, "cuda", "nvidia-smi -L")),
    ({"SLURMD_NODENAME": "gpu-a"}, job("gpu-a"), ON_N1 | NVIDIA, (2, "cuda", "nvidia-smi -L")),
    ({}, job("localhost", scheduler="none"), ON_N1 | NVIDIA, (2, "cuda", "nvidia-smi -L")),
    (
        {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "2"},
        job("n1"),
        ON_N1 | NVIDIA,
        (1, "cuda", "CUDA_VISIBLE_DEVICES"),
    ),
    # a login host without a job, and a job's host without devices: the site's default is not true of them
    ({}, job("n1", scheduler="none"), ON_N1, (0, "cpu", NONE)),
    ({}, job("n1"), ON_N1, (0, "cpu", NONE)),
]


def test_only_a_host_of_the_job_speaks_for_the_job(subtests):
    for environ, allocation, where, expected in SPEAKING:
        with subtests.test(hosts=allocation.hosts, **environ):
            assert tuple(count_devices(environ, where.get, lambda _: SMI, allocation, POLARIS))[:3] == expected


def test_the_site_knows_whose_devices_slurm_counts_on_other_hosts():
    found = count_devices({"SLURM_GPUS_PER_NODE": "6"}, ON_LOGIN.get, never, job("n1"), AURORA)
    assert tuple(found)[:3] == (6, "xpu", "SLURM_GPUS_PER_NODE")
    assert tuple(count_devices({}, ON_LOGIN.get, never, job("n1"), AURORA))[:3] == (12, "xpu", "site aurora")


def test_this_hosts_devices_speak_for_others_only_with_a_note():
    for machine in (None, CPUS):
        found = count_devices({}, (ON_LOGIN | NVIDIA).get, lambda _: SMI, job("n1"), machine)
        assert tuple(found)[:3] == (2, "cuda", "nvidia-smi -L")
        assert "of which this is none; its devices were counted" in found.notes[0]
    found = count_devices({}, ON_LOGIN.get, never, job("n1"))
    assert tuple(found)[:3] == (0, "cpu", NONE)
    assert "of which this is none; none are assumed" in found.notes[0]


def test_a_host_of_the_job_without_the_sites_devices_is_noted():
    found = count_devices({}, ON_N1.get, never, job("n1"), POLARIS)
    assert found.notes == ("site polaris has 4 cuda devices per host, this host shows none",)
    assert count_devices({}, ON_N1.get, never, job("n1", scheduler="none"), POLARIS).notes == ()


def test_the_site_stands_in_where_a_driver_is_there_but_nobody_tells():
    files = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA"}
    found = count_devices({}, files.get, nothing, None, POLARIS)
    assert tuple(found)[:3] == (4, "cuda", "site polaris")
    assert "nvidia-smi -L is missing, failed or took too long" in found.notes[0]
    found = count_devices({}, files.get, nothing)
    assert tuple(found)[:3] == (0, "cpu", "nvidia-smi -L")
    assert "export EZPZ_NGPU_PER_HOST=N" in found.notes[0]


def test_slurms_variables_are_not_of_another_schedulers_job(subtests):
    for scheduler in ("pbs", "flux", "none"):
        with subtests.test(scheduler=scheduler):
            environ = {"SLURM_GPUS_ON_NODE": "8"}
            found = count_devices(environ, (ON_N1 | NVIDIA).get, lambda _: SMI, job("n1", scheduler=scheduler))
            assert tuple(found)[:3] == (2, "cuda", "nvidia-smi -L")
            assert found.notes[0].startswith("SLURM_GPUS_ON_NODE=8 is not of")


def test_a_recorded_slurm_job_tells_its_grant():
    record = json.loads((DATA / "environments/slurm-batch-gpus.json").read_text())
    assert tuple(count_devices(record["env"], nothing, never))[:3] == (4, "cuda", "SLURM_GPUS_ON_NODE")


def test_every_vendor_is_written_down():
    # Who adds a vendor adds its module here and to the tables of the page.
    page = (DATA.parents[1] / "docs" / "devices.md").read_text(encoding="utf-8")
    for name, vendor in VENDORS.items():
        assert vendor.KIND in {"cuda", "xpu", "mps"}
        assert f"`{name}.py`" in page
        assert f"`{vendor.LOOKED}" in page
        assert vendor.exists({}, nothing) in {None, 1}


def test_the_answer_has_four_fields_of_which_the_notes_may_be_left_out():
    assert tuple(Devices(4, "cuda", "test")) == (4, "cuda", "test", ())


def test_this_machine_answers_quickly():
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("EZPZ_", "SLURM_", "TORCH_"))}
    started = []

    def run(argv):
        started.append(argv)
        return probe.run(argv)

    start = time.thread_time()
    found = count_devices(environ, probe.read, run)
    took = time.thread_time() - start
    assert found.count >= 0
    assert (found.kind == "cpu") == (found.count == 0)
    assert found.origin
    assert len(started) <= 1
    if not started:
        assert took < 0.05  # of CPU: 0.3 ms when measured


def test_what_the_schedulers_commands_told_counts_where_its_variables_say_nothing(subtests):
    for scheduler in ("slurm", "pbs", "flux"):
        with subtests.test(scheduler=scheduler):
            found = count_devices({}, nothing, nothing, job("n01", scheduler=scheduler, devices=3))
            assert tuple(found)[:3] == (3, "cuda", "qstat -f 12")


def test_slurms_variable_comes_before_its_command():
    found = count_devices({"SLURM_GPUS_PER_NODE": "a100:2"}, nothing, nothing, job("n01", devices=3))
    assert tuple(found)[:3] == (2, "cuda", "SLURM_GPUS_PER_NODE")
