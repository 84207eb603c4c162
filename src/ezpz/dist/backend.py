"""Choose the collective backend that moves this rank's tensors, and the name under which torch makes the group.

TORCH_BACKEND=gloo                      a backend of torch.distributed, or one that a package registered with it
TORCH_BACKEND=cpu:gloo,cuda:nccl        one for each type of device
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ezpz.dist.device import DEVICE_TYPES, accelerator_module, get_torch_device_type, is_shared
from ezpz.dist.job_around import this_rank
from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    import torch

BACKENDS = ("gloo", "nccl", "xccl", "ccl", "mpi", "ucc")  # those that are known without asking torch
_BUILT_IN = ("gloo", "nccl", "xccl", "mpi")  # torch tells by is_<name>_available() whether it was built with them
_ADVICE = "Run `unset TORCH_BACKEND` to let the device decide."
# Known to refuse or to ignore a bound device: gloo, mpi and ucc serve CPUs too, ccl came before torch had device_id.
_UNBOUND = {"", "gloo", "mpi", "ucc", "ccl", "fake"}


def get_torch_backend() -> str:
    """Return the backend that moves this rank's tensors: nccl, xccl, ccl, a vendor's or gloo; or ``TORCH_BACKEND``.

    Raises:
        UsageError: ``TORCH_BACKEND`` names no backend, or one that does not serve this rank's device.
        MachineError: No backend serves the device.
    """
    requested = os.environ.get("TORCH_BACKEND", "").strip()
    kind = get_torch_device_type()
    if requested:
        return check_backend(requested, kind, "TORCH_BACKEND")
    if kind == "cuda":
        return "gloo" if is_shared(kind) else _cuda_backend()  # nccl refuses two ranks on one device
    if kind == "xpu":
        return _xpu_backend()
    return "gloo" if kind in DEVICE_TYPES else _vendors_backend(kind)


def check_backend(text: str, kind: str, source: str) -> str:
    """Return a backend that somebody named, in lower case, or say why it cannot be.

    Args:
        text: One name, or ``cpu:gloo,cuda:nccl``.
        kind: Device type of this rank.
        source: Who named it, for the error.

    Raises:
        UsageError: A part is no backend that torch knows, is not built in, or no part serves ``kind``.
    """
    text = text.lower().replace(" ", "")
    pairs = [part.partition(":")[::2] for part in text.split(",")] if ":" in text else [(kind, text)]
    if not all(device and name for device, name in pairs):
        raise UsageError(
            f"unreadable backend {text!r} (from {source}); expected for example cpu:gloo,cuda:nccl. {_ADVICE}"
        )
    for _, name in pairs:
        _check_name(name, text, source)
    devices = [device for device, _ in pairs]
    if len(set(devices)) < len(devices):
        raise UsageError(f"one device twice in backend {text!r} (from {source}); expected each once. {_ADVICE}")
    if kind not in devices:
        raise UsageError(
            f"no backend for {kind} in {text!r} (from {source}); expected one for this rank's device, such as "
            f"cpu:gloo,{kind}:…. {_ADVICE}"
        )
    _check_service(dict(pairs)[kind], kind, source)
    return text


def backend_for(backend: str, kind: str) -> str:
    """Return the part of a backend that serves the device type ``kind``: nccl of ``cpu:gloo,cuda:nccl``."""
    if ":" not in backend:
        return backend
    return dict(part.split(":", 1) for part in backend.split(",")).get(kind, "")


def group_backend(backend: str, kind: str) -> str:
    """Return the backend of the process group: gloo for CPU tensors beside the accelerator's own.

    Args:
        backend: As `get_torch_backend` returns it; what names devices already stays as it is.
        kind: Device type.
    """
    if ":" in backend or kind == "cpu" or backend == "mpi":
        return backend
    if backend != "gloo":
        return f"cpu:gloo,{kind}:{backend}"
    # A plain "gloo" serves cpu and cuda alone; torch says since 2.8 that mps has it too.
    return "cpu:gloo,mps:gloo" if kind == "mps" and _defaults().get("mps") == "gloo" else "gloo"


def device_id_for_group(own: torch.device, backend: str) -> torch.device | None:
    """Return what to pass to ``init_process_group`` as ``device_id``, None where torch would refuse it.

    Says once per host when the masks of its ranks are known to make the collectives of xccl hang.

    Args:
        own: The device of this rank.
        backend: One name, or ``cpu:gloo,cuda:nccl``.
    """
    name = backend_for(backend, own.type)
    if own.type == "xpu" and name == "xccl":
        _warn_of_tile_masks()
    if own.type in {"cpu", "mps"} or own.index is None or name in _UNBOUND:
        return None
    return own


def _check_name(name: str, text: str, source: str) -> None:
    if name == "ccl":
        _import_ccl()  # it is a backend only once its package has registered it
    dist = _distributed()
    known = [str(word) for word in dist.Backend.backend_list if word != "undefined"]
    if name not in known:
        hint = " (ccl is known once oneccl_bindings_for_pytorch is installed)" if name == "ccl" else ""
        raise UsageError(
            f"unknown backend {name!r} (from {source}={text}){hint}; expected one of {', '.join(known)}, or one whose "
            f"package was imported before. {_ADVICE}"
        )
    if name in _BUILT_IN and not getattr(dist, f"is_{name}_available", lambda: True)():
        raise UsageError(
            f"no backend {name} (from {source}={text}): this torch was built without it; expected one of "
            f"{', '.join(word for word in known if word not in _BUILT_IN or _is_built_in(word))}. {_ADVICE}"
        )


def _check_service(name: str, kind: str, source: str) -> None:
    """Refuse a backend that cannot move this device's tensors, which torch would tell at the first collective only."""
    serves = getattr(_distributed().Backend, "backend_capability", {}).get(name)
    if serves is None or kind in serves or name == "fake" or _defaults().get(kind) == name:
        return
    if name == "gloo":
        # Objects and CPU tensors do cross; who asked for it by name may want no more than that.
        get_logger(__name__).warning(
            f"gloo (from {source}) moves CPU tensors alone; collectives of {kind} tensors will fail. "
            "Set TORCH_DEVICE=cpu to train slowly on CPUs."
        )
        return
    raise UsageError(
        f"backend {name} (from {source}) moves {' and '.join(serves)} tensors, and this rank's device is {kind}; "
        f"expected a backend for {kind}. {_ADVICE}"
    )


