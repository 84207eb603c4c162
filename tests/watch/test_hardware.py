"""What the hardware does: recorded answers of drivers, the rows that come of them, and what is kept and noted."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz import proc
from ezpz.cluster.devices.nvml import Nvml
from ezpz.cluster.devices.visible_devices import Ranks
from ezpz.errors import UsageError
from ezpz.launch.rank_variables import sampling
from ezpz.watch.hardware import messages
from ezpz.watch.hardware.host import Window
from ezpz.watch.hardware.launcher import HARDWARE, HardwareRecord
from ezpz.watch.hardware.sampler.counter_files import Files
from ezpz.watch.hardware.sampler.sampled_host import Host
from ezpz.watch.hardware.sampler.sampler_process import SOURCES, Reader
from lab import flavours
from lab.process import wait_until
from lab.require import require
from lab.ssh import LAUNCH, SRC, Site
from lab.watching import launcher_handle

HERE = Path(__file__).parent
UNKNOWN, NO_DRIVER, TIMEOUT, GPU_IS_LOST = 999, 9, 10, 15  # nvmlReturn_t
ANY = object()  # rows that are not looked at


def ranks(*environs, pids=()):
    return Ranks(pids, environs)


EACH_ITS_OWN = ranks(*({"LOCAL_RANK": str(each)} for each in range(3)))


# Recorded answers. `play` lets them come one after the other, and compares the rows whole.


def put(folder, answers):
    """Let the files below a folder answer this; None takes an answer away."""
    for path, text in answers.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink() if text is None else target.write_text(f"{text}\n")


def play(source, folder, recording):
    """Play (answers that change, number of samples, the rows of each of these, problems that are told meanwhile)."""
    for place, (answers, samples, rows, problems) in enumerate(recording):
        put(folder, answers)
        for number in range(samples):
            came = source.read()
            assert rows is ANY or {row["id"]: row for row in came} == rows, f"part {place}, sample {number}"
        assert (place, source.problems) == (place, problems)
        source.problems.clear()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The stand-in, under the name by which the driver's library is found."""
    require("compiler", "" if shutil.which("gcc") else "no gcc")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    line = ["gcc", "-shared", "-fPIC", "-O0", "-o", library, HERE / "hardware" / "nvml.c"]
    subprocess.run([str(word) for word in line], check=True, timeout=300)
    return library


H100 = "NVIDIA H100 80GB HBM3"
USUAL = {"name": H100, "power": 400_000, "energy": 10**9, "clock": 1980, "memory_clock": 2619, "temperature": 41}
USUAL |= {"used": 97, "memory": 60 << 30, "reasons": 0x4, "ecc": 2}


def answer(folder, index, **values):
    put(folder, {f"{index}.{what}": value for what, value in values.items()})


def make_cards(folder, number):
    """So many equal cards for the stand-in, which answers from this folder."""
    folder.mkdir()
    for index in range(number):
        answer(folder, index, uuid=f"GPU-{index}abc", **USUAL)
    return folder


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """`cards(number)` -> the folder from which the stand-in answers for so many equal cards."""

    def make(number, name="cards"):
        folder = make_cards(tmp_path / name, number)
        monkeypatch.setenv("FAKE_NVML", str(folder))
        return folder

    return make


def card(index, *lacks, xids=0):
    """The row of a card that answers as usual but for what it lacks."""
    now = {"power": 400.0, "clock": 1980, "memory_clock": 2619, "temperature": 41, "used": 97}
    now |= {"memory": 60 << 30, "memory_total": 80 << 30}
    count = {"joules": 1e6, "errors": 2, "xids": xids}
    row = {"id": str(index), "name": H100, "given": True, "why": ["power cap"]}
    row |= {"now": {name: value for name, value in now.items() if name not in lacks}}
    row |= {"count": {name: value for name, value in count.items() if name not in lacks}}
    return {name: value for name, value in row.items() if name not in lacks}


def those(*rows):
    return {row["id"]: row for row in rows}


FIRST, SECOND = f"device 0 ({H100})", f"device 1 ({H100})"
NO_COUNTERS = dict.fromkeys(("0.power", "0.energy", "0.ecc", "0.memory", "0.reasons"))
BARE = those(card(0, "power", "joules", "errors", "memory", "memory_total") | {"why": []}, card(1))
BOTH, SELDOM = those(card(0), card(1)), 12  # samples between two tries
NVML = {
    "all figures in their units": [
        ({}, 1, BOTH, []),
        ({"0.xid": 79}, 2, those(card(0, xids=1), card(1)), [f"{FIRST} reports Xid 79"]),
    ],
    "a card without counters says so once": [(NO_COUNTERS, 3, BARE, [f"{FIRST} has no counter of power or energy"])],
    "one that vanishes leaves the other": [({"1.fails": GPU_IS_LOST}, 30, those(card(0)), [f"{SECOND} is lost"])],
    "one that comes back is read again, and its Xid is kept": [
        ({"0.fails": UNKNOWN}, 5, those(card(1)), [f"{FIRST} answers no more (NVML returns 999)"]),
        ({"0.fails": None, "0.xid": 79}, SELDOM, ANY, [f"{FIRST} reports Xid 79", f"{FIRST} answers again"]),
        ({}, 1, those(card(0, xids=1), card(1)), []),
    ],
}


