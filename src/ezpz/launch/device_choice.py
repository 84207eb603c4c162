"""Choose which of the visible devices of a host its ranks use: those of ``--devices``, or of the user's own mask.

Most launchers pass the variable of a mask on as it is. One that sets it anew in front of every rank, to all devices of
the job, would let two launches with different masks share devices in silence. For it the plan carries what was chosen,
and the shim in front of a rank chooses the same again (`ezpz.launch.contract.restore_mask`):

    EZPZ_DEVICES='CUDA_VISIBLE_DEVICES 6,7 2,3'    the variable, its value on this host, and the places of these devices
                                                   among those that the job has on a host
"""

from __future__ import annotations

from ezpz.errors import UsageError
from ezpz.fields import replace
from ezpz.launch.contract import picked
from ezpz.launch.flavours.request import Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.cluster.devices import Devices
    from ezpz.cluster.scheduler import Scheduler

# The masks of a kind of device, the ordinary one first.
_MASKS = {"cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "xpu": ("ZE_AFFINITY_MASK",)}


def chosen_devices(counted: Devices, entries: Sequence[str]) -> Devices:
    """Return the devices of a host that ``--devices`` leaves.

    Args:
        counted: All that are visible; the count is 0 where it is unknown.
        entries: Places among them, or UUIDs.

    Raises:
        UsageError: There are none of a kind that can be masked, or one of the places is beyond them.
    """
    listed = ",".join(entries)
    if counted.kind not in _MASKS:
        raise UsageError(
            f"cannot choose devices {listed} (from --devices): {counted.kind} devices have no mask ({counted.origin}); "
            f"expected one of {', '.join(_MASKS)}. Leave --devices out."
        )
    beyond = [entry for entry in entries if entry.isdigit() and int(entry) >= counted.count]
    if beyond:
        raise UsageError(
            f"no device {beyond[0]} (from --devices {listed}): {counted.count} are visible ({counted.origin}); "
            f"expected numbers from 0 to {counted.count - 1}, counted among the visible ones."
        )
    return replace(counted, count=len(entries), origin="--devices")


def mask_settings(
    environ: Mapping[str, str], devices: Devices, entries: Sequence[str], around: Scheduler | None
) -> dict[str, Setting]:
    """Return the variables by which ranks see the chosen devices alone.

    Args:
        environ: The environment of the launcher.
        devices: What was counted, and how.
        entries: What ``--devices`` names; empty without it.
        around: Whose job this is, where the launcher sets masks anew for each rank; else None.
    """
    if not entries and (around is None or devices.origin.partition(",")[0] not in _MASKS.get(devices.kind, ())):
        return {}
    settings: dict[str, Setting] = {}
    names = _MASKS[devices.kind]
    for name in [name for name in names if environ.get(name)] or names[:1]:
        text = environ.get(name, "")
        why = "--devices" if entries else f"{name} of this shell"
        if entries:
            text = picked(text, entries)
            settings[name] = Setting(text, why)
        places = _places(text, around.mask(environ)) if around else ""
        if places:
            settings["EZPZ_DEVICES"] = Setting(f"{name} {text} {places}", why)
    return settings


def _places(text: str, granted: Sequence[str]) -> str:
    """Return the places of a mask's devices among those that the scheduler's own mask names; empty if it is that."""
    entries = [entry.strip() for entry in text.split(",")]
    if entries == list(granted):
        return ""
    return ",".join(str(granted.index(entry)) if entry in granted else entry for entry in entries)