def _is_built_in(name: str) -> bool:
    return bool(getattr(_distributed(), f"is_{name}_available", lambda: False)())


def _cuda_backend() -> str:
    if _is_built_in("nccl"):  # RCCL carries the same name
        return "nccl"
    get_logger(__name__).warning("this torch has no nccl; gloo moves tensors of the GPUs through host memory, slowly")
    return "gloo"


def _xpu_backend() -> str:
    if _is_built_in("xccl"):
        return "xccl"
    if _import_ccl():
        return "ccl"
    # Not gloo in silence: it refuses tensors of xpu, so the first gradient would fail instead of this line.
    raise MachineError(
        "no collective backend for xpu: this torch has no xccl (its wheels do since 2.8), oneccl_bindings_for_pytorch "
        "is not installed, and gloo cannot move xpu tensors; expected one of the first two. Install a torch with "
        "XCCL, or set TORCH_DEVICE=cpu for a slow test."
    )


def _vendors_backend(kind: str) -> str:
    backend = _defaults().get(kind)
    if backend:
        return str(backend)
    raise MachineError(
        f"no collective backend for {kind}: no package registered one (torch.distributed.Backend.register_backend); "
        "expected the vendor's. Import its package before ezpz.setup_torch, or set TORCH_BACKEND."
    )


def _defaults() -> dict[str, Any]:
    return dict(getattr(_distributed().Backend, "default_device_backend_map", {}))


def _import_ccl() -> bool:
    try:
        import oneccl_bindings_for_pytorch  # noqa: F401  # registers the backend ccl with torch
    except ImportError:
        return False
    return True


def _distributed() -> Any:
    import torch.distributed as dist

    return dist


def _warn_of_tile_masks() -> None:
    """Say what oneCCL does with a mask per rank: it wants to see its neighbours' devices, and hangs (vllm PR 53076)."""
    ranks, mask = this_rank(), os.environ.get("ZE_AFFINITY_MASK")
    if mask is None or ranks.local_rank or ranks.local_world_size == 1 or accelerator_module("xpu").device_count() != 1:
        return
    get_logger(__name__).warning(
        f"each of {ranks.local_world_size} ranks sees one xpu device (from ZE_AFFINITY_MASK={mask}); collectives of "
        "xccl hang between ranks that do not see each other's device. Run `unset ZE_AFFINITY_MASK` and let ezpz "
        "choose by local rank."
    )
