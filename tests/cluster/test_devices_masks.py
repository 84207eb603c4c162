"""The grammar of each visible-device variable, with and without knowledge of what exists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.cluster import count_devices
from ezpz.cluster.devices import mask_variables

KFD = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
FOUR_AMD = {KFD.format(0): "simd_count 0\n"} | {KFD.format(node): "simd_count 440\n" for node in range(1, 5)}
RELEASE_590 = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  R\n"}
UEVENT = "DRIVER=i915\nPCI_ID=8086:0BD6\nPCI_SLOT_NAME=0000:{}:00.0\n"
TWO_CARDS = {f"/sys/class/drm/card{n}/device/uevent": UEVENT.format(10 + n) for n in (1, 2)}
TWO_CARDS |= {f"/sys/class/drm/card{n}/gt/gt1/id": "1" for n in (1, 2)}


def nothing(_):
    return None


def nvidia(count):
    lines = [f"0{n}00\t10de20b0\t0\tnvidia\n" for n in range(count)]
    return {"/proc/driver/nvidia/version": "NVRM", "/proc/bus/pci/devices": "".join(lines)}


CUDA = [
    ("0,3", 0, 2, ""),
    (" 0 , 3 ", 0, 2, ""),
    ("", 0, 0, ""),
    ("-1", 0, 0, ""),
    ("0,2,-1,1", 0, 2, "'-1' hides itself and all after it"),  # NVIDIA's own example
    ("0,x,1", 0, 1, "'x' hides itself and all after it"),
    ("0,,1", 0, 1, "'' hides itself and all after it"),
    ("1gpu2,2ampere", 0, 2, ""),  # torch's own example
    ("0,1,2,3", 2, 2, "'2' names no device (there are 2) and hides itself and all after it"),
    ("5,0", 2, 0, "'5' names no device"),
    ("1,1", 0, 0, "the repeated '1' hides all devices"),
    ("0,00", 0, 0, "the repeated '00' hides all devices"),
    ("GPU-8932f937,GPU-5d5ba0d6", 0, 2, ""),
    ("GPU-8932f937,1", 0, 1, "'1' hides itself and all after it"),
    ("0,GPU-8932f937", 0, 1, "'GPU-8932f937' hides itself and all after it"),
    ("GPU-1,GPU-1", 0, 0, "the repeated 'GPU-1' hides all devices"),
    ("MIG-c6d4f1ef", 0, 1, ""),
    ("MIG-c6d4f1ef,MIG-cba663e8", 0, 1, "names 2 MIG devices, of which one process sees 1"),
    ("MIG-GPU-5d5ba0d6/7/0", 0, 1, ""),
]


def test_cuda_lists_end_at_the_first_entry_that_is_none(subtests):
    for text, exist, count, noted in CUDA:
        with subtests.test(text=text, exist=exist):
            files = nvidia(exist) if exist else {"/proc/driver/nvidia/version": "NVRM"}
            found = mask_variables.visible({"CUDA_VISIBLE_DEVICES": text}, "nvidia", exist, files.get)
            assert tuple(found)[:3] == (count, "cuda" if count else "cpu", "CUDA_VISIBLE_DEVICES")
            assert noted in "; ".join(found.notes)
            assert bool(noted) == bool(found.notes)


def test_a_process_sees_several_mig_devices_from_release_570_on():
    found = mask_variables.visible({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, "nvidia", 1, RELEASE_590.get)
    assert found.count == 2
    assert "one of each GPU instance" in found.notes[0]


HIP = [
    ({"ROCR_VISIBLE_DEVICES": "0,2"}, 2, ""),
    ({"ROCR_VISIBLE_DEVICES": "0,GPU-4b2c1a9f"}, 1, "'GPU-4b2c1a9f' hides itself"),
    ({"ROCR_VISIBLE_DEVICES": "4"}, 0, "'4' names no device (there are 4)"),
    ({"HIP_VISIBLE_DEVICES": "1"}, 1, ""),
    ({"CUDA_VISIBLE_DEVICES": "1,2,3"}, 3, ""),
    ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, 1, ""),
    ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, 1, ""),
    ({"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}, 0, "run `unset HIP_VISIBLE_DEVICES` to filter once"),
    ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, 0,
     "run `unset CUDA_VISIBLE_DEVICES` to filter once"),
    ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1,2"}, 2, "so that 2 remain"),
    ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, 0, ""),
    ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "-1"}, 0, ""),
    ({"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2", "HIP_VISIBLE_DEVICES": "GPU-2"}, 1, ""),
]  # fmt: skip


def test_hip_counts_among_what_rocr_leaves(subtests):
    for environ, count, noted in HIP:
        with subtests.test(**environ):
            found = count_devices(environ, FOUR_AMD.get, nothing)
            assert tuple(found)[:2] == (count, "cuda" if count else "cpu")
            assert found.origin.split(", ")[0] == next(
                name for name in mask_variables.MASKS[1:3] + mask_variables.MASKS[:1] if name in environ
            )
            assert noted in "; ".join(found.notes)
            assert bool(noted) == bool(found.notes)


LEVEL_ZERO = [
    # two cards of two tiles; the examples of the specification, cut down from four tiles
    ("COMPOSITE", "0, 1", 2, ""),
    ("COMPOSITE", "0", 1, ""),
    ("COMPOSITE", "0.0", 1, ""),
    ("COMPOSITE", "1.0, 1.1", 1, ""),
    ("COMPOSITE", "0.1, 1.1, 1.0, 0.0", 2, ""),
    ("COMPOSITE", "0,1.0", 2, ""),
    ("COMPOSITE", "0,0", 1, ""),
    ("COMPOSITE", "0.2,1.0", 1, "0.2 names no device (there are 2)"),
    ("COMPOSITE", "2", 0, "2 names no device (there are 2)"),
    ("FLAT", "0,1,2,3", 4, ""),
    ("FLAT", "3", 1, ""),
    ("FLAT", "3,0,3", 2, ""),
    ("FLAT", "0.1", 0, "0.1 names no device (there are 4)"),
    ("FLAT", "7,0", 1, "7 names no device (there are 4)"),
    ("COMBINED", "0,3", 2, ""),
    ("COMBINED", "0.1,2", 1, "0.1 names no device"),
    ("", "0,3", 2, ""),
]


def test_level_zero_reads_the_hierarchy_before_the_mask(subtests):
    for model, text, count, noted in LEVEL_ZERO:
        with subtests.test(model=model, text=text):
            environ = {"ZE_AFFINITY_MASK": text} | ({"ZE_FLAT_DEVICE_HIERARCHY": model} if model else {})
            found = count_devices(environ, TWO_CARDS.get, nothing)
            assert tuple(found)[:3] == (count, "xpu" if count else "cpu", f"ZE_AFFINITY_MASK, {model or 'FLAT'}")
            assert noted in "; ".join(found.notes)
            assert bool(noted) == bool(found.notes)


def test_masks_of_other_vendors_say_nothing_of_this_ones_devices():
    everything = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "2,3"}
    assert tuple(count_devices(everything, TWO_CARDS.get, nothing))[:3] == (2, "xpu", "ZE_AFFINITY_MASK, FLAT")
    assert tuple(count_devices(everything, nvidia(4).get, nothing))[:3] == (1, "cuda", "CUDA_VISIBLE_DEVICES")
    only_cuda = {"CUDA_VISIBLE_DEVICES": ""}
    assert tuple(count_devices(only_cuda, TWO_CARDS.get, nothing))[:2] == (4, "xpu")


indices = st.lists(st.integers(0, 15), unique=True, max_size=8)


@given(indices, st.integers(0, 16))
def test_every_list_of_distinct_indices_counts_up_to_the_first_that_does_not_exist(chosen, exist):
    text = ",".join(map(str, chosen))
    wanted = chosen if not exist else chosen[: next((n for n, i in enumerate(chosen) if i >= exist), len(chosen))]
    for vendor, name in (
        ("nvidia", "CUDA_VISIBLE_DEVICES"),
        ("amd", "ROCR_VISIBLE_DEVICES"),
        ("amd", "HIP_VISIBLE_DEVICES"),
    ):
        assert mask_variables.visible({name: text}, vendor, exist, nothing).count == len(wanted)


@given(indices.filter(bool), st.integers(1, 16))
def test_level_zero_passes_over_what_does_not_exist_in_any_order(chosen, exist):
    found = mask_variables.visible({"ZE_AFFINITY_MASK": ",".join(map(str, chosen))}, "intel", exist, nothing)
    assert found.count == sum(index < exist for index in chosen)


@pytest.mark.slow
@given(st.text(max_size=30), st.integers(0, 8))
def test_no_text_makes_more_devices_than_entries_or_than_exist(text, exist):
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        found = mask_variables.visible({name: text}, "nvidia" if name.startswith("CUDA") else "amd", exist, nothing)
        assert 0 <= found.count <= text.count(",") + 1
        notes = count_devices({name: text}, nothing, nothing).notes
        assert not any("\n" in note for note in notes)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=6))
def test_tiles_of_one_card_are_one_device_under_composite(pairs):
    environ = {"ZE_AFFINITY_MASK": ",".join(f"{card}.{tile}" for card, tile in pairs)}
    environ["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"
    assert count_devices(environ, TWO_CARDS.get, nothing).count == len({card for card, _ in pairs})
