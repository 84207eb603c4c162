"""What each vendor's kernel files and tools say, and what happens when they do not answer."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from ezpz.cluster import count_devices
from ezpz.cluster.devices import amd, apple
from ezpz.errors import UsageError

DATA = Path(__file__).parents[1] / "data" / "devices"
VERSION, PCI = "/proc/driver/nvidia/version", "/proc/bus/pci/devices"
KFD = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
CARD = "/sys/class/drm/card{}/device/uevent"


def recorded(name):
    return (DATA / name).read_text(encoding="utf-8")


def nothing(_):
    return None


NVIDIA = [
    ("nvidia-version-535.txt", "nvidia-smi-L-2xa100.txt", 2),
    ("nvidia-version-590-open.txt", "nvidia-smi-L-2xa100.txt", 2),
    ("nvidia-version-535.txt", "nvidia-smi-L-mig-h100.txt", 1),
    ("nvidia-version-590-open.txt", "nvidia-smi-L-mig-h100.txt", 3),  # three compute instances share one GPU instance
    ("nvidia-version-535.txt", "nvidia-smi-L-mig-8xa100.txt", 1),
    ("nvidia-version-590-open.txt", "nvidia-smi-L-mig-8xa100.txt", 7 + 3 + 2 + 1 + 2 + 1 + 1 + 3),
]


def test_nvidia_counts_what_one_process_sees(subtests):
    for version, listing, count in NVIDIA:
        with subtests.test(version=version, listing=listing):
            run = Mock(return_value=recorded(listing))
            found = count_devices({}, {VERSION: recorded(version)}.get, run)
            assert tuple(found)[:3] == (count, "cuda", "nvidia-smi -L")
            assert run.mock_calls == [call(["nvidia-smi", "-L"])]
            assert ["MIG" in note for note in found.notes] == ([True] if "mig" in listing else [])


def test_gpus_without_mig_count_beside_mig_devices_from_release_570_on():
    listing = recorded("nvidia-smi-L-mig-h100.txt") + "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
    for version, count in (("nvidia-version-535.txt", 1), ("nvidia-version-590-open.txt", 4)):
        assert count_devices({}, {VERSION: recorded(version)}.get, lambda _: listing).count == count


def test_a_silent_nvidia_smi_leaves_the_kernels_list_of_pci_devices(subtests):
    for answer in (None, "", "No devices were found\n"):
        with subtests.test(answer=answer):
            files = {VERSION: recorded("nvidia-version-535.txt"), PCI: recorded("proc-bus-pci-devices-2xnvidia.txt")}
            found = count_devices({}, files.get, Mock(return_value=answer))
            assert tuple(found)[:3] == (2, "cuda", PCI)
            assert "nvidia-smi -L is missing, failed or took too long" in found.notes[0]


def kfd(*simd_counts):
    return {KFD.format(n): f"cpu_cores_count 0\nsimd_count {c}\n" for n, c in enumerate(simd_counts) if c is not None}


def test_amd_devices_are_the_nodes_with_compute_units():
    files = {KFD.format(0): recorded("kfd-properties-cpu.txt"), KFD.format(1): recorded("kfd-properties-mi325x.txt")}
    assert tuple(count_devices({}, files.get, nothing)) == (1, "cuda", "/sys/class/kfd/kfd/topology/nodes", ())
    assert count_devices({}, kfd(0, 440, 440, 440, 440, 440, 440, 440, 440).get, nothing).count == 8


def test_amd_nodes_that_the_cgroup_hides_do_not_end_the_list():
    assert count_devices({}, kfd(0, 0, None, None, 440, None, 440).get, nothing).count == 2
    hidden = [None] * 63
    assert count_devices({}, kfd(0, *hidden, 440).get, nothing).count == 1


def test_a_host_whose_kfd_shows_cpus_only_has_no_amd_device():
    assert count_devices({}, kfd(0, 0).get, nothing).kind == "cpu"


AMDS_TOOLS = [
    ({"amd-smi": "amd-smi-list-2xmi210.txt"}, (2, "cuda", "amd-smi list")),
    ({"rocm-smi": "rocm-smi-showid-2xmi300a.txt"}, (2, "cuda", "rocm-smi --showid")),
    ({}, (0, "cpu", "/sys/class/kfd/kfd/topology/nodes")),
]


def test_amds_tools_are_asked_where_kfd_cannot_be_read(subtests):
    for answers, expected in AMDS_TOOLS:
        with subtests.test(answers=answers):
            files = {"/sys/module/amdgpu/initstate": "live\n"}
            run = {name: recorded(file) for name, file in answers.items()}
            found = count_devices({}, files.get, lambda argv, run=run: run.get(argv[0]))
            assert tuple(found)[:3] == expected
            assert bool(found.notes) == (not answers)


def test_a_hanging_amd_smi_is_not_followed_by_another_tool():
    clock, started = iter([0.0, 5.0]), []
    amd.probe({}, {"/sys/module/amdgpu/initstate": "live\n"}.get, started.append, lambda: next(clock))
    assert started == [["amd-smi", "list"]]


def cards(tiles, uevent="uevent-max1550.txt", path="/sys/class/drm/card{}/gt/gt{}/id", first=1):
    files = {}
    for number, count in enumerate(tiles, first):
        files[CARD.format(number)] = recorded(uevent)
        files |= {path.format(number, tile): "x\n" for tile in range(count)}
    return files


I915 = "/sys/class/drm/card{}/gt/gt{}/id"
XE = "/sys/class/drm/card{0}/device/tile{1}/gt{1}/freq0/min_freq"


def test_intel_cards_have_two_tiles_on_aurora(subtests):
    for path in (I915, XE):
        for model, count in (("", 12), ("FLAT", 12), ("COMBINED", 12), ("COMPOSITE", 6)):
            with subtests.test(path=path, model=model):
                environ = {"ZE_FLAT_DEVICE_HIERARCHY": model}
                found = count_devices(environ, cards([2] * 6, path=path).get, nothing)
                assert tuple(found) == (count, "xpu", f"/sys/class/drm, {model or 'FLAT'}", ())


def test_an_arc_card_counts_although_its_class_is_that_of_a_gpu_inside_a_cpu():
    files = cards([1, 1], "uevent-arc-a770.txt") | {CARD.format(0): recorded("uevent-uhd630.txt")}
    assert tuple(count_devices({}, files.get, nothing))[:2] == (2, "xpu")


def test_a_media_engine_beside_the_first_tile_is_no_tile():
    files = cards([1], "uevent-arc-a770.txt") | {"/sys/class/drm/card1/device/tile0/gt1/freq0/min_freq": "300\n"}
    assert count_devices({}, files.get, nothing).count == 1


def test_the_gpu_inside_a_cpu_is_told_and_not_counted():
    found = count_devices({}, {CARD.format(0): recorded("uevent-uhd630.txt")}.get, nothing)
    assert tuple(found)[:2] == (0, "cpu")
    assert "export TORCH_DEVICE=xpu EZPZ_NGPU_PER_HOST=1" in found.notes[0]


OTHER_CARDS = ["DRIVER=ast\nPCI_ID=1A03:2000\n", "DRIVER=vfio-pci\nPCI_ID=8086:0BD6\n", "\n", "DRIVER"]


def test_other_cards_are_none_of_intels(subtests):
    for uevent in OTHER_CARDS:
        with subtests.test(uevent=uevent):
            assert count_devices({}, {CARD.format(0): uevent}.get, nothing).kind == "cpu"


def test_an_unknown_hierarchy_is_refused_where_it_matters():
    environ = {"ZE_FLAT_DEVICE_HIERARCHY": "flat"}
    with pytest.raises(
        UsageError, match="'flat' \\(from ZE_FLAT_DEVICE_HIERARCHY\\); expected FLAT, COMPOSITE or COMBINED"
    ):
        count_devices(environ, cards([2]).get, nothing)
    assert count_devices(environ, nothing, nothing).count == 0


def test_the_override_takes_the_kind_of_the_driver():
    found = count_devices({"EZPZ_NGPU_PER_HOST": "2"}, cards([2]).get, nothing)
    assert tuple(found) == (2, "xpu", "EZPZ_NGPU_PER_HOST", ())


def test_a_selector_that_names_devices_is_noted():
    for selector, noted in (("level_zero:0", True), ("opencl:gpu;level_zero:gpu", False)):
        found = count_devices({"ONEAPI_DEVICE_SELECTOR": selector}, cards([2]).get, nothing)
        assert bool(found.notes) == noted


def test_torch_device_chooses_among_the_vendors_of_a_host():
    files = cards([1], "uevent-arc-a770.txt") | {VERSION: recorded("nvidia-version-535.txt")}
    listing = recorded("nvidia-smi-L-2xa100.txt")
    assert tuple(count_devices({}, files.get, lambda _: listing))[:2] == (2, "cuda")
    assert tuple(count_devices({"TORCH_DEVICE": "xpu"}, files.get, lambda _: listing))[:2] == (1, "xpu")
    assert tuple(count_devices({"TORCH_DEVICE": "XPU:0"}, files.get, lambda _: listing))[:2] == (1, "xpu")


APPLE = [("Darwin", "arm64", 1), ("Darwin", "x86_64", None), ("Linux", "arm64", None)]


def test_apple_silicon_has_one_device(subtests):
    for sysname, machine, count in APPLE:
        with subtests.test(sysname=sysname, machine=machine):
            system = SimpleNamespace(sysname=sysname, machine=machine)
            assert apple.exists({}, nothing, Mock(return_value=system)) == count
            assert tuple(apple.probe({}, nothing, nothing))[:2] == (1, "mps")
