"""Choose the device of this rank, make it the current one before the process group is made, and call it.

TORCH_DEVICE=cpu            a device type, with an index if wished (cuda:1); above every probe
EZPZ_OVERSUBSCRIBE=1        ranks may share devices, as the launch was asked to let them (--oversubscribe)

The order is cuda (ROCm calls itself cuda), xpu, a vendor's own device that is registered with torch (PrivateUse1 under
its name, such as npu), mps, cpu.

The device's own module (``torch.cuda``, ``torch.xpu``, ``torch.mps``, a vendor's) is asked first: it is older than
``torch.accelerator`` (2.6, its memory functions 2.9), and those fail inside torch for a vendor's plain allocator. What
a device's module lacks is a no-op, or 0, or None, never an AttributeError in somebody's trainer. On a CPU the memory
of a rank is that of its process, as `ezpz.dist.host_memory` reads it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ezpz.dist import host_memory
from ezpz.dist.job_around import this_rank
from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

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


class DeviceType(str):
    """A type of device as older code takes it: the text ``cuda``, which has ``.type`` and ``.index`` as well."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The text itself."""
        return str(self)

    @property
    def index(self) -> None:  # type: ignore[override]  # as of torch.device("cuda"); this text is never searched
        """None: the current device, as of ``torch.device("cuda")``."""
        return


def device(device_type: str | None = None) -> torch.device:
    """Return the device of this rank, with its index on accelerators.

    The index is the local rank among the visible devices; where the launcher shows each rank one device only, it is 0.
    While there is a process group it is the device that `setup_torch` has bound.

    Args:
        device_type: For a device of another type than `get_torch_device_type` tells.

    Raises:
        MachineError: The host shows fewer devices than it has ranks.
        UsageError: ``TORCH_DEVICE`` or ``device_type`` cannot be used.
    """
    return choose_device(device_type) if device_type else bound_device() or choose_device()


@overload
def get_torch_device(*, device_type: str | None = None, as_torch_device: Literal[True]) -> torch.device: ...
@overload
def get_torch_device(
    *, device_type: str | None = None, as_torch_device: Literal[False] | None = None
) -> DeviceType: ...
def get_torch_device(
    *, device_type: str | None = None, as_torch_device: bool | None = None
) -> torch.device | DeviceType:
    """Return the type of this rank's device: the text ``cuda``, to which public scripts add the local rank themselves.

    The device itself is `device`. After `setup_torch` the text alone is enough for ``.to(…)``, because this rank's
    device is the current one then.

    Args:
        device_type: A type to check and return instead.
        as_torch_device: True returns what `device` does.

    Raises:
        MachineError: The host shows fewer devices than it has ranks.
        UsageError: ``TORCH_DEVICE`` or ``device_type`` cannot be used.
    """
    if as_torch_device:
        return device(device_type)
    return DeviceType(get_torch_device_type(device_type))


_ORDINAL = re.compile(r"ordinal|out of range|num_devices|device_count|device index|is it visible", re.IGNORECASE)


def advice_on_index(error: BaseException) -> str:
    """Return what to use instead of a device's type and the local rank, where an error comes from these two.

    It is right only where the local rank is the index of the device: not where a rank sees one device alone, nor where
    ranks share devices. Empty for every other error.
    """
    own = bound_device(in_group=False)
    index, local_rank = getattr(own, "index", None), this_rank().local_rank
    if index is None or index == local_rank or not _ORDINAL.search(str(error)):
        return ""
    return (
        f"{own.type}:{local_rank} does not exist here: the device of local rank {local_rank} is {own}, as far as this "
        "process sees devices. Use ezpz.device() instead of "
        'f"{ezpz.get_torch_device()}:{ezpz.get_local_rank()}".'
    )


def choose_device(device_id: int | str | torch.device | None = None) -> torch.device:
    """Return the device that this rank shall use, checked.

    Args:
        device_id: What the program asks for: a device, its text, or an index among the visible ones, which cpu and mps
            ignore, so that ``device_id=local_rank`` runs on a laptop too. ``TORCH_DEVICE`` overrides it.

    Raises:
        UsageError: The device does not exist here, or ``TORCH_DEVICE`` cannot be used.
        MachineError: The host shows fewer devices than it has ranks.
    """
    import torch

    source = "device_id"
    kind, index = _asked(device_id)
    requested = requested_device()
    if requested and (requested[0] != kind or requested[1] is not None):
        source, (kind, index) = "TORCH_DEVICE", (requested[0], index if isinstance(device_id, int) else None)
        index = requested[1] if requested[1] is not None else index
    if kind in {"cpu", "mps"}:
        return torch.device(kind)
    visible = accelerator_module(kind).device_count()
    if index is None:
        index = _index(kind, visible)
    elif not 0 <= index < visible:
        raise UsageError(
            f"no device {kind}:{index} (from {source}): {visible} {kind} devices are visible (from torch); expected an "
            f"index from 0 to {visible - 1}. Leave the index out to follow the local rank."
        )
    return torch.device(kind, index)


