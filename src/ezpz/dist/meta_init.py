"""Memory and initial weights for a model that was built without either, on the meta device, and sharded since.

Initialising each shard where it lies is wrong on a CPU mesh: every rank draws the same numbers for its shard (torch 2.13), and
on accelerators it gives other weights than one process would. So one rank initialises a dense copy on its CPU, and sends one
tensor at a time; each rank keeps its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.dense_init import dense_values, named_tensors
from ezpz.dist.device import get_torch_device
from ezpz.dist.mesh import get_mesh, stage_mesh
from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

__all__ = ["materialize"]


def materialize(
    model: nn.Module,
    initialize: Callable[[nn.Module], object] | None = None,
    *,
    build: Callable[[], nn.Module] | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> None:
    """Give the parameters and buffers that are on the meta device memory, and the values of the dense model.

    With the same seed the weights are bit for bit those of one process without sharding, whatever the mesh. The dense model
    is on the CPU of one rank only (of one per pipeline stage), and never on a device. What has memory already is left alone.

    All ranks must call it. In this order of preference the values come from: ``build``; ``initialize``; the model's
    ``init_weights()``, or that of its parts; ``reset_parameters()`` of every module, children first, which is the order in
    which constructors draw; and ``reset_buffers()`` for buffers that have no value by then.

    Args:
        model: Built under ``torch.device("meta")``; sharded or not.
        initialize: Initialises a dense copy of the model in place, by ``torch.nn.init`` or any other means.
        build: Makes the dense model; the surest way, also where constructors draw numbers that ``init_weights`` draws again.
        device: Where the tensors go; by default the device of the model's mesh, else this rank's.
        seed: Seed of the initialisation, which leaves torch's generator as it stands. Without a seed it draws from the
            generator, and ranks whose generators stood alike before stand alike afterwards.

    Raises:
        MachineError: The rank that initialises failed; its own error says why.
        UsageError: Something has no value afterwards, is no parameter or buffer, or both ``initialize`` and ``build`` are
            given. With pipeline stages ``build`` must be given: no stage knows what the others draw.
    """
    import torch

    if initialize is not None and build is not None:
        raise UsageError("both initialize and build are given (from materialize); expected one. Leave out initialize.")
    _refuse_strays(model)
    empty = [name for name, tensor in named_tensors(model).items() if tensor.is_meta]
    if not empty:
        return
    sender = _Sender()
    if sender.staged and build is None:
        raise UsageError(
            "the model is one pipeline stage of several (from the mesh), and no stage knows what the others draw; expected "
            "build. Pass build=lambda: … , which makes the whole dense model with the same names."
        )
    # Callers may still be inside torch.device("meta"), where every new tensor would be without memory again.
    with torch.device("cpu"):
        place = _place(model, device)
        if sender.simulated:
            _give_memory(model, place)
            _fill(model, empty)
            return
        values = sender.values(lambda: dense_values(model, empty, initialize, build, seed), place, draws=seed is None)
        _give_memory(model, place)
        tensors = named_tensors(model)
        for name in empty:
            _keep_part(tensors[name], sender.send(values.pop(name, None), tensors[name], place))


class _Sender:
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
        """Return the dense values on the rank that sends, and nothing on the others; all of them learn if that failed."""
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
                f"rank {self.source} could not initialise the model; expected initial weights from it. Its own message, above or "
                "below this one, says what went wrong."
            )
        if draws:
            self._move_on(before, place)
        return made

    def _move_on(self, before: torch.Tensor, place: torch.device) -> None:
        """Let ranks whose generators stood where the sender's did stand where it does now, as if each had initialised."""
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
        # Weights that stay on the host (offloading) have no backend in a group of nccl alone, and those on mps none in gloo.
        moved = data.to(place if place.type in served else "cpu" if "cpu" in served else get_torch_device())
        moved = moved.clone() if moved is data else moved
        dist.broadcast(moved, src=self.source, group=self.group)
        return moved.to(data.device)


def _place(model: nn.Module, device: torch.device | str | None) -> torch.device:
    import torch

    if device is not None:
        return torch.device(device)
    kinds = {
        tensor.device_mesh.device_type for tensor in named_tensors(model).values() if hasattr(tensor, "device_mesh")
    }
    own = get_torch_device()
    return own if not kinds or own.type in kinds else torch.device(kinds.pop())


def _give_memory(model: nn.Module, place: torch.device) -> None:
    """Replace what is on the meta device by uninitialised memory; tied weights stay one."""
    import torch

    homes: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.is_meta:
                homes.setdefault(id(parameter), []).append((module, name))
    # As nn.Module.to_empty does, which would throw away what has memory; sharded modules take note of the change.
    model._apply(  # noqa: SLF001  # torch has no public way between all tensors and none
        lambda tensor: torch.empty_like(tensor, device=place) if tensor.is_meta else tensor
    )
    for (first, own), *others in homes.values():
        for module, name in others:
            setattr(module, name, getattr(first, own))


def _keep_part(tensor: torch.Tensor, whole: torch.Tensor) -> None:
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
    # FSDP shards what tensor parallel has left of the same dimension, though its mesh dimension comes first: that is what a
    # split factor tells.
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


def _fill(model: nn.Module, names: list[str]) -> None:
    """Write small numbers, so that a simulated step is finite; indices stay in range."""
    import torch

    tensors = named_tensors(model)
    with torch.no_grad():
        for name in names:
            local = tensors[name].to_local() if hasattr(tensors[name], "to_local") else tensors[name]
            local.fill_(0.02 if local.is_floating_point() else 0)


def _refuse_strays(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for own, value in vars(module).items():
            if getattr(value, "is_meta", False) is True:
                raise UsageError(
                    f"{f'{name}.' if name else ''}{own} is a tensor on the meta device, but neither parameter nor buffer (from "
                    f"the model); expected one of them. Write self.register_buffer({own!r}, …, persistent=False)."
                )
