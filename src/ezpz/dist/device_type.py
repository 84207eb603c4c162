"""Choose the type of device that this rank works on: TORCH_DEVICE above every probe, else what is there.

TORCH_DEVICE=cpu            a device type, with an index if wished (cuda:1)
EZPZ_OVERSUBSCRIBE=1        ranks may share devices, as the launch was asked to let them (--oversubscribe)

The order is cuda (ROCm calls itself cuda), xpu, a vendor's own device that is registered with torch (PrivateUse1 under
its name, such as npu), mps, cpu.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.dist.job import this_rank
from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICE_TYPES = ("cuda", "xpu", "mps", "cpu")  # torch's own
_UNNAMED = "privateuseone"  # what torch calls the vendor's place as long as no vendor has taken it
_NAME = re.compile(r"(?P<type>[a-z][a-z0-9_]*)(?::(?P<index>\d+))?\Z", re.ASCII)
_OTHER_MASKS = {"ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "GPU_DEVICE_ORDINAL"}
_AMD_DRIVER = Path("/dev/kfd")  # there wherever the driver of AMD's GPUs runs, whatever masks hide

_bound: Any = None  # the device that was made the current one


def get_torch_device_type(device_type: str | None = None) -> str:
    """Return ``cuda`` (ROCm included), ``xpu``, a vendor's registered device, ``mps`` or ``cpu``.

    Args:
        device_type: A type to check and return instead, as older code asks.

    Raises:
        UsageError: ``TORCH_DEVICE`` or ``device_type`` is no device, or one that this torch does not offer.
        MachineError: ROCm's two masks hide all devices from each other.
    """
    requested = read_device(device_type, "device_type") if device_type else requested_device()
    if requested:
        return requested[0]
    standing = bound_device()
    if standing is not None:
        return str(standing.type)
    kind = next(kind for kind in device_types() if is_available(kind))
    if kind == "cpu":
        _check_amd_masks(os.environ)
    return kind


def requested_device() -> tuple[str, int | None] | None:
    """Return type and index (None if not given) that ``TORCH_DEVICE`` asks for, or None without it.

    Raises:
        UsageError: It is no device, or this torch finds none of that type.
    """
    text = os.environ.get("TORCH_DEVICE", "").strip()
    return read_device(text, "TORCH_DEVICE") if text else None


def read_device(text: str, source: str) -> tuple[str, int | None]:
    """Return type and index of a device that somebody named, checked against what is there.

    Args:
        text: For example ``cuda`` or ``xpu:3``; case does not matter.
        source: Who named it, for the error.

    Raises:
        UsageError: It is no device, or this torch finds none of that type.
    """
    match = _NAME.match(text.lower())
    known = device_types()
    remedy = f"Run `unset {source}` to use what is there." if source.isupper() else "Leave it out to use what is there."
    if not match or match["type"] not in known:
        raise UsageError(
            f"unknown device {text!r} (from {source}); expected one of {', '.join(known)}, or the name of a device "
            f"whose package was imported before. {remedy}"
        )
    if not is_available(match["type"]):
        if match["type"] == "cuda":
            _check_amd_masks(os.environ)
        raise UsageError(
            f"no usable {match['type']} device (from {source}={text}): this torch finds none; expected one of "
            f"{', '.join(filter(is_available, known))}. {remedy}"
        )
    return match["type"], int(match["index"]) if match["index"] else None


def device_types() -> tuple[str, ...]:
    """Return the device types that torch knows here, in the order in which they are preferred."""
    vendor = _vendor()
    return ("cuda", "xpu", *([vendor] if vendor else []), "mps", "cpu")


def is_available(kind: str) -> bool:
    """Tell whether this process can use a device of the type ``kind``."""
    import torch

    if kind == "cpu":
        return True
    if kind == "mps":
        return bool(torch.backends.mps.is_available())
    module = accelerator_module(kind)
    return bool(module is not None and module.is_available())


def is_masked() -> bool:
    """Tell whether somebody chose what this process sees: then a single visible device is this rank's own."""
    return any(name.endswith("VISIBLE_DEVICES") or name in _OTHER_MASKS for name in os.environ)


def is_shared(kind: str) -> bool:
    """Tell whether ranks of this host share devices of the type ``kind``, because the launch was asked to let them."""
    if kind in {"cpu", "mps"} or os.environ.get("EZPZ_OVERSUBSCRIBE") != "1":
        return False
    visible = int(accelerator_module(kind).device_count())
    return 0 < visible < this_rank().local_world_size and not (visible == 1 and is_masked())


def accelerator_module(kind: str) -> Any:
    """Return ``torch.cuda``, ``torch.xpu``, ``torch.mps`` or a vendor's module; None where torch has none."""
    import torch

    return None if kind == "cpu" else getattr(torch, kind, None)


def remember_device(device: Any) -> None:
    """Note the device that was made the current one, so that no step probes for it."""
    global _bound
    _bound = device


def bound_device(*, in_group: bool = True) -> Any:
    """Return the device that was bound, else None.

    Args:
        in_group: Only while there is a process group: before it, and after it is gone, the environment decides anew.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if in_group and not (dist is not None and dist.is_available() and dist.is_initialized()):
        return None
    return _bound


def _vendor() -> str:
    """Return the name of a registered out-of-tree device with a module of its own, else nothing."""
    import torch

    ask = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)  # there is no public way to ask
    name = ask() if ask else _UNNAMED
    module = getattr(torch, name, None)
    return name if name != _UNNAMED and hasattr(module, "is_available") else ""


def _check_amd_masks(environ: Mapping[str, str]) -> None:
    """Refuse to fall back to the CPU where the second of ROCm's masks filters what the first one has left.

    ROCR_VISIBLE_DEVICES=3 leaves one device, whose index is then 0, so that HIP_VISIBLE_DEVICES=3 leaves none.
    """
    import torch

    if not getattr(getattr(torch, "version", None), "hip", None) or not _AMD_DRIVER.exists():
        return
    outer, inner = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
    if inner not in environ:
        inner = "CUDA_VISIBLE_DEVICES"  # HIP's second name for it
    masks = [f"{name}={environ[name]}" for name in (outer, inner) if name in environ]
    if len(masks) < 2 or any(environ[name].strip() in {"", "-1", "NoDevFiles"} for name in (outer, inner)):
        return  # an empty mask hides the devices on purpose
    raise MachineError(
        f"no usable device: ROCm filters twice, by {' and then by '.join(masks)} (from the environment), and the "
        f"second counts among what the first leaves; expected one mask. Run `unset {inner}`, or TORCH_DEVICE=cpu to "
        "do without."
    )
