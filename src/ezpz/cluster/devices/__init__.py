"""Count the accelerators that each host offers to this job, without torch.

The first source with an answer decides; what later ones say differently is in the notes (docs/devices.md):

EZPZ_NGPU_PER_HOST=4  TORCH_DEVICE=cpu    the user's word
masks.py                                  what visible-device variables leave
grants.py                                 what the scheduler granted
nvidia.py amd.py intel.py apple.py        what the vendor's kernel files, or one run of its tool, show on this host
site                                      the site's default, for hosts that cannot be looked at from here
"""

from __future__ import annotations

import os
import re

from ezpz.cluster.devices import amd, apple, grants, intel, mask_variables, nvidia
from ezpz.cluster.devices.device_answer import UNKNOWN, Devices, refusal
from ezpz.cluster.probe import host_name
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import UsageError
from ezpz.fields import Record, replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Protocol

    from ezpz.cluster.allocation import Allocation, Read, Run

    class SiteDevices(Protocol):
        """What is needed of a site."""

        @property
        def name(self) -> str: ...
        @property
        def device(self) -> str: ...
        @property
        def devices_per_host(self) -> int | None: ...


__all__ = ["VENDORS", "Devices", "count_devices"]

# In the order in which torch prefers their devices. Each module has KIND, LOOKED, exists() and probe().
VENDORS = {"nvidia": nvidia, "amd": amd, "intel": intel, "apple": apple}
_NUMBER = "EZPZ_NGPU_PER_HOST"
_KINDS = ("cuda", "xpu", "mps", "cpu")


class _Scene(Record):
    environ: Mapping[str, str]
    read: Read
    run: Run
    allocation: Allocation | None
    site: SiteDevices | None
    requested: str  # the kind that TORCH_DEVICE names, or ""
    here: bool  # this host is one of the job's
    vendor: str  # key of VENDORS, or "" without a driver and for hosts that cannot be looked at
    exist: int  # devices that kernel files tell; 0 when they do not


def count_devices(
    environ: Mapping[str, str],
    read: Read,
    run: Run,
    allocation: Allocation | None = None,
    site: SiteDevices | None = None,
) -> Devices:
    """Return the accelerators that each host offers to this job, as torch would count them.

    Args:
        environ: The environment to read.
        read: Returns the text of a file or None.
        run: Returns what a command printed or None; called once at most, and only when nothing else tells.
        allocation: The job, whose hosts may be others than this one; None means this host.
        site: The machine that was recognised, for its default.

    Raises:
        UsageError: A variable cannot be read.
    """
    requested, number = _requested_kind(environ), _requested_number(environ)
    if requested == "cpu":
        return Devices(
            0, "cpu", "TORCH_DEVICE", (f"TORCH_DEVICE=cpu decides over {_NUMBER}={number}",) if number else ()
        )
    here = allocation is None or _is_here(environ, read, allocation)
    vendor, exist = _driver(environ, read, requested) if here else ("", 0)
    scene = _Scene(environ, read, run, allocation, site, requested, here, vendor, exist)
    counted = _overridden(scene, number) if number is not None else _told(scene) or _probed(scene)
    notes = (*grants.strangers(environ, allocation), *counted.notes)
    selector = environ.get("ONEAPI_DEVICE_SELECTOR", "")
    if counted.kind == "xpu" and re.search(r":\d", selector):
        notes += (f"ONEAPI_DEVICE_SELECTOR={selector} may hide devices from torch; it was not taken into account",)
    return replace(counted, notes=tuple(dict.fromkeys(" ".join(note.split()) for note in notes)))  # one line each


def devices_on(devices: Devices, allocation: Allocation) -> list[int]:
    """Return the devices of each host, which differ where the scheduler's grant decided and was uneven."""
    if allocation.devices and devices.origin == allocation.origin.get("devices", allocation.scheduler):
        return list(allocation.devices)
    return [devices.count] * len(allocation.hosts)


def describe(kind: str, counts: Sequence[int]) -> str:
    """Return the devices of hosts for people: ``4 cuda per host``, ``4, 1 cuda``, ``none (cpu)``."""
    if len(set(counts)) > 1:
        return f"{', '.join(map(str, counts[:16]))}{', …' * (len(counts) > 16)} {kind}"
    return f"{counts[0]} {kind} per host" if counts[0] else "none (cpu)"