def bind_device(own: torch.device) -> None:
    """Make a device the current one, which must happen before a process group is made.

    Otherwise the group binds device 0 for every rank; on xpu FSDP2 then waits for ever in its first all-gather.
    """
    remember_device(own)
    if own.type not in {"cpu", "mps"}:
        accelerator_module(own.type).set_device(own)


def _asked(device_id: Any) -> tuple[str, int | None]:
    if device_id is None:
        return get_torch_device_type(), None
    if isinstance(device_id, bool):
        raise UsageError(f"unusable device {device_id!r} (from device_id); expected an index, a device or its name.")
    if isinstance(device_id, int):
        return get_torch_device_type(), device_id
    return read_device(str(device_id), "device_id")


def _index(kind: str, visible: int) -> int:
    """Return this rank's place among the visible devices; never its rank modulo their number."""
    ranks = this_rank()
    if visible == 1 and is_masked():
        return 0
    if is_shared(kind):
        return ranks.local_rank * visible // ranks.local_world_size  # neighbours share: their CPUs are near each other
    if ranks.local_rank < visible and ranks.local_world_size <= visible:
        return ranks.local_rank
    raise MachineError(
        f"no device for local rank {ranks.local_rank} of {ranks.local_world_size} (from {ranks.family}): {visible} "
        f"{kind} devices are visible (from torch); expected one per rank. Start fewer ranks per host: `launch --ppn "
        f"{visible} …`, share devices: `launch --oversubscribe …`, or choose: TORCH_DEVICE=cpu."
    )


# What older code and reports read besides name and total memory, where the device tells it.
_PROPERTIES = (
    "major",
    "minor",
    "multi_processor_count",
    "max_compute_units",
    "gcnArchName",
    "driver_version",
    "platform_name",
)


def synchronize(device: torch.device | str | None = None) -> None:
    """Wait for the work queued on the device; returns at once on a CPU.

    Args:
        device: By default this rank's.
    """
    if device is None:
        bound = bound_device(in_group=False)
        kind = bound.type if bound is not None else get_torch_device_type() if "torch" in sys.modules else "cpu"
        index = getattr(bound, "index", None)  # of another thread the current device is the first one
    else:
        kind, index = _which(device)
    if kind == "cpu":
        return
    wait = getattr(accelerator_module(kind), "synchronize", None)
    if wait is not None:
        wait() if index is None or kind == "mps" else wait(index)


def memory_allocated(device: torch.device | str | None = None) -> int:
    """Return the bytes that tensors of this process hold on the device now; on a CPU its resident set.

    Args:
        device: By default this rank's.

    Returns:
        Bytes; 0 where a vendor's module does not tell.
    """
    kind, index = _which(device)
    if kind == "cpu":
        return host_memory.current()
    return _bytes(kind, index, "current_allocated_memory" if kind == "mps" else "memory_allocated")


def max_memory_allocated(device: torch.device | str | None = None) -> int:
    """Return the largest `memory_allocated` since the start or the last `reset_peak_memory`.

    mps keeps no peak; what Metal's driver holds for this process is returned, which only grows until `empty_cache`.

    Args:
        device: By default this rank's.

    Returns:
        Bytes; 0 where a vendor's module does not tell.
    """
    kind, index = _which(device)
    if kind == "cpu":
        return host_memory.peak()
    return _bytes(kind, index, "driver_allocated_memory" if kind == "mps" else "max_memory_allocated")


def reset_peak_memory(device: torch.device | str | None = None) -> None:
    """Let `max_memory_allocated` count from now on.

    Without effect on mps and macOS, and on a CPU whose kernel forbids it (``/proc/self/clear_refs``): there the peak
    stays that of the process.

    Args:
        device: By default this rank's.
    """
    kind, index = _which(device)
    if kind == "cpu":
        host_memory.reset_peak()
    elif kind != "mps":
        _call(kind, index, "reset_peak_memory_stats")


