"""Send whole tensors between one rank and those that hold parts of them, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.dense_init import named_tensors
from ezpz.dist.device import get_torch_device
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

    def values(
        self, make: Callable[[], dict[str, torch.Tensor]], place: torch.device, *, draws: bool
    ) -> dict[str, Any]:
        """Return the dense values on the rank that sends, and nothing on the others; all of them learn if that
        failed.
        """
        import torch

        before = torch.get_rng_state()
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
        if draws:
            self._move_on(before, place)
        return made

    def _move_on(self, before: torch.Tensor, place: torch.device) -> None:
        """Set generators that were as the sender's was to where that is now, as if each had initialised."""
        import torch

        theirs = self._broadcast(before, place)
        after = self._broadcast(torch.get_rng_state(), place)
        if torch.equal(theirs, before):
            torch.set_rng_state(after)

    def send(self, value: torch.Tensor | None, like: torch.Tensor, place: torch.device) -> torch.Tensor:
        """Return the whole tensor on every rank, on the device."""
        import torch

        if value is None:
            whole = torch.empty(like.shape, dtype=like.dtype, device=place)
        else:
            whole = value.to(place, like.dtype).contiguous()
        if not self.grouped or not whole.numel():
            return whole
        # As bytes: gloo knows neither bool nor complex numbers.
        return self._broadcast(whole.reshape(-1).view(torch.uint8), place).view(like.dtype).reshape(like.shape)

    def _broadcast(self, data: torch.Tensor, place: torch.device) -> torch.Tensor:
        import torch.distributed as dist

        if not self.grouped:
            return data
        served = {pair.split(":")[0] for pair in dist.get_backend_config(self.group).split(",")}
        # Weights that stay on the host (offloading) have no backend in a group of nccl alone, and those on mps none in
        # gloo.
        moved = data.to(place if place.type in served else "cpu" if "cpu" in served else get_torch_device())
        moved = moved.clone() if moved is data else moved
        dist.broadcast(moved, src=self.source, group=self.group)
        return moved.to(data.device)


def place_of(model: nn.Module, device: torch.device | str | None = None) -> torch.device:
    """Return where a model's tensors go: the given device, that of its mesh, or this rank's."""
    import torch

    if device is not None:
        return torch.device(device)
    kinds = {
        tensor.device_mesh.device_type for tensor in named_tensors(model).values() if hasattr(tensor, "device_mesh")
    }
    own = get_torch_device()
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
        part = _part(whole, tensor)
        if part is not None:
            tensor.to_local().copy_(part)


def _part(whole: torch.Tensor, sharded: Any) -> torch.Tensor | None:
    """Return what this rank holds of a tensor; None if it is not in the tensor's mesh."""
    coordinates = sharded.device_mesh.get_coordinate()
    if coordinates is None:
        return None
    # FSDP shards what tensor parallel has left of the same dimension, though its mesh dimension comes first: that is
    # what a split factor tells.
    order = sorted(range(len(coordinates)), key=lambda place: hasattr(sharded.placements[place], "split_factor"))
    part = whole
    for place in order:
        placement = sharded.placements[place]
        if placement.is_replicate():
            continue
        dim = placement.dim
        pieces = part.chunk(sharded.device_mesh.size(place), dim)
        mine = coordinates[place]
        part = pieces[mine] if mine < len(pieces) else part.narrow(dim, 0, 0)
    return part