def _requested_kind(environ: Mapping[str, str]) -> str:
    text = environ.get("TORCH_DEVICE", "").strip().lower()
    kind = text.partition(":")[0]
    # A vendor's own device is known to torch inside ranks alone: then somebody must have counted it.
    known = kind in _KINDS or bool(environ.get(_NUMBER, "").strip())
    if text and not (known and re.fullmatch(r"[a-z_]+(:\d+)?", text, re.ASCII)):
        expected = f"one of {', '.join(_KINDS)}, or a vendor's device beside {_NUMBER}=N"
        raise refusal("the device", "TORCH_DEVICE", environ["TORCH_DEVICE"], expected)
    return kind


def _requested_number(environ: Mapping[str, str]) -> int | None:
    text = environ.get(_NUMBER, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise refusal("the number of devices", _NUMBER, environ[_NUMBER], "a whole number")
    return int(text) if text else None


def _is_here(environ: Mapping[str, str], read: Read, allocation: Allocation) -> bool:
    return not _names_here(environ, read, allocation).isdisjoint(map(_short, allocation.hosts))


def _names_here(environ: Mapping[str, str], read: Read, allocation: Allocation | None) -> set[str]:
    """Return the names of this host, shortened: node files may list fully qualified ones."""
    names = {host_name(read), "localhost", "127.0.0.1"}
    if allocation:  # a scheduler's name of a host may be another than the host's own
        names.add(environ.get(scheduler(allocation.scheduler).host_variable, ""))
    return {_short(name) for name in names if name}


def _short(name: str) -> str:
    name = name.strip().lower()
    is_address = name[:1].isdigit() and not re.search(r"[^\d.]", name)
    return name if is_address else name.partition(".")[0]


def _driver(environ: Mapping[str, str], read: Read, requested: str) -> tuple[str, int]:
    for name, vendor in VENDORS.items():
        exist = vendor.exists(environ, read) if requested in {"", vendor.KIND} else None
        if exist is not None:
            return name, exist
    return "", 0


def _kind(scene: _Scene) -> str:
    # Of hosts that cannot be looked at, the site knows; a scheduler's count does not say whose devices it counts.
    site = scene.site.device if scene.site and scene.site.device != "cpu" else ""
    return scene.requested or (VENDORS[scene.vendor].KIND if scene.vendor else site or "cuda")


def _overridden(scene: _Scene, number: int) -> Devices:
    counted = Devices(number, _kind(scene) if number else "cpu", _NUMBER)
    try:
        from_variables = _told(scene)
    except UsageError as error:  # this variable is the way out of others that cannot be read
        return replace(counted, notes=(str(error),))
    if from_variables is None:
        return replace(counted, notes=_beyond(scene, counted))
    if from_variables.count != number:
        return replace(counted, notes=(_contrast(scene, counted, from_variables.origin, from_variables.count),))
    return counted


def _told(scene: _Scene) -> Devices | None:
    """Return what the environment tells: the mask before the grant, since ranks started here inherit the mask."""
    vendor = scene.vendor or ("intel" if _kind(scene) == "xpu" else "")
    mask = mask_variables.visible(scene.environ, vendor, scene.exist, scene.read)
    if mask and scene.requested not in {"", mask.kind} and mask.count:
        mask = None  # of another vendor than TORCH_DEVICE names
    grant = grants.granted(scene.environ, scene.allocation, here=scene.here)
    if grant is None:
        return None if mask is None else replace(mask, notes=mask.notes + _beyond(scene, mask))
    from_variables = Devices(grant.number, _kind(scene) if grant.number else "cpu", grant.origin, grant.notes)
    if mask and scene.here and mask.count == _uneven_share(scene):
        return from_variables  # it is the scheduler's own mask of this host, and others have other numbers
    if mask is None:
        return replace(from_variables, notes=from_variables.notes + _beyond(scene, from_variables))
    # A scheduler sets masks anew on the job's hosts; this other host's own says nothing there.
    first, second = (mask, from_variables) if scene.here else (from_variables, mask)
    notes = first.notes + second.notes + _beyond(scene, first)
    if first.count != second.count:
        notes += (_contrast(scene, first, second.origin, second.count),)
    return replace(first, notes=notes)


def _uneven_share(scene: _Scene) -> int | None:
    """Return how many devices of this host were granted, where hosts differ; else None."""
    job = scene.allocation
    if job is None or not job.devices or len(set(job.devices)) == 1:
        return None
    names = _names_here(scene.environ, scene.read, job)
    return next((count for host, count in zip(job.hosts, job.devices, strict=True) if _short(host) in names), None)


def _contrast(scene: _Scene, counted: Devices, other: str, count: int) -> str:
    text = f"{_quoted(scene, counted.origin)} tells {counted.count}, {_quoted(scene, other)} {count}; the first decides"
    name = _first(counted.origin)
    return (
        f"{text} (`unset {name}` for all)"
        if counted.count < count and name in {_NUMBER, *mask_variables.MASKS}
        else text
    )


def _first(origin: str) -> str:
    return origin.partition(",")[0]  # of "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES" or "ZE_AFFINITY_MASK, FLAT"


def _quoted(scene: _Scene, origin: str) -> str:
    name = _first(origin)
    return origin.replace(name, f"{name}={scene.environ[name]}", 1) if name in scene.environ else origin


def _beyond(scene: _Scene, counted: Devices) -> tuple[str, ...]:
    """Compare an answer with what kernel files show on this host; no process is started for that."""
    name = _quoted(scene, counted.origin)
    if not scene.here or not counted.count:
        return ()
    if not scene.vendor:
        is_ours = scene.requested in {"", *_KINDS}  # nothing is known of a vendor's own driver
        return (f"{name} tells {counted.count}, but {_nowhere(scene)} on this host",) if is_ours else ()
    if scene.exist and counted.count > scene.exist and "MIG-" not in name:
        looked = VENDORS[scene.vendor].LOOKED
        return (f"{name} tells {counted.count}, but the driver has {scene.exist} ({looked}); shared or MIG ones?",)
    return ()


def _nowhere(scene: _Scene) -> str:
    wanted = [vendor for vendor in VENDORS.values() if scene.requested in {"", vendor.KIND}]
    here = [vendor for vendor in wanted if (vendor is apple) == (os.uname().sysname == "Darwin")]
    return f"no driver found ({', '.join(vendor.LOOKED for vendor in here or wanted)})"


def _probed(scene: _Scene) -> Devices:
    if not scene.here:
        return _site(scene) or _from_elsewhere(scene)
    if not scene.vendor:
        return Devices(0, "cpu", _nowhere(scene), _missed(scene))
    counted = _probe(scene, VENDORS[scene.vendor])
    if counted.count:
        return counted
    default = _site(scene)
    return replace(default, notes=counted.notes) if default else counted


def _probe(scene: _Scene, vendor: ModuleType) -> Devices:
    counted: Devices = vendor.probe(scene.environ, scene.read, scene.run)
    return counted


def _site(scene: _Scene) -> Devices | None:
    site = scene.site
    if site is None or site.devices_per_host is None or scene.requested not in {"", site.device}:
        return None
    count = site.devices_per_host
    return Devices(count, site.device if count else "cpu", f"site {site.name}")


def _from_elsewhere(scene: _Scene) -> Devices:
    vendor, _ = _driver(scene.environ, scene.read, scene.requested)
    counted = _probe(scene, VENDORS[vendor]) if vendor else Devices(0, "cpu", _nowhere(scene))
    what = "its devices were counted" if counted.count else "none are assumed"
    note = f"{UNKNOWN}, of which this is none; {what}; run `export {_NUMBER}=N` if wrong"
    return replace(counted, notes=(note, *counted.notes))


def _missed(scene: _Scene) -> tuple[str, ...]:
    notes = [intel.overlooked(scene.read)]
    site = scene.site
    if site and site.devices_per_host and scene.allocation and scene.allocation.job_id:
        notes.append(
            f"site {site.name} has {site.devices_per_host} {site.device} devices per host, this host shows none"
        )
    if scene.requested:
        notes.append(f"TORCH_DEVICE={scene.environ['TORCH_DEVICE']} asks for a device that this host does not show")
    return tuple(note for note in notes if note)
