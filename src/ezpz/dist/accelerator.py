"""Call the device: waiting, memory, names and timing, on every type of device alike.

The device's own module (``torch.cuda``, ``torch.xpu``, ``torch.mps``, a vendor's) is asked first: it is older than
``torch.accelerator`` (2.6, its memory functions 2.9), and those fail inside torch for a vendor's plain allocator. What
a device's module lacks is a no-op, or 0, or None, never an AttributeError in somebody's trainer.

On a CPU the memory of a rank is that of its process, as `ezpz.dist.host_memory` reads it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ezpz.dist import host_memory
from ezpz.dist.device_type import accelerator_module, bound_device, get_torch_device_type

if TYPE_CHECKING:
    import torch

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
