r"""Variables that hide devices from a process.

CUDA_VISIBLE_DEVICES=0,2 | GPU-8932f937,GPU-5d5b… | MIG-c6d4f1ef-…
    Indices or UUIDs. An entry that is none, or -1, hides itself and all after it; empty hides all; a repeated entry
    hides all. https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html, and torch's
    own reading, torch.cuda._parse_visible_devices (2.13), which also takes "1gpu" for 1. MIG: see nvidia.py.
ROCR_VISIBLE_DEVICES=0,GPU-4b2c…   HIP_VISIBLE_DEVICES=0,2
    ROCr filters first, HIP then counts among what is left: ROCR=3 and HIP=3 leave nothing. CUDA_VISIBLE_DEVICES is
    HIP's second name. https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, flux-framework/flux-core issue
    4534
ZE_AFFINITY_MASK=0 | 0.1 | 0,1.0
    Level Zero specification 1.7 and later, core programming guide, "Affinity Mask": the hierarchy is read first.
    COMPOSITE: "1" is a card with all its tiles, "1.0" a tile of it; entries of one card make one device. FLAT and
    COMBINED: "1" is the second tile of the host, and "1.0" names nothing. Order and repetition do not matter; an entry
    beyond what exists is passed over; empty is the same as unset. (Drivers before 2023 knew COMPOSITE only.)
"""

from __future__ import annotations

import re

from ezpz.cluster.devices import intel, nvidia
from ezpz.cluster.devices.device_answer import Devices, refusal
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.cluster.allocation import Read

MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_CUDA, _ROCR, _HIP, _ZE = MASKS
_UUIDS = ("GPU-", "MIG-")
_NONE = {"-1", "NoDevFiles"}  # how "none" is spelt on purpose: by users and Flux, and by old Slurm


class Listed(Record):
    entries: list[str]
    why: str  # what ended the list early; empty when it was read to its end


def visible(environ: Mapping[str, str], vendor: str, exist: int, read: Read) -> Devices | None:
    """Return what the masks leave, or None where no mask is set.

    Args:
        environ: The environment to read.
        vendor: Whose driver is there: ``nvidia``, ``amd``, ``intel``, ``apple``; empty when unknown.
        exist: How many devices there are; 0 when unknown.
        read: Returns the text of a file or None.

    Raises:
        UsageError: A mask is set that the driver would not start with.
    """
    vendor = vendor or _whose(environ)
    if vendor == "nvidia":
        return _cuda(environ, exist, read) if _CUDA in environ else None
    if vendor == "amd":
        return _rocm(environ, exist)
    return _level_zero(environ, exist, read) if vendor == "intel" and environ.get(_ZE, "").strip() else None


def _whose(environ: Mapping[str, str]) -> str:
    # Slurm may set the masks of all vendors alike (gres.conf, Flags), so a ROCm mask tells AMD only without CUDA's, or
    # where HIP's own is set, which Slurm never does.
    if _HIP in environ or (_ROCR in environ and _CUDA not in environ):
        return "amd"
    return "nvidia" if _CUDA in environ else "intel"


def _cuda(environ: Mapping[str, str], exist: int, read: Read) -> Devices:
    text = environ[_CUDA]
    found = listed(text, exist)
    count, notes = len(found.entries), _why(_CUDA, text, found)
    if found.entries and found.entries[0].startswith("MIG-"):
        release = nvidia.release(read)
        if count > 1 and release < nvidia.SEVERAL_MIG:
            note = (
                f"{_CUDA} names {count} MIG devices, of which one process sees 1 with driver release "
                f"{release or 'unknown'}; to use one per rank, set {_CUDA}=MIG-… for each"
            )
            count, notes = 1, (*notes, note)
        elif count > 1:
            notes += (f"{_CUDA} names {count} MIG devices; a process sees one of each GPU instance",)
    return Devices(count, "cuda" if count else "cpu", _CUDA, notes)


def _rocm(environ: Mapping[str, str], exist: int) -> Devices | None:
    names = [name for name in (_ROCR, _HIP if _HIP in environ else _CUDA) if name in environ]
    if not names:
        return None
    notes: tuple[str, ...] = ()
    for layer, name in enumerate(names):
        found = listed(environ[name], exist)
        if layer and found.why and environ[name].strip() not in _NONE:
            note = (
                f"{name}={environ[name]} counts among the {exist} devices that {_ROCR}={environ[_ROCR]} leaves, "
                f"so that {len(found.entries)} remain; run `unset {name}` to filter once"
            )
            notes += (note,)
        else:
            notes += _why(name, environ[name], found)
        exist = min(len(found.entries), exist) if layer else len(found.entries)
        if not exist:  # nothing is left to filter, and 0 would mean "unknown"
            break
    return Devices(exist, "cuda" if exist else "cpu", ", ".join(names), notes)


def _level_zero(environ: Mapping[str, str], exist: int, read: Read) -> Devices:
    text, model = environ[_ZE], intel.hierarchy(environ)
    chosen, passed = of_level_zero(text, model, exist, intel.tiles(read) if exist else [])
    notes: tuple[str, ...] = ()
    if passed:
        notes = (f"{_ZE}={text} under {model}: {', '.join(passed)} names no device" + _of(exist),)
    return Devices(len(chosen), intel.KIND if chosen else "cpu", f"{_ZE}, {model}", notes)


def of_level_zero(text: str, model: str, exist: int, tiles: Sequence[int] = ()) -> tuple[set[int], list[str]]:
    """Return the devices that ``ZE_AFFINITY_MASK`` leaves of so many, 0 when unknown, and entries that name none."""
    chosen, passed = set(), []
    for entry in (word.strip() for word in text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.\d+)?", entry, re.ASCII)
        if not match:
            raise refusal("the visible devices", _ZE, text, "device numbers such as 0,1 or, under COMPOSITE, 0.1")
        device, tile = int(match[1]), match[2]
        beyond = bool(exist) and device >= exist
        if model == "COMPOSITE":
            beyond = beyond or (bool(tiles) and tile is not None and int(tile) >= tiles[device])
        elif tile is not None:
            beyond = True
        if beyond:
            passed.append(entry)
        else:
            chosen.add(device)
    return chosen, passed


def listed(text: str, exist: int) -> Listed:
    """Return what a mask lists, as far as its driver reads it, of so many devices; 0 when that is unknown."""
    entries: list[str] = []
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    prefix = next((prefix for prefix in _UUIDS if words and words[0].startswith(prefix)), "")
    for word in words:
        number = re.match(r"\+?\d+", word, re.ASCII)
        entry = word if prefix else str(int(number[0])) if number else ""
        if not entry.startswith(prefix) or not entry:
            return Listed(entries, f"{word!r} hides itself and all after it")
        if not prefix and exist and int(entry) >= exist:
            return Listed(entries, f"{word!r} names no device{_of(exist)} and hides itself and all after it")
        if entry in entries:
            return Listed([], f"the repeated {word!r} hides all devices")
        entries.append(entry)
    return Listed(entries, "")


def _why(name: str, text: str, listed: Listed) -> tuple[str, ...]:
    return (f"{name}={text}: {listed.why}",) if listed.why and text.strip() not in _NONE else ()


def _of(exist: int) -> str:
    return f" (there are {exist})" if exist else ""
