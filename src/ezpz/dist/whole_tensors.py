"""Send whole tensors between one rank and those that hold parts of them, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.dense_init import named_tensors
from ezpz.dist.device import device as own_device
from ezpz.dist.mesh import get_mesh, stage_mesh
from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


class Sender:
    """The rank that holds the dense values, seen from each of the ranks that it sends them to."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.grouped = dist.is_available() and dist.is_initialized()
        self.simulated = self.grouped and dist.get_backend() == "fake"  # moves nothing, so that values mean nothing
        mesh = get_mesh() if self.grouped else None
        stage = stage_mesh(mesh) if mesh is not None else None
        self.staged = stage is not None
        self.group = stage.get_group() if stage is not None else None
        self.source = dist.get_process_group_ranks(self.group or dist.group.WORLD)[0] if self.grouped else 0
        self.sends = not self.grouped or dist.get_rank() == self.source

    def seed(self, wanted: int | None, place: torch.device) -> int:
        """Return the sender's seed on every rank: the wanted one, or one that each rank's generator draws.

        So ranks whose generators stood alike before stand alike afterwards.
        """
        import torch

        mine = int(torch.randint(2**62, ())) if wanted is None else wanted
        return int(self._broadcast(torch.tensor([mine]), place)[0])

    def agree(self, digest: bytes, place: torch.device, *, usable: bool) -> bool:
        """Tell whether all ranks found the same, and all can use it; all of them must call it."""
        import torch
        import torch.distributed as dist

        if not self.grouped:
            return usable
        mine = torch.tensor(list(digest), dtype=torch.uint8)
        same = usable and torch.equal(self._broadcast(mine, place), mine)
        vote = torch.tensor([same], dtype=torch.int32, device=_carrier(place, self.group))
        dist.all_reduce(vote, dist.ReduceOp.MIN, group=self.group)
        return bool(vote.item())

    def values(self, make: Callable[[], dict[str, torch.Tensor]], place: torch.device) -> dict[str, Any]:
        """Return the dense values on the rank that sends, and nothing on the others; all of them learn if that
        failed.
        """
        import torch

        made: dict[str, torch.Tensor] = {}
        failed = self.sends
        try:
            if self.sends:
                made = make()
                failed = False
        finally:  # the other ranks wait for this, whatever happened here
            failed = bool(self._broadcast(torch.tensor([failed], dtype=torch.uint8), place)[0])
        if failed:
            raise MachineError(
                f"rank {self.source} could not initialise the model; expected initial weights from it. Its own "
                "message, above or below this one, says what went wrong."
            )
        return made

    def same(self, value: torch.Tensor, place: torch.device) -> torch.Tensor:
        """Return the sender's value on every rank, where this rank's is."""
        return self._broadcast(value, place)

    def send(self, value: torch.Tensor | None, like: torch.Tensor, place: torch.device) -> torch.Tensor:
        """Return the whole tensor on every rank, on the device."""
        import torch

        if value is None:
            whole = torch.empty(like.shape, dtype=like.dtype, device=place)
        else:
            whole = value.to(place, like.dtype).contiguous()
        if not self.grouped:
            return whole
        return broadcast(whole, self.source, self.group)

    def _broadcast(self, data: torch.Tensor, place: torch.device) -> torch.Tensor:
        return broadcast(data, self.source, self.group, place) if self.grouped else data


def broadcast(data: torch.Tensor, source: int, group: Any, place: torch.device | None = None) -> torch.Tensor:
    """Return a tensor of the source's values on every rank of a group (None: all ranks), on the tensor's own device.

    Args:
        data: Of any format, the same shape on every rank.
        source: Global rank.
        group: As of torch.distributed.
        place: Device to send from; by default the tensor's. Where the group has no backend for it, it is another one:
            weights that stay on the host (offloading) have none in a group of nccl alone, those on mps none in gloo.
    """
    import torch
    import torch.distributed as dist

    if not data.numel():
        return data
    raw = data.contiguous().reshape(-1).view(torch.uint8)  # as bytes: gloo knows neither bool nor complex numbers
    moved = raw.to(_carrier(place or data.device, group))
    moved = moved.clone() if moved is raw else moved
    dist.broadcast(moved, src=source, group=group)
    return moved.to(data.device).view(data.dtype).reshape(data.shape)


def _carrier(place: torch.device, group: Any) -> torch.device:
    """Return the device from which tensors of a place are sent."""
    import torch
    import torch.distributed as dist

    served = {pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")}
    return place if place.type in served else torch.device("cpu") if "cpu" in served else own_device()


def place_of(model: nn.Module, device: torch.device | str | None = None) -> torch.device:
    """Return where a model's tensors go: the given device, that of its mesh, or this rank's."""
    import torch

    if device is not None:
        return torch.device(device)
    kinds = {
        tensor.device_mesh.device_type for tensor in named_tensors(model).values() if hasattr(tensor, "device_mesh")
    }
    own = own_device()
    return own if not kinds or own.type in kinds else torch.device(kinds.pop())


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor, sharded or not, on every rank of its mesh; all of them must call."""
    if not hasattr(tensor, "full_tensor"):
        return tensor.detach()
    device_type = tensor.device_mesh.device_type
    here = tensor.detach()
    if here.device.type != device_type:  # offloaded: its mesh has no collectives for the CPU
        here = here.to(device_type)
    whole: torch.Tensor = here.full_tensor()
    return whole


def keep_part(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Fill a tensor, sharded or not, with what this rank holds of a whole one."""
    import torch

    with torch.no_grad():
        if not hasattr(tensor, "placements"):
            tensor.copy_(whole)
            return
        ranges = part_of(tensor)
        if ranges is not None:
            tensor.to_local().copy_(whole[tuple(slice(*each) for each in ranges)])


def part_of(tensor: Any) -> list[tuple[int, int]] | None:
    """Return what this rank holds of a tensor, sharded or not: first index and end by dimension.

    None if the rank is not in the tensor's mesh.
    """
    ranges = [(0, size) for size in tensor.shape]
    if not hasattr(tensor, "placements"):
        return ranges
    coordinates = tensor.device_mesh.get_coordinate()
    if coordinates is None:
        return None
    # FSDP shards what tensor parallel has left of the same dimension, though its mesh dimension comes first: that is
    # what a split factor tells.
    order = sorted(range(len(coordinates)), key=lambda place: hasattr(tensor.placements[place], "split_factor"))
    for place in order:
        placement = tensor.placements[place]
        if placement.is_replicate():
            continue
        start, stop = ranges[placement.dim]
        each = -(-(stop - start) // tensor.device_mesh.size(place))  # as torch.chunk cuts: the last ones may be empty
        first = min(start + coordinates[place] * each, stop)
        ranges[placement.dim] = first, min(first + each, stop)
    return ranges
