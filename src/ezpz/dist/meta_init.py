"""Give memory and initial weights to a model that was built on the meta device and sharded since.

Initialising each shard by torch is wrong on a CPU mesh: every rank draws the same numbers for its shard (torch 2.13),
and on accelerators it gives other weights than one process would. So what the model's initialisation does is recorded
without memory, and each rank repeats it for its own part, in blocks that are the same on every mesh
(`ezpz.dist.block_draws`). An initialisation that cannot be cut into parts runs on the CPU of one rank, which sends one
tensor at a time; each rank keeps its part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ezpz.dist.block_draws import draw_part
from ezpz.dist.dense_init import dense_values, named_tensors
from ezpz.dist.job_around import this_rank
from ezpz.dist.recorded_init import record
from ezpz.dist.whole_tensors import Sender, keep_part, part_of, place_of
from ezpz.errors import UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from ezpz.dist.recorded_init import Recording, Write


def materialize(
    model: nn.Module,
    initialize: Callable[[nn.Module], object] | None = None,
    *,
    build: Callable[[], nn.Module] | None = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    draw: bool = True,
) -> None:
    """Give the parameters and buffers that are on the meta device memory and initial values.

    With the same seed the weights are bit for bit those of one process without sharding, whatever the mesh (on devices
    of one kind: a CPU draws other numbers than a GPU). No rank holds more than its part, unless the initialisation does
    anything that cannot be cut into parts, such as an orthogonal matrix: then one line says so, and a dense model is
    made on the CPU of one rank (of one per pipeline stage). What has memory already is left alone.

    All ranks must call it, and all of them run the initialisation, without memory. In this order of preference the
    values come from: ``build``; ``initialize``; the model's ``init_weights()``, or that of its parts;
    ``reset_parameters()`` of every module, children first, which is the order in which constructors draw; and
    ``reset_buffers()`` for buffers that have no value by then.

    Args:
        model: Built under ``torch.device("meta")``; sharded or not.
        initialize: Initialises a whole copy of the model in place, by ``torch.nn.init`` or any other means.
        build: Makes the whole model; the surest way, also where constructors draw numbers that ``init_weights`` draws
            again.
        device: Where the tensors go; by default the device of the model's mesh, else this rank's.
        seed: Seed of the initialisation, which leaves torch's generator as it is. Without one every rank draws a number
            from its generator, and the first rank's is the seed.
        draw: False where a load follows that sets all parameters: they are NaN (0 where they are whole numbers) until
            then. Buffers get their values in any case.

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
            _fill(model, empty, 0.02)  # so that a simulated step is finite
            return
        chosen = sender.seed(seed, place)
        wanted = empty if draw else [name for name in empty if name not in dict(model.named_parameters())]
        recording = record(model, wanted, initialize, build)
        in_parts = sender.agree(recording.digest(), place, usable=not recording.problem)
        values: dict[str, torch.Tensor] = {}
        if not in_parts:
            _say_why(recording)
            values = sender.values(lambda: dense_values(model, wanted, initialize, build, seed=chosen), place)
        _give_memory(model, place)
        tensors = named_tensors(model)
        for name in wanted:
            if in_parts:
                # What was computed comes from one rank: hosts may differ in the last bit of a cosine.
                writes = [
                    each if each.value is None else each._replace(value=sender.same(each.value, place))
                    for each in recording.writes[name]
                ]
                _draw(tensors[name], writes, f"{chosen} {recording.seeds[name]}")
            else:
                keep_part(tensors[name], sender.send(values.pop(name, None), tensors[name], place))
        _fill(model, [name for name in empty if name not in wanted], math.nan)


def _say_why(recording: Recording) -> None:
    if this_rank().rank == 0:
        why = recording.problem or "ranks differ in what it does"
        get_logger(__name__).info(
            f"the model is initialised whole on one rank's CPU, and sent: its initialisation cannot be cut ({why})"
        )


def _draw(tensor: torch.Tensor, writes: list[Write], seed: str) -> None:
    ranges = part_of(tensor)
    if ranges is not None:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        draw_part(local.detach(), tensor.shape, ranges, writes, seed)


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


def _fill(model: nn.Module, names: list[str], number: float) -> None:
    """Write one number everywhere; indices are 0, which is in range."""
    import torch

    tensors = named_tensors(model)
    with torch.no_grad():
        for name in names:
            local = tensors[name].to_local() if hasattr(tensors[name], "to_local") else tensors[name]
            local.fill_(number if local.is_floating_point() else 0)


def _refuse_strays(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for own, value in vars(module).items():
            if getattr(value, "is_meta", False) is True:
                raise UsageError(
                    f"{f'{name}.' if name else ''}{own} is a tensor on the meta device, but neither parameter nor "
                    f"buffer (from the model); expected one of them. Write self.register_buffer({own!r}, …, "
                    "persistent=False)."
                )
