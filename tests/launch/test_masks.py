"""Which devices ranks see: ``--devices``, and the user's own mask under a launcher that sets masks anew."""

import pytest

from ezpz.cluster.devices import Devices
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import UsageError
from ezpz.launch.contract import restore_mask
from ezpz.launch.device_choice import chosen_devices, mask_settings
from ezpz.launch.options import parse

SLURM = scheduler("slurm")
FOUR = Devices(4, "cuda", "SLURM_GPUS_ON_NODE")


def settings(environ, entries=(), around=SLURM, devices=None):
    devices = devices or Devices(2, "cuda", "--devices" if entries else "CUDA_VISIBLE_DEVICES")
    return {name: value for name, (value, _) in mask_settings(environ, devices, entries, around).items()}


def test_a_list_of_devices_is_read(subtests):
    lists = {"0,1": "0 1", "2-3": "2 3", "3": "3", "0,2-3": "0 2 3", "GPU-8932f937,GPU-5d5b": "GPU-8932f937 GPU-5d5b"}
    for text, entries in lists.items():
        with subtests.test(text):
            assert parse(["--devices", text, "true"], {}).devices == tuple(entries.split())


def test_what_is_no_list_of_devices_is_refused(subtests):
    for text in ["", "a", "1,,2", "1,1", "0-2,1", "3-1", "-1"]:
        with subtests.test(text), pytest.raises(UsageError, match=r"--devices"):
            parse(["--devices", text, "true"], {})


def test_devices_are_chosen_among_the_visible_ones():
    assert tuple(chosen_devices(FOUR, ("2", "3")))[:3] == (2, "cuda", "--devices")
    with pytest.raises(UsageError, match=r"no device 4 \(from --devices 1,4\): 4 are visible \(SLURM_GPUS_ON_NODE\)"):
        chosen_devices(FOUR, ("1", "4"))
    with pytest.raises(UsageError, match=r"cpu devices have no mask"):
        chosen_devices(Devices(0, "cpu", "no driver"), ("0",))


def test_a_launcher_that_passes_masks_on_gets_the_mask_alone(subtests):
    for environ, entries, expected in [
        ({}, "2 3", {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "2 3", {"CUDA_VISIBLE_DEVICES": "6,7"}),
        ({"HIP_VISIBLE_DEVICES": "1,3"}, "1", {"HIP_VISIBLE_DEVICES": "3"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "1", {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
    ]:
        with subtests.test(entries):
            assert settings(environ, tuple(entries.split()), None) == expected
    assert settings({}, ("10", "11"), None, Devices(2, "xpu", "--devices")) == {"ZE_AFFINITY_MASK": "10,11"}


def test_the_users_own_mask_is_carried_past_a_launcher_that_sets_masks_anew(subtests):
    for environ, places in [
        # What Slurm itself has set is no choice of the user's.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "GPU_DEVICE_ORDINAL": "0,1,2,3"}, None),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_GPUS": "4-7"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_GPUS_ON_NODE": "4"}, None),
        # A cgroup hides what is not the job's, and counts from 0; without one the host's own numbers stay.
        ({"CUDA_VISIBLE_DEVICES": "2,3", "GPU_DEVICE_ORDINAL": "0,1,2,3", "SLURM_JOB_GPUS": "2-5"}, "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "6,7", "SLURM_JOB_GPUS": "4-7"}, "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b", "SLURM_JOB_GPUS": "4-7"}, "GPU-b"),
    ]:
        with subtests.test(environ):
            told = settings(environ)
            mask = environ["CUDA_VISIBLE_DEVICES"]
            assert told == ({} if places is None else {"EZPZ_DEVICES": f"CUDA_VISIBLE_DEVICES {mask} {places}"})
    # Nor does a mask of a host count that is none of the job's.
    assert settings({"CUDA_VISIBLE_DEVICES": "0"}, devices=Devices(4, "cuda", "SLURM_GPUS_PER_NODE")) == {}


def test_the_shim_chooses_the_same_devices_again(subtests):
    for given, carried, expected in [
        ("0,1,2,3", "6,7 2,3", "2,3"),  # the launcher has counted anew
        ("0,1,6,7", "6,7 2,3", "6,7"),  # another host of the job has other devices
        ("6,7", "6,7 2,3", "6,7"),  # the user's mask came through
        ("0,1", "6,7 2,3", ""),  # a host with fewer: nothing is shared in silence
        ("GPU-a,GPU-b", "GPU-b GPU-b", "GPU-b"),
        (None, "6,7 2,3", "2,3"),
    ]:
        with subtests.test(given):
            environ = {"EZPZ_DEVICES": f"CUDA_VISIBLE_DEVICES {carried}"}
            environ |= {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
            restore_mask(environ)
            assert environ == {"CUDA_VISIBLE_DEVICES": expected}
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}  # without a choice nothing changes
    restore_mask(environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
