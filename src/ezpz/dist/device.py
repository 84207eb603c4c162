"""Choose the device of this rank and make it the current one, before the process group is made."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal, overload

from ezpz.dist.accelerator import synchronize
from ezpz.dist.backend import BACKENDS, backend_for, check_backend, get_torch_backend, group_backend
from ezpz.dist.device_type import (
    DEVICE_TYPES,
    accelerator_module,
    bound_device,
    get_torch_device_type,
    is_masked,
    is_shared,
    read_device,
    remember_device,
    requested_device,
)
from ezpz.dist.job import this_rank
from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    import torch

__all__ = [
    "BACKENDS",
    "DEVICE_TYPES",
    "DeviceType",
    "advice_on_index",
    "bind_device",
    "check_backend",
    "choose_device",
    "device",
    "device_id_for_group",
    "get_torch_backend",
    "get_torch_device",
    "get_torch_device_type",
    "group_backend",
    "synchronize",
]

# Known to refuse or to ignore a bound device: gloo, mpi and ucc serve CPUs too, ccl came before torch had device_id.
_UNBOUND = {"", "gloo", "mpi", "ucc", "ccl", "fake"}


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