def total_memory(device: torch.device | str | None = None) -> int:
    """Return the bytes that the device has, whoever uses them.

    On a CPU that is the host's memory, or the limit of this job's control group where that is lower; all ranks of the
    host share it. On mps it is what Metal recommends to use at most.

    Args:
        device: By default this rank's.

    Returns:
        Bytes; 0 where a vendor's module does not tell.
    """
    kind, index = _which(device)
    if kind == "cpu":
        return host_memory.total()
    if kind == "mps":
        return _bytes(kind, index, "recommended_max_memory")
    size = getattr(_call(kind, index, "get_device_properties"), "total_memory", None)
    if size is None:
        free_and_total = _call(kind, index, "mem_get_info")
        size = free_and_total[1] if free_and_total else 0
    return int(size)


def device_name(device: torch.device | str | None = None) -> str:
    """Return the model, for example ``NVIDIA A100-SXM4-40GB`` or the CPU's; the device type where nothing more is
    known.

    Args:
        device: By default this rank's.
    """
    kind, index = _which(device)
    if kind == "cpu":
        return host_memory.cpu_model()
    if kind == "mps":
        import torch

        ask = getattr(torch.backends.mps, "get_name", None)  # not in every torch
        return str(ask()) if ask else host_memory.cpu_model()
    return str(_call(kind, index, "get_device_name") or kind)


def get_device_properties(device: torch.device | str | int | None = None) -> dict[str, Any]:
    """Return what a report says of a device.

    Args:
        device: By default this rank's; an index counts among the visible ones.

    Returns:
        ``name``, ``total_memory`` in bytes, and what the device tells of ``major``, ``minor``,
        ``multi_processor_count``, ``max_compute_units``, ``gcnArchName``, ``driver_version``, ``platform_name``.
    """
    kind, index = _which(device)
    where = kind if index is None else f"{kind}:{index}"
    properties = None if kind in {"cpu", "mps"} else _call(kind, index, "get_device_properties")
    extra = {name: getattr(properties, name) for name in _PROPERTIES if hasattr(properties, name)}
    return {"name": device_name(where), "total_memory": total_memory(where), **extra}


def empty_cache() -> None:
    """Give memory that torch keeps for later back to this rank's device; nothing on a CPU."""
    kind, _ = _which(None)
    if kind != "cpu":
        _call(kind, None, "empty_cache")


def is_bf16_supported(device: torch.device | str | None = None) -> bool:
    """Tell whether the device computes in bfloat16 itself; emulation (V100) does not count.

    True on every CPU: all compute it rightly, though only those with AVX512-BF16 or AMX gain by it. A vendor's device
    that says nothing is taken not to.

    Args:
        device: By default this rank's.
    """
    import torch

    kind, index = _which(device)
    if kind == "cpu":
        return True
    if kind == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    if kind == "cuda":
        if getattr(torch.version, "hip", None):
            return True  # every generation that ROCm still serves
        major: int = _call(kind, index, "get_device_properties").major
        return major >= 8
    ask = getattr(accelerator_module(kind), "is_bf16_supported", None)
    if ask is not None:
        return bool(ask())
    kinds = _call(kind, None, "get_amp_supported_dtype")  # what a vendor's module tells autocast
    return kind == "xpu" or torch.bfloat16 in (kinds or ())


def make_event() -> Any:
    """Return an event with ``record()`` and ``elapsed_time(later)`` in milliseconds; None on a CPU.

    ``synchronize()`` must have returned before ``elapsed_time`` is asked.
    """
    kind, _ = _which(None)
    module = accelerator_module(kind)
    make = getattr(module.event if kind == "mps" else module, "Event", None)
    return make(enable_timing=True) if make else None


def _which(device: Any) -> tuple[str, int | None]:
    """Return type and index (None: the current one) of a device, of its text, of an index, or of this rank's."""
    if device is None:
        device = bound_device() or get_torch_device_type()
    if isinstance(device, int):
        return get_torch_device_type(), device
    kind, _, index = str(device).partition(":")
    return kind, int(index) if index else None


def _call(kind: str, index: int | None, name: str) -> Any:
    function = getattr(accelerator_module(kind), name, None)
    if function is None:
        return None
    if name in {"empty_cache", "get_amp_supported_dtype"} or kind == "mps":
        return function()
    # cuda's get_device_properties of torch 2.4 has no default, and xpu's None means the current one: so always tell.
    return function(accelerator_module(kind).current_device() if index is None else index)


def _bytes(kind: str, index: int | None, name: str) -> int:
    return int(_call(kind, index, name) or 0)
