"""Making process groups on a backend that cannot split the one that is there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["new_groups"]


@contextmanager
def new_groups(*, split: bool = True) -> Iterator[Callable[[list[Any]], None]]:
    """Let torch make process groups inside in a way that the backend can; all ranks must enter together.

    A process group that is bound to a device (device_id) makes DeviceMesh split it, which xccl cannot: torch raises "its
    backend does not support splitting" (torch 2.13, pytorch#186548). Without the binding torch makes the groups anew, which
    works everywhere. The binding itself must stay, on the new groups too: without it a barrier and the gathers of FSDP2 may
    take another tile than this rank's.

    Args:
        split: False makes groups anew on backends that can split as well, e.g. because not all ranks take part.

    Yields:
        A function that binds a list of new groups to the device, which torch does itself when it splits.
    """
    import torch.distributed as dist

    world: Any = dist.group.WORLD
    device = getattr(world, "bound_device_id", None)
    if device is None or (split and world._get_backend(device).supports_splitting):  # noqa: SLF001  # only way to ask
        yield lambda _groups: None
        return

    def bind(groups: list[Any]) -> None:
        for group in groups:
            group.bound_device_id = device

    world.bound_device_id = None
    try:
        yield bind
    finally:
        world.bound_device_id = device
