r"""NVIDIA: the kernel's files say whether the driver is there, `nvidia-smi -L` says what it shows to this process.

/proc/driver/nvidia/version  "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023"
                             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (…)"
/proc/bus/pci/devices        "0700\t10de20b0\t8d\t…\tnvidia": bus and slot, vendor and device, addresses, driver
nvidia-smi -L                "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5b…)"
                             "  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4…)", below the GPU that it is a part of

MIG (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html, "CUDA Device Enumeration"): before
driver release 570 a process sees one MIG device of the whole host, and no GPU beside it; from 570 on it sees one
compute instance of each GPU instance, and the GPUs without MIG.
"""

from __future__ import annotations

import re

from ezpz.cluster.devices.device_answer import Devices
from ezpz.cluster.questions import said

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

KIND = "cuda"
LOOKED = "/proc/driver/nvidia"
SEVERAL_MIG = 570  # the first driver release with which one process sees more than one MIG device
_VERSION = "/proc/driver/nvidia/version"
_SHOWN = 120  # characters of what the tool said as it failed
_PCI = "/proc/bus/pci/devices"
_MIG = r"\s*MIG (?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.\S+\s+Device\s+\d+:"


def exists(environ: Mapping[str, str], read: Read) -> int | None:
    """Return how many GPUs the driver holds: None without the driver, 0 where the kernel's files do not tell."""
    del environ
    if read(_VERSION) is None:
        return None
    lines = [line.split() for line in (read(_PCI) or "").splitlines()]
    return sum(len(words) > 2 and words[1].startswith("10de") and words[-1] == "nvidia" for words in lines)


def release(read: Read) -> int:
    """Return the driver's release, e.g. 570; 0 where it is unknown."""
    match = re.search(r"\s(\d{3,4})\.\d+", read(_VERSION) or "")
    return int(match[1]) if match else 0


def probe(environ: Mapping[str, str], read: Read, run: Run) -> Devices:
    """Return the GPUs or MIG devices that one process sees; count 0 where neither the tool nor the files tell."""
    text = run(["nvidia-smi", "-L"]) or ""
    gpus: list[list[tuple[int, int]]] = []  # per GPU its MIG devices: (compute slices or 0 for all, slices)
    for line in text.splitlines():
        if line.startswith("GPU "):
            gpus.append([])
        elif gpus and (match := re.match(_MIG, line)):
            gpus[-1].append((int(match["compute"] or 0), int(match["slices"])))
    if gpus:
        count, notes = _seen_at_once(gpus, release(read))
        return Devices(count, KIND, "nvidia-smi -L", notes)
    count = exists(environ, read) or 0
    words = said(run, "nvidia-smi")[:_SHOWN]
    fails = f"failed: {words}" if words else "is missing, failed or took too long"
    silent = f"the NVIDIA driver is loaded ({_VERSION}), but nvidia-smi -L {fails}"
    if count:
        return Devices(count, KIND, _PCI, (f"{silent}; GPUs of the whole host were counted",))
    return Devices(0, "cpu", "nvidia-smi -L", (f"{silent}; run `export EZPZ_NGPU_PER_HOST=N` with the right number",))


def _seen_at_once(gpus: list[list[tuple[int, int]]], driver: int) -> tuple[int, tuple[str, ...]]:
    parts = sum(map(len, gpus))
    if not parts:
        return len(gpus), ()
    count = sum(_instances(mig) or 1 for mig in gpus) if driver >= SEVERAL_MIG else 1
    note = (
        f"MIG is on: {parts} MIG devices on {len(gpus)} GPUs, of which one process sees {count} with driver release "
        f"{driver or 'unknown'}; to use one per rank, set CUDA_VISIBLE_DEVICES=MIG-… for each"
    )
    return count, (note,)


def _instances(mig: list[tuple[int, int]]) -> int:
    # "1c.3g.20gb" is one compute slice of a GPU instance of three; the list does not say which instance. Neighbours of
    # one size that fit into one instance are taken as one: rather too few devices than a rank without one.
    count, room, size = 0, 0, 0
    for compute, slices in mig:
        if not compute or slices != size or compute > room:
            count, room, size = count + 1, slices, slices
        room -= compute or slices
    return count