def test_nvml_tells_figures_and_what_becomes_of_a_card(nvml_library, cards, subtests):
    for place, (title, recording) in enumerate(NVML.items()):
        with subtests.test(title):
            folder = cards(2, f"cards {place}")
            play(Nvml(EACH_ITS_OWN, str(nvml_library)), folder, recording)


def test_an_error_in_one_sample_costs_one_card_figures_of_that_sample(nvml_library, cards, subtests):
    folder = cards(3)
    usual = those(card(0), card(1), card(2))
    # Call, code, and what the row of that card lacks meanwhile; None for the whole row. After a call that a driver has
    # kept for long, the others are not made.
    for call, code, lacks in [
        *(("", code, None) for code in (UNKNOWN, TIMEOUT, GPU_IS_LOST)),
        *(("power.", code, None) for code in (TIMEOUT, GPU_IS_LOST)),
        *(("memory.", code, ("memory", "memory_total", "errors", "why")) for code in (TIMEOUT, GPU_IS_LOST)),
        *(("reasons.", code, ("why",)) for code in (UNKNOWN, TIMEOUT, GPU_IS_LOST)),
        ("power.", UNKNOWN, ("power",)),
        ("memory.", UNKNOWN, ("memory", "memory_total")),
    ]:
        with subtests.test(f"{call}fails", code=code):
            during = those(card(0), *([] if lacks is None else [card(1, *lacks)]), card(2))
            failing = f"1.{call}fails"
            steps = [({}, 1, usual, []), ({failing: code}, 1, during, []), ({failing: None}, 1, usual, [])]
            play(Nvml(EACH_ITS_OWN, str(nvml_library)), folder, steps)


def test_a_card_that_cannot_be_opened_is_named_and_tried_again(nvml_library, cards):
    folder = cards(2)
    put(folder, {"0.handle.fails": GPU_IS_LOST, "1.events.fails": UNKNOWN})
    nvml = Nvml(ranks({"CUDA_VISIBLE_DEVICES": "GPU-0a,GPU-1a"}), str(nvml_library))
    other = {**card(1), "given": False}  # and is not hidden behind one whose UUID nobody knows
    play(nvml, folder, [({}, 1, those(other), ["device 0 is lost"]), ({"0.handle.fails": None}, SELDOM, ANY, [])])
    assert [row["id"] for row in nvml.read()] == ["0", "1"]


def test_nvml_that_cannot_be_opened_at_first_is_opened_later(nvml_library, cards, monkeypatch):
    folder = cards(1)
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(nvml_library) if "nvidia" in name else name))

    def reader():
        return Reader([os.getpid()], bytearray(1), sources=[SOURCES[0], SOURCES[2]])  # whatever cards this machine has

    put(folder, {"init.fails": UNKNOWN})
    first = reader()
    assert first.read()["problems"] == ["NVML cannot be opened: NVML returns 999"]
    put(folder, {"init.fails": None})
    samples = [first.read() for _ in range(SELDOM)]
    assert [len(each["devices"]) for each in samples] == [0] * (SELDOM - 2) + [1, 1]
    put(folder, {"init.fails": NO_DRIVER})  # a host without cards says nothing
    assert reader().read()["problems"] == []


