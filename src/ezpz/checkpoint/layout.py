"""Match ranks of a save with ranks of a load: those that train on the same part of the batches share random numbers.

Ranks of one data-parallel place (those of one tensor-parallel replica) must draw alike; see `ezpz.dist.seeds`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.checkpoint.manifest import Manifest

__all__ = ["Layout", "current_layout", "source_of"]

_DATA_PARALLEL = {"dp", "dp_replicate", "dp_shard"}


class Layout:
    """The ranks of a world: how many, their mesh (empty: all data parallel), this rank and its data-parallel place."""

    def __init__(self, world_size: int, mesh: Mapping[str, int], rank: int) -> None:
        self.world_size, self.mesh, self.rank = world_size, dict(mesh), rank
        self.place = place_of(rank, mesh)

    def is_that_of(self, manifest: Manifest) -> bool:
        """Tell whether a checkpoint was saved by the same ranks: then every one finds its own state."""
        return (self.world_size, _without_ones(self.mesh)) == (manifest.world_size, _without_ones(manifest.mesh))


def current_layout(rank: int, world_size: int, model: Any) -> Layout:
    """Return the layout of this world, by the mesh of the model."""
    from ezpz.checkpoint.several import models_in
    from ezpz.dist.wrapped_models import mesh_of

    mesh = mesh_of(models_in(model)[0])
    if mesh is None or math.prod(mesh.shape) != world_size:
        return Layout(world_size, {}, rank)
    return Layout(world_size, dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)), rank)


def place_of(rank: int, mesh: Mapping[str, int]) -> int:
    """Return a rank's place along data parallel (copies and shards as one); a mesh's last dimension changes fastest."""
    place, stride = 0, 1
    for name, size in reversed(list(mesh.items())):
        rank, coordinate = divmod(rank, size)
        if name in _DATA_PARALLEL:
            place += coordinate * stride
            stride *= size
    return place if mesh else rank


def source_of(layout: Layout, manifest: Manifest) -> int | None:
    """Return the rank whose random numbers this rank takes: its own, else the first of the same data-parallel place."""
    if layout.is_that_of(manifest):
        return layout.rank
    ranks = (rank for rank in range(manifest.world_size) if place_of(rank, manifest.mesh) == layout.place)
    return next(ranks, None)


def _without_ones(mesh: Mapping[str, int]) -> dict[str, int]:
    """Return what a mesh divides; data parallel alone is what there is without a mesh."""
    kept = {name: size for name, size in mesh.items() if size > 1}
    return {} if kept.keys() <= _DATA_PARALLEL else kept
