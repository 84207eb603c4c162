"""Which device and which collective backend this rank uses.

TORCH_DEVICE=cpu            cuda, xpu, mps, cpu, with an index if wished (cuda:1): above every probe
TORCH_BACKEND=gloo          a backend of torch.distributed: above the device's own
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ezpz.dist.world import told
from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = [
    "bind_device",
    "get_torch_backend",
    "get_torch_device",
    "get_torch_device_type",
    "group_backend",
    "synchronize",
]

DEVICE_TYPES = ("cuda", "xpu", "mps", "cpu")  # in the order in which they are preferred; ROCm calls itself cuda
BACKENDS = ("gloo", "nccl", "xccl", "ccl", "mpi", "ucc")
_WISH = re.compile(r"(?P<type>[a-z]+)(?::(?P<index>\d+))?\Z")


def get_torch_device_type() -> str:
    """Return ``cuda`` (ROCm included), ``xpu``, ``mps`` or ``cpu``.

    Raises:
        UsageError: ``TORCH_DEVICE`` is no device, or a device that this torch does not offer.
    """
    return _wish()[0] or next(kind for kind in DEVICE_TYPES if _available(kind))


def get_torch_device() -> torch.device:
    """Return the device of this rank, with its index on accelerators.

    The index is the local rank among the visible devices; where the launcher shows each rank one device only, it is 0.

    Raises:
        MachineError: The host shows fewer devices than it has ranks.
        UsageError: ``TORCH_DEVICE`` cannot be used.
    """
    import torch

    kind, index = _wish()
    kind = kind or get_torch_device_type()
    if kind in {"cpu", "mps"}:
        return torch.device(kind)
    if index is None:
        index = _index(kind, getattr(torch, kind).device_count())
    return torch.device(kind, index)


def get_torch_backend() -> str:
    """Return the backend that moves this rank's tensors: nccl, xccl, ccl or gloo.

    Raises:
        UsageError: ``TORCH_BACKEND`` is no backend of torch.distributed.
    """
    wish = os.environ.get("TORCH_BACKEND", "").lower()
    if wish:
        if wish not in BACKENDS:
            raise UsageError(
                f"unknown backend {wish!r} (from TORCH_BACKEND); expected one of {', '.join(BACKENDS)}. "
                "Run `unset TORCH_BACKEND` to let the device decide."
            )
        return wish
    kind = get_torch_device_type()
    if kind == "cuda":
        return "nccl"
    return _xpu_backend() if kind == "xpu" else "gloo"


def group_backend(backend: str, kind: str) -> str:
    """Return the backend of the process group: gloo for CPU tensors beside the accelerator's own.

    Args:
        backend: As `get_torch_backend` returns it.
        kind: Device type.
    """
    return backend if kind in {"cpu", "mps"} or backend in {"gloo", "mpi"} else f"cpu:gloo,{kind}:{backend}"


_bound = ""  # type of the device that this rank works on, so that no step probes for it


def bind_device(device: torch.device) -> None:
    """Make ``device`` the current one, which must happen before a process group is made."""
    global _bound
    import torch

    _bound = device.type
    if device.type in {"cuda", "xpu"}:
        getattr(torch, device.type).set_device(device)


def synchronize() -> None:
    """Wait for the work queued on this rank's device; returns at once on a CPU."""
    torch: Any = sys.modules.get("torch")
    kind = _bound or (get_torch_device_type() if torch is not None else "cpu")
    if kind != "cpu":
        getattr(torch, kind).synchronize()


def _wish() -> tuple[str, int | None]:
    text = os.environ.get("TORCH_DEVICE", "").lower()
    if not text:
        return "", None
    match = _WISH.match(text)
    if not match or match["type"] not in DEVICE_TYPES:
        raise UsageError(
            f"unknown device {text!r} (from TORCH_DEVICE); expected one of {', '.join(DEVICE_TYPES)}. "
            "Run `unset TORCH_DEVICE` to use what is there."
        )
    if not _available(match["type"]):
        raise UsageError(
            f"no usable {match['type']} device (from TORCH_DEVICE={text}): this torch finds none; expected one of "
            f"{', '.join(filter(_available, DEVICE_TYPES))}. Run `unset TORCH_DEVICE` to use what is there."
        )
    return match["type"], int(match["index"]) if match["index"] else None


def _available(kind: str) -> bool:
    import torch

    if kind == "cpu":
        return True
    if kind == "mps":
        return bool(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return bool(module is not None and module.is_available())


def _index(kind: str, visible: int) -> int:
    ranks = told()
    if visible == 1:
        return 0
    if ranks.local_rank < visible:
        return ranks.local_rank
    raise MachineError(
        f"no device for local rank {ranks.local_rank} of {ranks.local_world_size} (from {ranks.family}): {visible} {kind} "
        f"devices are visible (from torch); expected one per rank. Start fewer ranks per host: `launch --ppn {visible} …`."
    )


def _xpu_backend() -> str:
    import torch.distributed as dist

    if dist.is_xccl_available():
        return "xccl"
    try:
        import oneccl_bindings_for_pytorch  # noqa: F401  # registers the backend ccl with torch
    except ImportError:
        raise MachineError(
            "no collective backend for xpu: this torch has no xccl and oneccl_bindings_for_pytorch is not installed; "
            "expected one of them. Install a torch with XCCL, or set TORCH_BACKEND=gloo for a slow test."
        ) from None
    return "ccl"