def test_only_devices_of_this_launch_are_read(nvml_library, cards, subtests):
    folder = cards(4)
    # Variables of each rank, and what is read of four devices: whether a rank has it as its own.
    for title, (environs, seen) in {
        "first": ([{"LOCAL_RANK": "0"}], {0: True}),
        "two ranks": ([{"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"}], {0: True, 1: True}),
        "mask": ([{"CUDA_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "0"}], {2: True, 3: False}),
        "mask of one": ([{"CUDA_VISIBLE_DEVICES": "3", "LOCAL_RANK": "1"}], {3: True}),
        "uuid": ([{"CUDA_VISIBLE_DEVICES": "GPU-2a,GPU-1a"}], {2: True, 1: False}),
        "a number among uuids, which CUDA hides": ([{"CUDA_VISIBLE_DEVICES": "GPU-2a,1"}], {2: True}),
        "a device twice, which hides all": ([{"CUDA_VISIBLE_DEVICES": "1,1"}], {}),
        "none": ([{"CUDA_VISIBLE_DEVICES": ""}], {}),
        "beyond": ([{"CUDA_VISIBLE_DEVICES": "0,9,1", "LOCAL_RANK": "0"}], {0: True}),
        "more ranks than cards": ([{"LOCAL_RANK": "7"}], {}),
    }.items():
        with subtests.test(title):
            rows = Nvml(ranks(*environs), str(nvml_library)).read()
            assert {int(row["id"]): row["given"] for row in rows} == seen
    with subtests.test("one on which a rank computes is found without a variable"):
        answer(folder, 3, pid=os.getpid())
        answer(folder, 2, pid=1)  # somebody else's
        rows = Nvml(ranks({"LOCAL_RANK": "0"}, pids=[os.getpid()]), str(nvml_library)).read()
        assert [row["id"] for row in rows] == ["0", "3"]


def test_masks_of_other_vendors():
    both = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1"}
    assert ranks(both).amd(8) == ({6, 7}, {7})
    flat = {"ZE_AFFINITY_MASK": "1.0,3", "LOCAL_RANK": "0"}
    assert ranks(flat).intel(12) == ({3}, {3})  # 1.0 names nothing there
    assert ranks({**flat, "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}).intel(12) == ({1, 3}, {1})
    assert ranks({"ZE_AFFINITY_MASK": "", "LOCAL_RANK": "2"}).intel(12) == ({2}, {2})


# Files of drivers.

MI300X = "AMD Instinct MI300X OAM"


def amd_card(number, slot, power):
    sensors = f"hwmon/hwmon{number + 3}"
    device = {"vendor": "0x1002", "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}", "product_name": MI300X}
    device |= {f"{sensors}/power1_input": power, f"{sensors}/freq1_input": 2_100_000_000}
    device |= {f"{sensors}/temp1_input": 38000, f"{sensors}/temp2_input": 55000, "gpu_busy_percent": 88}
    device |= {"mem_info_vram_used": 100 << 30, "mem_info_vram_total": 192 << 30, "ras/umc_err_count": "ue: 1\nce: 7"}
    return {f"class/drm/card{number}/device/{name}": value for name, value in device.items()}


def amd_row(place, power):
    now = {"power": power, "clock": 2100.0, "temperature": 55.0, "used": 88.0}
    now |= {"memory": 100 << 30, "memory_total": 192 << 30}
    row = {"id": str(place), "name": MI300X, "given": True, "now": now}
    return row | {"count": {"errors": 1.0}, "why": []}


def intel_card(driver):
    base = "class/drm/card0"
    device = {f"{base}/device/uevent": f"DRIVER={driver}\nPCI_SLOT_NAME=0000:18:00.0"}
    device |= {f"{base}/device/vendor": "0x8086", f"{base}/device/hwmon/hwmon7/energy1_input": 5000 * 10**6}
    if driver == "i915":
        device |= {f"{base}/gt/gt{tile}/rps_act_freq_mhz": 1550 for tile in (0, 1)}
        device |= {f"{base}/gt/gt0/throttle_reason_pl1": 1}
    else:
        device |= {f"{base}/device/tile{tile}/gt{2 * tile}/freq0/act_freq": 1550 for tile in (0, 1)}
        device |= {f"{base}/device/tile0/gt0/freq0/throttle/reason_pl1": 1}
    inside = {"vendor": "0x8086", "uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0"}  # the CPU's own
    return device | {f"class/drm/card1/device/{name}": text for name, text in inside.items()}


# Two tiles are two devices of ranks, on one card with one counter.
INTEL_ROW = {"id": "0", "name": "Intel", "given": True, "now": {"clock": 1550.0}, "why": ["power cap"]}
INTEL_ROWS = those(INTEL_ROW | {"count": {"joules": 5000.0}})
AMD_CARD = amd_card(2, "0000:05:00.0", 750_000_000)
NO_CARD = {path: None for path in AMD_CARD if not path.endswith("vendor")}
CRAY = {"power": "612 W", "energy": "98765432 J", "accel0_power": "345 W", "accel0_energy": "45678 J"}
CRAY |= {"accel1_power": "90 W", "accel1_energy": "45 J"}
CRAY = {f"cray/pm_counters/{name}": f"{text} 1763942400123456 us" for name, text in CRAY.items()}
ACCELERATOR = {"name": "accelerator", "given": False, "why": []}
ACCELERATORS = those(
    {"id": "accel0", "now": {"power": 345.0}, "count": {"joules": 45678.0}, **ACCELERATOR},
    {"id": "accel1", "now": {"power": 90.0}, "count": {"joules": 45.0}, **ACCELERATOR},
)
BOTH_AMD = those(amd_row(0, 750.0), amd_row(1, 140.0))
BOARD = {"class/drm/card0/device/vendor": "0x1a03", "class/drm/card1-DP-1/status": "disconnected"}  # and its screen
FILES = {
    "AMD, in the order of the bus": [
        ({**AMD_CARD, **amd_card(1, "0000:26:00.0", 140_000_000), **BOARD}, 1, BOTH_AMD, []),
        (NO_CARD, 5, those(amd_row(1, 140.0)), [f"device 0 ({MI300X}) has gone: its files cannot be read"]),
        (AMD_CARD, SELDOM, ANY, [f"device 0 ({MI300X}) is back"]),
        ({}, 1, BOTH_AMD, []),
    ],
    "Intel's older driver": [(intel_card("i915"), 1, INTEL_ROWS, [])],
    "Intel's newer driver": [(intel_card("xe"), 1, INTEL_ROWS, [])],
    "Cray, for cards that have no counters of their own": [(CRAY, 1, ACCELERATORS, [])],
}


def test_files_of_drivers_tell_figures_and_what_becomes_of_a_card(tmp_path, subtests):
    for place, (title, recording) in enumerate(FILES.items()):
        with subtests.test(title):
            root = tmp_path / str(place)
            put(root, recording[0][0])
            files = Files(ranks({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"}), str(root))
            play(files, root, recording)
            assert files.of_host().get("count") == ({"joules": 98765432.0} if "Cray" in title else None)
    with pytest.raises(OSError, match="no device"):
        Files(ranks({}), str(tmp_path / "nothing"))


def test_a_host_counts_its_own_processes_and_their_children():
    burn = "import time; e=time.process_time()+0.1\nwhile time.process_time()<e: pass\nprint(flush=True); input()"
    line = [sys.executable, "-c", burn]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        host = Host(ranks({}, pids=[os.getpid()]))
        before = host.read()
        child.stdout.readline()
        after = host.read()
        child.stdin.close()
    assert after["count"]["cpu"] - before["count"]["cpu"] > 0.05
    assert after["now"]["memory"] > before["now"]["memory"] / 2 > 1e6
    assert after["now"]["memory_free"] < after["now"]["memory_total"]


def test_the_network_of_a_host_is_read_but_for_its_loopback(tmp_path):
    ports = "sys/class/infiniband/mlx5_0/ports/1/counters"
    put(tmp_path, {f"{ports}/port_rcv_data": 25, f"{ports}/port_xmit_data": 5})
    net = "Inter-| x\n face | y\n lo: 9 0 0 0 0 0 0 0 9\n hsn0: 100 1 0 0 0 0 0 0 50 1 0"
    put(tmp_path, {"proc/net/dev": net})
    count = Host(ranks({}), str(tmp_path)).read()["count"]
    assert (count["received"], count["sent"]) == (200.0, 70.0)


def test_the_memory_of_a_job_is_that_of_its_cgroup(tmp_path):
    put(tmp_path, {"proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"})
    put(tmp_path, {"sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/memory.current": 123456})
    job = ranks({"EZPZ_JOBID": "4711"})
    assert Host(job, str(tmp_path)).read()["now"]["memory_of_job"] == 123456.0
    put(tmp_path, {"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-4711x.scope"})
    assert "memory_of_job" not in Host(job, str(tmp_path)).read()["now"]


def summed(*samples, window=None):
    """What a window makes of samples: the figures of its only device."""
    window = window or Window()
    for each in samples:
        window.add(each)
    return figures_of(window.report())


def sample(at, power=None, *, energy=None, reasons=(), **figures):
    now = {**figures, **({} if power is None else {"power": power})}
    count = {} if energy is None else {"joules": energy}
    row = {"id": "0", "name": "H100", "given": True, "now": now, "count": count, "why": list(reasons)}
    return {"t": at, "devices": [row], "host": {"now": {}, "count": {}}, "problems": []}


def figures_of(report):
    return {name: tuple(values) for name, *values in report.devices[0].figures}


def test_energy_is_the_integral_of_power_or_the_difference_of_a_counter_over_reports():
    window = Window(clock=100.0)
    for at, power in ((0, 100), (5, 300), (10, 300)):
        window.add(sample(at, power, reasons=["power cap"] if at else []))
    first = window.report()
    assert (first.at, first.span) == (110.0, 10.0)
    assert figures_of(first) == {"power": (pytest.approx(700 / 3), 100, 300), "joules": (2500.0,) * 3}
    assert first.devices[0].throttled == [("power cap", pytest.approx(2 / 3))]
    assert window.report() is None
    assert summed(sample(15, 500), window=window)["joules"][0] == 2000.0  # nothing is lost between two reports
    anew = (sample(at, 50, energy=joules) for at, joules in ((0, 1000), (5, 2500), (10, 40)))  # the driver was loaded
    assert summed(*anew)["joules"][0] == 1540.0
    alone = summed(sample(0, energy=5000), sample(5, energy=7500))
    assert alone == {"power": (500.0,) * 3, "joules": (2500.0,) * 3}


def test_a_sample_that_lacks_a_card_or_its_counter_loses_no_energy():
    for missing in (sample(5), {**sample(5), "devices": []}):
        assert summed(sample(0, 100), missing, sample(10, 300))["joules"][0] == 2000.0
    window = Window()
    rows = ((0, 100, 1000), (5, 100, None), (10, None, 3000), (15, 100, 3500))
    figures = summed(*(sample(at, power, energy=joules) for at, power, joules in rows), window=window)
    assert (figures["joules"][0], figures["power"]) == (2500.0, (100, 100, 100))


def test_a_card_that_was_away_for_long_has_drawn_nobody_knows_what():
    window = Window()
    for each in (sample(0, 100), {**sample(30), "devices": []}):
        window.add(each)
        window.report()
    assert "joules" not in summed(sample(3600, 100), window=window)


def test_a_source_that_raises_leaves_the_others(monkeypatch):
    healthy = Host.read
    monkeypatch.setattr(Host, "read", lambda _: 1 / 0)
    reader = Reader([os.getpid()], bytearray(1), sources=SOURCES[2:])  # whatever cards this machine has
    assert [reader.read()["problems"] for _ in range(2)] == [[], []]
    monkeypatch.setattr(Host, "read", healthy)
    assert reader.read()["host"]["count"]  # it was one sample that failed, or two
    monkeypatch.setattr(Host, "read", lambda _: 1 / 0)
    told = ["/proc cannot be read: ZeroDivisionError: division by zero"]
    assert [reader.read()["problems"] for _ in range(4)] == [[], [], told, []]
    assert len(SOURCES) == 3


# What the launcher makes of reports.


def report(at, span=30.0, *, cards=(), problems=(), trains=False):
    devices = []
    for place, fields in enumerate(map(dict, cards)):
        row = {"given": fields.pop("given", True), "throttled": list(fields.pop("throttled", {}).items())}
        row["figures"] = [(name, value, value, value) for name, value in fields.items()]
        devices.append(messages.DeviceFigures(id=str(place), name="H100", **row))
    host = [("cpu", 60.0, 60.0, 60.0), ("memory", 1e9, 1e9, 1e9)]
    return messages.Hardware(at=at, span=span, devices=devices, host=host, problems=list(problems), trains=trains)


@pytest.fixture
def keep(tmp_path):
    """`keep(**how)` -> a record in tmp_path, and the list of its notes."""

    def make(**how):
        notes = []
        handle = launcher_handle(tmp_path, note=notes.append, launch="5f3a90c2")
        handle.order = lambda *_, **__: None
        return HardwareRecord(handle, **how), notes

    return make


def rows(folder):
    return [json.loads(line) for line in (folder / HARDWARE).read_text().splitlines()]


def test_rows_move_into_the_run_and_its_run_json_gets_the_summary(keep, tmp_path):
    record, notes = keep()
    busy = {"power": 600.0, "used": 98.0, "clock": 1980.0, "joules": 18_000.0, "throttled": {"power cap": 0.5}}
    record.add("n01", report(30.0, cards=[busy], problems=["device 1 (x) has no counter of power or energy"]))
    assert len(rows(tmp_path)) == 1
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"name": "x", "launch": {"EZPZ_LAUNCH_ID": "5f3a90c2"}}))
    record.use_folder(str(run))
    record.add("n01", report(60.0, cards=[{**busy, "power": 700.0, "joules": 21_000.0}]))
    assert not (tmp_path / HARDWARE).exists()
    assert [row["t"] for row in rows(run)] == [30.0, 60.0]
    assert rows(run)[0]["now"]["cpu"] == [2, 2, 2]  # cores: 60 s of CPU in 30 s
    summary = record.end()["hardware"]
    assert summary["joules"] == 39_000
    device = summary["hosts"]["n01"]["devices"]["0"]
    assert (device["power"], device["joules"], device["throttled"]) == ([650, 700], 39_000, 0.5)
    assert summary["hosts"]["n01"]["missing"] == ["device 1 (x) has no counter of power or energy"]
    assert json.loads((run / "run.json").read_text())["hardware"] == summary
    assert notes == []


def test_another_launchs_run_is_left_alone_and_a_folder_of_another_host_too(keep, tmp_path):
    record, _ = keep()
    record.use_folder(str(tmp_path / "on another host"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"launch": {"EZPZ_LAUNCH_ID": "other"}}')
    record.use_folder(str(run))
    record.add("n01", report(30.0))
    record.end()
    assert (run / "run.json").read_text() == '{"launch": {"EZPZ_LAUNCH_ID": "other"}}'


def test_a_week_fits_as_hosts_report_more_seldom_and_no_energy_is_lost(keep, tmp_path, monkeypatch):
    limit = 50_000  # 68 rows of each host, as 48 MB are of 1,000 hosts with 4 cards each
    record, notes = keep(limit=limit)
    orders = [messages.ReportSeldom(times=1)]
    monkeypatch.setattr(record.handle, "order", orders.append, raising=False)
    at = energy = 0
    while at < 7 * 86400:
        span = 30 * orders[-1].times
        at += span
        for host in ("n01", "n02", "n03"):
            energy += span
            record.add(host, report(at, span, cards=[{"power": 500.0, "joules": float(span)}]))
    record.end()
    assert limit / 2 < (tmp_path / HARDWARE).stat().st_size < limit
    assert sum(row["s"] for row in rows(tmp_path)) == energy
    assert sum(row["devices"][0]["joules"] for row in rows(tmp_path)) == pytest.approx(energy, rel=1e-4)
    assert notes == []


def test_more_hosts_than_fit_end_the_file_and_not_the_run(keep, tmp_path):
    record, notes = keep(limit=2000)
    for turn in range(4):
        for number in range(20):
            record.add(f"n{number}", report(30.0 * turn, cards=[{"power": 1.0}]))
    assert record.end()["hardware"]["devices"] == 20
    assert len(notes) == 1
    assert "kept no longer" in notes[0]
    assert (tmp_path / HARDWARE).stat().st_size < 2500


BUSY = {"power": 600.0, "used": 98.0, "clock": 1980.0}
IDLE = {"power": 70.0, "used": 0.0, "clock": 345.0}


def test_an_idle_device_is_named_within_a_minute_if_a_rank_has_it_and_others_work(keep):
    record, notes = keep()
    for at, span in ((5, 5.0), (30, 25.0), (60, 30.0)):
        record.add("n06", report(at, span, cards=[BUSY] * 4))
        record.add("n07", report(at, span, cards=[BUSY, BUSY, {**IDLE, "given": False}, IDLE]))
    assert notes == ["device 3 on n07 was idle for 60 s"]
    record.add("n07", report(90, cards=[BUSY, BUSY, IDLE, IDLE]))
    assert len(notes) == 1


def test_a_start_in_which_all_devices_wait_and_a_host_without_devices_are_no_news(keep):
    record, notes = keep()
    for at in range(30, 600, 30):
        record.add("n07", report(at, cards=[IDLE, IDLE]))
        record.add("n08", report(at))
    assert notes == []
    for at in (600, 630):
        record.add("n07", report(at, cards=[IDLE, IDLE], trains=True))
    assert notes == ["device 0 on n07 was idle for 60 s"]


def test_a_slow_host_is_noted_only_beside_others_and_with_its_reason(keep):
    record, notes = keep()
    capped = {"throttled": {"power cap": 0.9}}
    for at in (30, 60, 90):
        record.add("n11", report(at, cards=[{**BUSY, **capped}] * 4))  # the cap is the same for all
        record.add("n12", report(at, cards=[{**BUSY, "clock": 1410.0, **capped}, BUSY]))
    assert notes == ["n12 ran device 0 at 1,410 MHz, others at 1,980 MHz: power cap"]


def test_errors_of_memory_are_noted_and_no_run_has_more_than_three_notes(keep):
    record, notes = keep()
    for number in range(5):
        record.add(f"n{number}", report(30.0, cards=[{**BUSY, "errors": 2.0}]))
    assert notes[0] == "device 0 on n0 had 2 uncorrectable memory errors"
    assert len(notes) == 3


def test_the_variable_turns_it_off_or_says_how_often_and_else_an_administrator_does(tmp_path, subtests):
    for text, seconds in {"": 5.0, "0": 0.0, "off": 0.0, "No": 0.0, "2.5": 2.5}.items():
        with subtests.test(variable=text):
            environ = {"EZPZ_HARDWARE": text, "EZPZ_SITE_TOML": ""}
            assert sampling(environ) == (seconds, "EZPZ_HARDWARE" if text else "default")
    environ = {"EZPZ_SITE_TOML": str(tmp_path / "site.toml")}
    for text, seconds in {"60": 60.0, "0.5": 0.5, '"off"': 0.0}.items():
        with subtests.test(administrator=text):
            (tmp_path / "site.toml").write_text(f"[launch]\nsampling = {text}\n")
            assert sampling(environ) == (seconds, environ["EZPZ_SITE_TOML"])
            assert sampling({**environ, "EZPZ_HARDWARE": "2"}) == (2.0, "EZPZ_HARDWARE")
    for text in ("often", "-1", "0.01", "nan", "1e9"):
        with subtests.test(wrong=text), pytest.raises(UsageError, match=r"EZPZ_HARDWARE.*expected 0 for never"):
            sampling({"EZPZ_HARDWARE": text})


# Whole launches.

# Ends when the hardware has so many rows in the run; without a number at once.
PROGRAM = """
import os, sys, time
import ezpz
wanted = int(sys.argv[1])
first = os.environ["RANK"] == "0"
history = ezpz.History(name="x", outdir="run") if first else None

def rows():
    try:
        with open("run/hardware.jsonl") as file:
            return sum(line.endswith("\\n") for line in file)
    except OSError:
        return 0

step, end = 0, time.monotonic() + 240
while rows() < wanted and time.monotonic() < end:
    if first:
        history.update({"loss": 1.0, "tps": 1000.0}, step=step)
    step += 1
    sum(range(200_000))  # CPU that the kernel counts, in ticks of 10 ms
    time.sleep(0.05)
"""


def run_with_cards(launch, clean_env, nvml_library, tmp_path, wanted, **more):
    """Run until there are so many rows; returns the rows, and the summary in the run's record."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    more |= {"LD_LIBRARY_PATH": str(nvml_library.parent), "FAKE_NVML": os.environ["FAKE_NVML"]}
    env = {**clean_env, **more, "EZPZ_HARDWARE": "0.2"}
    done = launch("-n", "2", sys.executable, "program.py", wanted, env=env, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    return rows(tmp_path / "run"), json.loads((tmp_path / "run" / "run.json").read_text())["hardware"]


def samplers(survivors):
    return [pid for pid in survivors() if proc.name(pid) == "ezpz-sampler"]


@pytest.mark.slow
def test_a_launch_keeps_what_its_devices_did_beside_the_journal(launch, clean_env, nvml_library, cards, tmp_path):
    cards(4)
    kept, facts = run_with_cards(launch, clean_env, nvml_library, tmp_path, 2, CUDA_VISIBLE_DEVICES="1,2")
    assert {device["id"] for row in kept for device in row["devices"]} == {"1", "2"}
    assert kept[-1]["devices"][0]["power"] == [400, 400, 400]
    assert kept[-1]["devices"][0]["throttled"] == {"power cap": 1}
    assert facts["devices"] == 2
    assert facts["joules"] == 0  # the stand-in's counter does not move
    (host,) = facts["hosts"].values()
    assert max(host["cpu"]) > 0
    assert math.isclose(sum(row["s"] for row in kept), facts["seconds"], abs_tol=0.1)


@pytest.mark.slow
def test_a_driver_that_answers_no_more_holds_nobody_and_ends_the_sampling(
    launch, clean_env, nvml_library, cards, tmp_path, survivors
):
    put(cards(2), {"1.stuck": ""})
    more = {"LD_LIBRARY_PATH": str(nvml_library.parent), "FAKE_NVML": os.environ["FAKE_NVML"], "EZPZ_HARDWARE": "0.2"}
    done = launch("-n", "2", "sleep", "5", env={**clean_env, **more}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(next(tmp_path.rglob("launches/*/run.json")).read_text())["hardware"]
    (host,) = facts["hosts"].values()
    assert host["missing"] == ["NVML has not answered for 2 s: nothing more is sampled on this host"]
    assert not samplers(survivors)


@pytest.mark.slow
def test_short_runs_and_runs_without_it_keep_nothing_and_say_nothing(launch, clean_env, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    for seconds in ("600", "0"):
        env = {**clean_env, "EZPZ_HARDWARE": seconds}
        done = launch("-n", "2", sys.executable, "program.py", 0, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "hardware" not in done.stderr
        assert not (tmp_path / "run" / HARDWARE).exists()
        assert "hardware" not in json.loads((tmp_path / "run" / "run.json").read_text())


@pytest.mark.slow
def test_a_killed_launch_leaves_no_sampler(start_launch, clean_env, survivors):
    process = start_launch("-n", "1", "sleep", "600", env={**clean_env, "EZPZ_HARDWARE": "0.2"})
    wait_until(lambda: samplers(survivors), 60, "a sampler")
    process.send_signal(signal.SIGKILL)


# Several hosts, each with cards of its own.

NODES = ("n01", "n02", "n03")
UNTIL_GO = ["sh", "-c", "until [ -e go ]; do sleep 0.2; done"]


@pytest.fixture
def three_with_cards(make_hosts, nvml_library, tmp_path):
    """Three hosts beside the one that launches, and `folder_of[host]` from which its two cards answer."""
    hosts = make_hosts("head", *NODES)
    folder_of = {}
    for place, name in enumerate(NODES, 1):
        folder_of[name] = tmp_path / f"cards of {name}"
        folder_of[name].mkdir()
        for index in (0, 1):
            answer(folder_of[name], index, name="H100", uuid=f"GPU-{name}{index}", power=100_000 * place, clock=1980)
            answer(folder_of[name], index, energy=10**9, used=97, ecc=0)
        lines = {"LD_LIBRARY_PATH": nvml_library.parent, "FAKE_NVML": folder_of[name]}
        text = "".join(f"export {variable}={shlex.quote(str(value))}\n" for variable, value in lines.items())
        (hosts[name].tmp / "enter").write_text(text)
    return hosts, folder_of


@pytest.mark.parametrize("way", ["ssh", "mpich", "openmpi"])
def test_rows_of_every_host_reach_one_record(way, three_with_cards, clean_env, home, tag, survivors, tmp_path):
    """And a killed agent leaves no sampler."""
    hosts, folder_of = three_with_cards
    if way == "ssh":
        env = {**clean_env, "PYTHONPATH": SRC, "EZPZ_SSH": shlex.quote(str(hosts.rsh)), "EZPZ_NGPU_PER_HOST": "0"}
    else:
        flavour = flavours.Flavour(way, home, tag)
        require(way, flavour.problem())
        env = flavour.env(**flavours.remote(hosts))
    env = {**env, "EZPZ_HARDWARE": "0.5", "XDG_STATE_HOME": str(tmp_path / "state")}
    line = [sys.executable, "-m", "ezpz.launch", "--hosts", ",".join(NODES), "--ppn", "2", *UNTIL_GO]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = hosts["head"].popen(line, env, cwd=tmp_path, **pipes)
    try:

        def kept():
            folders = list(tmp_path.glob(f"state/ezpz/launches/*/{HARDWARE}"))
            return rows(folders[0].parent) if folders else []

        wait_until(lambda: {row["host"] for row in kept()} == set(NODES) or run.poll(), 40, "a row of each host")
        answer(folder_of["n02"], 1, ecc=3)
        faulty = lambda: any("errors" in device for row in kept() for device in row["devices"])  # noqa: E731
        wait_until(lambda: faulty() or run.poll(), 40, "the errors of a card")
        if way == "ssh":
            samplers_there = {pid: proc.stat(pid).parent for pid in samplers(survivors)}
            assert len(samplers_there) == len(NODES)
            there = set(hosts["n03"].pids())
            os.kill(next(parent for pid, parent in samplers_there.items() if pid in there), signal.SIGKILL)
        else:
            (tmp_path / "go").touch()
        errors = run.communicate(timeout=120)[1]
    finally:
        run.kill()
    assert run.returncode == (0 if way != "ssh" else 125), errors
    wait_until(lambda: not survivors(), 10, "the end of all processes")

    for row in kept():
        place = NODES.index(row["host"]) + 1
        assert [device["id"] for device in row["devices"]] == ["0", "1"]
        assert {device["power"][0] for device in row["devices"]} == {100 * place}
    (record,) = tmp_path.glob("state/ezpz/launches/*/run.json")
    facts = json.loads(record.read_text())
    assert set(facts["hardware"]["hosts"]) == set(NODES)
    assert facts["hardware"]["devices"] == 6
    assert facts["hardware"]["hosts"]["n02"]["devices"]["1"]["errors"] == 3
    note = "device 1 on n02 had 3 uncorrectable memory errors"
    assert errors.count(note) == 1
    assert note in facts["notes"]
    assert "sampler" not in errors


TO_ITS_END = """
import json, os, sys, time
import ezpz
from ezpz.progress import Busy

def newest(host):
    try:
        with open("run/hardware.jsonl") as file:
            rows = [json.loads(line) for line in file]
    except OSError:
        return 0.0
    return max((row["t"] for row in rows if row["host"] == host), default=0.0)

if os.environ["RANK"] == "0":
    history = ezpz.History(name="x", outdir="run")
    step, seen, ready = 0, 0.0, None
    while ready is None or time.monotonic() < ready + 2.5:  # until n02 has a sample that is not reported yet
        history.update({"loss": 1.0}, step=step)
        step += 1
        time.sleep(0.1)
        if ready is None and newest("n02"):
            ready, seen = time.monotonic(), newest("n02")
    assert newest("n02") == seen
    with Busy():  # as `History.finalize`
        end = time.monotonic() + 7
        while newest("n02") == seen and time.monotonic() < end:
            time.sleep(0.05)
    print("new" if newest("n02") > seen else "old", flush=True)
    open("go", "w").close()
while not os.path.exists("go"):
    time.sleep(0.1)
"""


def test_at_the_end_of_a_run_its_reader_finds_the_newest_rows_of_other_hosts(hosts, clean_env, tmp_path):
    (tmp_path / "program.py").write_text(TO_ITS_END)
    env = {**clean_env, "PYTHONPATH": SRC, "EZPZ_SSH": shlex.quote(str(hosts.rsh)), "EZPZ_NGPU_PER_HOST": "0"}
    line = [sys.executable, "-m", "ezpz.launch", "--hosts", "n01,n02", "--ppn", "1", sys.executable, "program.py"]
    done = hosts["head"].run(line, {**env, "EZPZ_HARDWARE": "2"}, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout[:4]) == (0, "new\n"), done.stderr


# What an earlier attempt has left on a device.

FAILS_ONCE = """
import os, time
from pathlib import Path
if os.environ["EZPZ_ATTEMPT"] == "1":
    Path("id.part").write_text(os.environ["EZPZ_LAUNCH_ID"])
    os.rename("id.part", "id")
    while not os.path.exists("planted"):
        time.sleep(0.05)
    os._exit(3)
Path("began").write_text(str(time.time()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["local", "ssh"])
def test_the_next_attempt_waits_for_the_memory_of_a_device(
    make_hosts, clean_env, nvml_library, cards, tmp_path, flavour
):
    """A process with the variables of an earlier attempt, which a card names for 4 s, stands for one that ends late."""
    folder, here = cards(1), tmp_path / "shared"
    here.mkdir()
    (here / "program.py").write_text(FAILS_ONCE)
    (here / "torch.py").write_text("")  # the probe finds no torch, which is a note
    more = {"LD_LIBRARY_PATH": str(nvml_library.parent), "FAKE_NVML": str(folder), "EZPZ_HARDWARE": "0"}
    more |= {"XDG_STATE_HOME": str(tmp_path / "state"), "TORCH_DEVICE": "cuda", "TMPDIR": str(tmp_path)}
    line = [*LAUNCH, "--flavour", flavour, "--ppn", "1", "--attempts", "2", sys.executable, "program.py"]
    if flavour == "ssh":
        hosts = make_hosts("head", "n01")
        env, start = {**Site(hosts, clean_env, here).env, **more}, hosts["head"].popen
        line[len(LAUNCH) : len(LAUNCH)] = ["--hosts", "n01"]
    else:
        env, start = {**clean_env, **more, "PYTHONPATH": SRC}, subprocess.Popen
    env["EZPZ_NGPU_PER_HOST"] = "1"
    run = start(line, env=env, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until((here / "id").exists, 60, "the first attempt")
    earlier = (here / "id").read_text()[:8] + "00000000"
    late = subprocess.Popen(["sleep", "600"], env={"EZPZ_LAUNCH_ID": earlier, "PATH": os.environ["PATH"]})
    try:
        answer(folder, 0, pid=late.pid)
        (here / "planted").touch()
        record = tmp_path / "state"
        records = lambda: "".join(each.read_text() for each in record.glob("**/run.json"))  # noqa: E731
        wait_until(lambda: '"decision"' in records(), 60, "a decision")
        time.sleep(4)
        assert not (here / "began").exists()
        freed = time.time()
    finally:
        late.kill()
        late.wait()
    told = run.communicate(timeout=60)[1]
    assert run.returncode == 0, told
    assert float((here / "began").read_text()) >= freed
    waited = r"the ranks on \S+ have waited \d+\.\d s for memory of devices that an earlier attempt held"
    assert re.search(waited, told), told
