"""Clip gradients on every mesh, and with whatever mixture of tensors the model holds.

torch's own stacks the norms of all gradients, which fails when their meshes differ ("All operands in aten.stack.default
must have the same mesh", pytorch#180346). Here every rank sums what it holds, each sum is added up along the mesh
dimensions over which its tensors are sharded, and what is replicated is counted once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ezpz.dist.wrapped_models import mesh_in_use
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.distributed.device_mesh import DeviceMesh

_SMALL = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by the norm plus this


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    mesh: DeviceMesh | None = None,
    scale: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Scale all gradients down so that their total norm is at most ``max_norm``; as torch's function of this name.

    All ranks that share the parameters must call it with the same ones. One all-reduce per process group over which
    anything is sharded, and nothing waits for the device.

    Args:
        parameters: Parameters, sharded or not, on one or several meshes; those without a gradient count as zero.
        max_norm: The largest norm to keep; ``inf`` only measures.
        norm_type: 2 for the Euclidean norm, any p > 0, or ``inf`` for the largest absolute value.
        mesh: Its pipeline stages (``pp``) hold one model together; by default that of the model wrapped last.
        scale: What all gradients are multiplied by before that, in the same pass; above 0, equal on all ranks.

    Returns:
        The total norm before clipping: a plain 0-d tensor, float32 (float64 if a parameter is), equal on all ranks. It
        may be NaN or infinite; then the gradients are not finite either.

    Raises:
        UsageError: ``max_norm`` is negative or NaN, or ``norm_type`` is not above 0.
    """
    if not max_norm >= 0:
        raise UsageError(
            f"unusable max_norm={max_norm} (from clip_grad_norm_); expected 0 or more. Give inf to measure only."
        )
    if not norm_type > 0:
        raise UsageError(f"unusable norm_type={norm_type} (from clip_grad_norm_); expected p > 0. Give 2, or inf.")
    known = mesh if mesh is not None else mesh_in_use()
    return clip_on(known, parameters, max_norm, norm_type, scale=scale)


