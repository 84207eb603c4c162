"""Give memory and initial weights to a model that was built on the meta device and sharded since.

Initialising each shard where it lies is wrong on a CPU mesh: every rank draws the same numbers for its shard (torch
2.13), and on accelerators it gives other weights than one process would. So one rank initialises a dense copy on its
CPU, and sends one tensor at a time; each rank keeps its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.dist.dense_init import dense_values, named_tensors
from ezpz.dist.whole_tensors import Sender, keep_part, place_of
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


def materialize(
    model: nn.Module,
    initialize: Callable[[nn.Module], object] | None = None,
    *,
    build: Callable[[], nn.Module] | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> None:
    """Give the parameters and buffers that are on the meta device memory, and the values of the dense model.

    With the same seed the weights are bit for bit those of one process without sharding, whatever the mesh. The dense
    model is on the CPU of one rank only (of one per pipeline stage), and never on a device. What has memory already is
    left alone.

    All ranks must call it. In this order of preference the values come from: ``build``; ``initialize``; the model's
    ``init_weights()``, or that of its parts; ``reset_parameters()`` of every module, children first, which is the order
    in which constructors draw; and ``reset_buffers()`` for buffers that have no value by then.

    Args:
        model: Built under ``torch.device("meta")``; sharded or not.
        initialize: Initialises a dense copy of the model in place, by ``torch.nn.init`` or any other means.
        build: Makes the dense model; the surest way, also where constructors draw numbers that ``init_weights`` draws
            again.
        device: Where the tensors go; by default the device of the model's mesh, else this rank's.
        seed: Seed of the initialisation, which leaves torch's generator as it is. Without a seed it draws from the
            generator, and ranks whose generators stood alike before stand alike afterwards.

    Raises:
        MachineError: The rank that initialises failed; its own error says why.
        UsageError: Something has no value afterwards, is no parameter or buffer, or both ``initialize`` and ``build``
            are given. With pipeline stages ``build`` must be given: no stage knows what the others draw.
    """
    import torch

    if initialize is not None and build is not None:
        raise UsageError("both initialize and build are given (from materialize); expected one. Leave out initialize.")
    _refuse_strays(model)
    empty = [name for name, tensor in named_tensors(model).items() if tensor.is_meta]
    if not empty:
        return
    sender = Sender()
    if sender.staged and build is None:
        raise UsageError(
            "the model is one pipeline stage of several (from the mesh), and no stage knows what the others draw; "
            "expected build. Pass build=lambda: … , which makes the whole dense model with the same names."
        )
    # Callers may still be inside torch.device("meta"), where every new tensor would be without memory again.
    with torch.device("cpu"):
        place = place_of(model, device)
        if sender.simulated:
            _give_memory(model, place)
            _fill(model, empty)
            return
        values = sender.values(lambda: dense_values(model, empty, initialize, build, seed), place, draws=seed is None)
        _give_memory(model, place)
        tensors = named_tensors(model)
        for name in empty:
            keep_part(tensors[name], sender.send(values.pop(name, None), tensors[name], place))


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
                    f"{f'{name}.' if name else ''}{own} is a tensor on the meta device, but neither parameter nor "
                    f"buffer (from the model); expected one of them. Write self.register_buffer({own!r}, …, "
                    "persistent=False)."
                )
