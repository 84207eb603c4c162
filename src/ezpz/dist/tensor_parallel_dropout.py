"""Let the ranks of a tensor-parallel group drop other features where they hold other features, and the same elsewhere.

    whole   -> colwise -> cut: each rank has its own features, and draws its own masks -> rowwise ->   whole

Between the styles of torch's tensor parallelism activations are plain tensors, of which torch's own bookkeeping (the
random tracker of DTensor, which there is for accelerators only) knows nothing: all ranks would drop the same places of
their different features. Megatron keeps a second generator for cut regions, whose state belongs into every checkpoint.
Here a region's generator follows from the state in which it is entered and the rank, so that nothing must be kept:
recomputed and resumed regions draw the same masks again. Under sequence parallelism ranks hold other tokens wherever
a model drops, so that the whole forward is one such region.
"""

from __future__ import annotations

import inspect
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def drop_apart(model: nn.Module, mesh: DeviceMesh, steps: Iterable[tuple[nn.Module, Any]]) -> None:
    """Give a model's cut regions their own random numbers, while it trains.

    Nothing is done for a model whose modules have no dropout: one of torch's modules, or a number whose name has the
    word "drop", between 0 and 1.

    Args:
        model: The model, whose plan is being applied.
        mesh: Of the ranks that share each layer, 1-D.
        steps: Modules of the plan, and their styles.
    """
    generator = _generator(mesh)
    if generator is None or not any(map(_drops, model.modules())):
        return
    _track_without_a_sync(mesh)
    region = _Region(generator, mesh.get_local_rank())

    def enter(module: nn.Module, *_: Any) -> None:
        if module.training:
            region.enter()

    def leave(*_: Any) -> None:
        region.leave()

    pairs = list(steps)
    model.register_forward_pre_hook(leave)  # of a forward that ended early
    if any(_is_cut(style, "output_layouts", "RowwiseParallel") for _, style in pairs):
        model.register_forward_pre_hook(enter)
    else:
        for module, style in pairs:
            if _is_cut(style, "output_layouts", "ColwiseParallel"):
                module.register_forward_hook(enter)
            elif _is_cut(style, "input_layouts", "RowwiseParallel"):
                module.register_forward_pre_hook(leave)
    model.register_forward_hook(leave)


def _track_without_a_sync(mesh: DeviceMesh) -> None:
    """Make the tracker by which torch draws for DTensors on accelerators.

    The first operation that draws for one would make it too, and give all ranks of the world the first one's state.
    """
    from torch.distributed.tensor import _random

    tracker = getattr(_random, "OffsetBasedRNGTracker", None)
    if mesh.device_type == "cpu" or tracker is None or getattr(_random, "_rng_tracker", tracker) is not None:
        return
    if "run_state_sync" in inspect.signature(tracker.__init__).parameters:
        _random._rng_tracker = tracker(mesh, run_state_sync=False)  # noqa: SLF001  # torch has no public way


class _Region:
    """A part of the forward in which this rank's generator is its own."""

    def __init__(self, generator: torch.Generator, rank: int) -> None:
        self._generator, self._rank = generator, rank
        self._own = 0  # the seed of the region that is open
        self._outside: Any = None  # the state behind it

    def enter(self) -> None:
        """Seed the generator for this rank, unless that is done."""
        import torch

        if self._is_inside():
            return
        generator = self._generator
        # All ranks draw it, so that the stream outside goes on alike, and another region is another one.
        word = torch.randint(2**62, (), device=generator.device, generator=generator)
        self._outside = generator.get_state()
        # An accelerator's state is short, and lies on the host: to read the number would wait for the device.
        known: Any = word.item() if generator.device.type == "cpu" else self._outside.tolist()
        digest = blake2b(f"ezpz cut region {known} {self._rank}".encode(), digest_size=8).digest()
        self._own = int.from_bytes(digest, "little") >> 1
        generator.manual_seed(self._own)

    def leave(self) -> None:
        """Go back to the stream outside, if this is a region."""
        if self._is_inside():
            self._generator.set_state(self._outside)
        self._outside = None

    def _is_inside(self) -> bool:
        """Tell whether the region is open.

        A recomputation in backward may stop in the middle of a region, and torch then puts its own state back; so the
        generator is asked, and no flag.
        """
        return self._outside is not None and self._generator.initial_seed() == self._own


def _generator(mesh: DeviceMesh) -> Any:
    """Return the generator that dropout on this rank's device draws from; None where it cannot be known."""
    import torch

    from ezpz.dist.device import device as own_device

    if mesh.device_type == "cpu":
        return torch.default_generator
    there = getattr(getattr(torch, mesh.device_type, None), "default_generators", ())
    index = own_device().index or 0
    return there[index] if index < len(there) else None


def _drops(module: nn.Module) -> bool:
    from torch.nn.modules.dropout import _DropoutNd

    if isinstance(module, _DropoutNd):
        return bool(module.p)
    named = ((name, value) for name, value in vars(module).items() if "drop" in name.lower())
    return any(isinstance(value, float) and 0.0 < value < 1.0 for _, value in named)


def _is_cut(style: Any, layouts: str, kind: str) -> bool:
    """Tell whether a style of this kind has plain tensors, cut over the ranks, at its input or output."""
    from torch.distributed.tensor import Shard, parallel

    if not isinstance(style, getattr(parallel, kind)) or not getattr(style, "use_local_output", True):
        return False
    return any(isinstance(placement, Shard) for placement in getattr(style, layouts))