def clip_on(
    mesh: DeviceMesh | None,
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    scale: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Do what `clip_grad_norm_` does, on a mesh that is known: None where all ranks are data parallel."""
    import torch

    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    unique = list({id(parameter): parameter for parameter in listed}.values())  # a tied weight has one gradient
    with torch.no_grad():
        sums = _Sums(float(norm_type), unique, mesh)
        locals_: list[torch.Tensor] = []
        whole = sums.held[frozenset()]  # of tensors that are no part of anything: nearly all, and in every step
        for parameter in unique:
            gradient = parameter.grad
            if not hasattr(parameter, "placements") and not hasattr(gradient, "placements"):
                if gradient is not None and gradient.numel():
                    locals_.append(gradient)
                    whole.append(gradient)
                continue
            sums.expect(parameter)
            if gradient is not None:
                locals_.append(_local(gradient))
                sums.add(gradient)
        total = sums.total(_stages(mesh))
        scaled = not (isinstance(scale, float) and scale == 1.0)
        if scaled:
            total = total * scale
        if max_norm != math.inf:
            factor = torch.clamp(max_norm / (total + _SMALL), max=1.0)
            _scale(locals_, factor * scale if scaled else factor)
        elif scaled:
            _scale(locals_, scale)
    return total


def scale_gradients_(parameters: Iterable[torch.Tensor], scale: float | torch.Tensor) -> None:
    """Multiply all gradients, whatever their placement; linear, so that those still to be added up fit too."""
    import torch

    with torch.no_grad():
        _scale([_local(parameter.grad) for parameter in parameters if parameter.grad is not None], scale)


class _Sums:
    """Sums of |g|^p, or the largest |g|, kept apart by the process groups over which they must still be added up."""

    def __init__(self, norm_type: float, parameters: list[torch.Tensor], mesh: DeviceMesh | None) -> None:
        import torch

        self.norm_type = norm_type
        self.device = _home(parameters, mesh)
        # Of the parameters, not of the gradients: all ranks must add in the same precision.
        double = any(parameter.dtype in {torch.float64, torch.complex128} for parameter in parameters)
        self.dtype = torch.float64 if double else torch.float32
        self.groups: dict[str, Any] = {}  # in the order of the parameters, which is the same on all ranks
        self.held: dict[frozenset[str], list[torch.Tensor]] = {frozenset(): []}

    def expect(self, tensor: torch.Tensor) -> frozenset[str]:
        """Make room for a tensor of this sharding, so that ranks without a gradient take part in the same
        collectives.
        """
        names = set()
        for place, placement in enumerate(getattr(tensor, "placements", ())):
            shared = tensor.device_mesh
            if not placement.is_replicate() and not placement.is_partial() and shared.size(place) > 1:
                group = shared.get_group(place)
                names.add(group.group_name)
                self.groups[group.group_name] = group
        self.held.setdefault(frozenset(names), [])
        return frozenset(names)

    def add(self, gradient: torch.Tensor) -> None:
        """Count a gradient; one that is still a sum over ranks (partial) is added up first."""
        whole = _summed(gradient)
        local = _local(whole)
        if local.numel():  # a shard may be empty
            self.held[self.expect(whole)].append(local)

    def total(self, stages: Any) -> torch.Tensor:
        """Return the norm over all ranks, with one all-reduce per process group."""
        import torch

        values = {names: self._measure(tensors) for names, tensors in self.held.items()}
        for name, group in self.groups.items():
            waiting = [names for names in values if name in names]
            if not waiting:
                continue
            reduced = self._all_reduce(torch.stack([values.pop(names) for names in waiting]), group)
            for names, value in zip(waiting, reduced.unbind(), strict=True):
                left = names - {name}
                values[left] = self._both(values[left], value) if left in values else value
        (total,) = values.values()
        if stages is not None:
            total = self._all_reduce(total.reshape(1), stages)[0]
        return total if self.norm_type == math.inf else total ** (1.0 / self.norm_type)

    def _measure(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        import torch

        if not tensors:
            return torch.zeros((), dtype=self.dtype, device=self.device)
        norms: list[torch.Tensor] = []
        for alike in _by_device(tensors):
            # Low precisions are accumulated in float32: a norm of bfloat16 would have three digits.
            precision = torch.float32 if alike[0].dtype in {torch.bfloat16, torch.float16} else None
            several = torch._foreach_norm(alike, self.norm_type, dtype=precision)  # noqa: SLF001  # as torch does
            norms += [norm.to(self.device, self.dtype) for norm in several]
        stacked = torch.stack(norms)
        return stacked.max() if self.norm_type == math.inf else (stacked**self.norm_type).sum()

    def _both(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.maximum(one, other) if self.norm_type == math.inf else one + other

    def _all_reduce(self, values: torch.Tensor, group: Any) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        if self.norm_type != math.inf:
            dist.all_reduce(values, dist.ReduceOp.SUM, group=group)
            return values
        # Backends compare, and a comparison drops NaN: it travels beside the values.
        both = torch.cat([values.nan_to_num(nan=0.0, posinf=math.inf), values.isnan().to(values.dtype)])
        dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
        largest, missing = both.chunk(2)
        return torch.where(missing > 0, torch.full_like(largest, math.nan), largest)


def _summed(gradient: torch.Tensor) -> torch.Tensor:
    placements = getattr(gradient, "placements", ())
    if not any(placement.is_partial() for placement in placements):
        return gradient
    from torch.distributed.tensor import Replicate

    return gradient.redistribute(placements=[Replicate() if place.is_partial() else place for place in placements])


def _scale(tensors: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    # Always multiplied, also by 1: to look at the factor would wait for the device. A number stays one: as a tensor it
    # would be copied from pageable memory, for which the host waits until all work queued before it is done.
    import torch

    for alike in _by_device(tensors):
        there = factor.to(alike[0].device, non_blocking=True) if isinstance(factor, torch.Tensor) else factor
        torch._foreach_mul_(alike, there)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _by_device(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    groups: dict[tuple[Any, Any], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())


def _home(parameters: list[torch.Tensor], mesh: DeviceMesh | None) -> torch.device:
    """Return the device of the sums: that of the parameters, and the mesh's if this rank has none."""
    import torch

    if parameters:
        return _local(parameters[0].grad if parameters[0].grad is not None else parameters[0]).device
    return torch.device(mesh.device_type) if mesh is not None else torch.device("cpu")


def _stages(mesh: DeviceMesh | None) -> Any:
    return mesh.get_group("pp") if mesh is not None and "pp" in (mesh.mesh_dim_names or ()) else None
