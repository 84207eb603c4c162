"""Small collectives on values rather than tensors, which a script needs beside its training.

All work alone, without a process group, too; then there is one rank. They wait for all ranks, so all ranks must call
them. None belongs into a training step: they cost a round trip each.
"""

from __future__ import annotations

import pickle
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import torch
    from torch.distributed import ProcessGroup

_T = TypeVar("_T")
_OPS = {"sum": "SUM", "mean": "SUM", "avg": "SUM", "min": "MIN", "max": "MAX", "prod": "PRODUCT", "product": "PRODUCT"}
_MPI_NAMES = {"PRODUCT": "PROD"}


def barrier(group: ProcessGroup | None = None, implementation: str | None = None) -> None:
    """Wait until every rank of the group (all, by default) has come here.

    Args:
        group: A process group; all ranks by default.
        implementation: Ignored: older code chooses MPI or torch here, and no MPI is needed.
    """
    del implementation
    dist = _up()
    if dist is not None:
        dist.barrier(group=group)


def broadcast(value: _T, root: int = 0, group: ProcessGroup | None = None) -> _T:
    """Return rank ``root``'s value on every rank.

    Args:
        value: Any object that can be pickled, or a tensor (which arrives on the CPU); ignored on other ranks than
            ``root``.
        root: Rank in the group.
        group: A process group; all ranks by default.
    """
    dist = _up()
    if dist is None or _is_simulated(dist, group):
        return value
    box = [value]
    dist.broadcast_object_list(box, src=_global(dist, group, root), group=group)
    return box[0]


def all_reduce(
    value: Any, op: Any = "sum", group: ProcessGroup | None = None, implementation: str | None = None
) -> Any:
    """Return the values of all ranks, reduced to one.

    Whole numbers stay exact in int64, other numbers are added in float64; a mean is always a float. Nothing is changed
    in place.

    Args:
        value: A number, a numpy array, or a tensor of the same shape on every rank.
        op: ``sum``, ``mean`` (``avg``), ``min``, ``max`` or ``product``; torch's and mpi4py's own mean the same.
        group: A process group; all ranks by default.
        implementation: Ignored: older code chooses MPI or torch here, and no MPI is needed.

    Raises:
        UsageError: ``op`` or the kind of value is not one of these.
    """
    import torch

    del implementation
    op = _op_name(op)
    if op not in _OPS:
        raise UsageError(f"unknown reduction {op!r} (from all_reduce); expected one of {', '.join(_OPS)}.")
    dist = _up()
    numpy_like = type(value).__module__ == "numpy" and hasattr(value, "shape")
    if isinstance(value, torch.Tensor):
        tensor = value.detach().clone()
    elif isinstance(value, (bool, int, float)):
        tensor = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
    elif numpy_like:
        tensor = torch.tensor(value)  # a copy, unlike from_numpy
    else:
        raise UsageError(
            f"cannot reduce a {type(value).__name__} (from all_reduce); expected a number, an array or a tensor. "
            "Use gather_objects for other values."
        )
    size = 1
    if dist is not None and not _is_simulated(dist, group):
        size = dist.get_world_size(group)
        home = tensor.device
        tensor = tensor.to(_device(dist, group, tensor))
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, _OPS[op]), group=group)
        tensor = tensor.to(home)
    # A sum that is divided, because not every backend knows ReduceOp.AVG (xpu's), and none knows it for whole numbers.
    reduced = tensor / size if op in {"mean", "avg"} else tensor
    if isinstance(value, torch.Tensor):
        return reduced
    if numpy_like:
        return reduced.numpy()
    number = reduced.item()
    return bool(number) if isinstance(value, bool) and op in {"min", "max"} else number


def begin_sum(tensor: torch.Tensor) -> Callable[[], tuple[torch.Tensor, int]]:
    """Begin to add up a tensor over all ranks while the caller computes; all ranks must call it.

    Args:
        tensor: Of the same shape on every rank; it belongs to the sum from now on.

    Returns:
        What ends it: returns the sum, where the tensor was, and the number of ranks. On a CPU it waits for the sum;
        elsewhere only the device's queue does.
    """
    dist = _up()
    if dist is None:
        return lambda: (tensor, 1)
    ranks = dist.get_world_size()
    if _is_simulated(dist, None):  # the other ranks hold the same
        return lambda: (tensor * ranks, ranks)
    moved = tensor.to(_device(dist, None, tensor))
    work = dist.all_reduce(moved, async_op=True)

    def finish() -> tuple[torch.Tensor, int]:
        work.wait()
        return moved.to(tensor.device), ranks

    return finish


def _op_name(op: Any) -> str:
    """Return ``sum`` for None, for ``torch.distributed.ReduceOp.SUM`` and for ``MPI.SUM``; other texts as they are."""
    if op is None:
        return "sum"
    if isinstance(op, str):
        return op
    if type(op).__module__.startswith("mpi4py"):
        mpi = sys.modules["mpi4py.MPI"]
        return next((name for name, own in _OPS.items() if op == getattr(mpi, _MPI_NAMES.get(own, own), None)), str(op))
    return str(op).rpartition(".")[2].lower()


def gather_objects(value: _T, root: int | None = None, group: ProcessGroup | None = None) -> list[_T]:
    """Return the values of all ranks in their order.

    Args:
        value: Any object that can be pickled.
        root: Rank in the group that receives the list; every rank by default.
        group: A process group; all ranks by default.

    Returns:
        One entry per rank; empty on other ranks than ``root``.
    """
    dist = _up()
    if dist is None:
        return [value]
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if _is_simulated(dist, group):
        return [value] * size if root in {None, rank} else []
    values: list[Any] = [None] * size
    if root is None:
        dist.all_gather_object(values, value, group=group)
        return values
    dist.gather_object(value, values if rank == root else None, dst=_global(dist, group, root), group=group)
    return values if rank == root else []


def all_ranks_agree(value: object, group: ProcessGroup | None = None) -> bool:
    """Tell, on every rank alike, whether all ranks hold equal values.

    Digests are compared, so that two small numbers travel whatever the value's size. Dictionaries and sets are equal in
    any order; NaN equals NaN; 1, 1.0 and True are three values.

    Args:
        value: Numbers, texts, tensors, arrays, containers and dataclasses of these, or anything that pickles alike when
            it is equal.
        group: A process group; all ranks by default.
    """
    import torch

    dist = _up()
    if dist is None or _is_simulated(dist, group):
        return True
    digest = blake2b(digest_size=8)
    for part in _canonical(value):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    number = int.from_bytes(digest.digest(), "little") >> 2  # int64, and its negative too
    pair = torch.tensor([number, -number])
    pair = pair.to(_device(dist, group, pair))
    dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=group)
    highest, lowest = pair.tolist()
    return bool(highest == -lowest)


def _canonical(value: Any) -> list[bytes]:
    """Return the bytes that stand for a value: equal for equal values on all hosts."""
    import torch

    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        flat = whole.detach().cpu().contiguous()
        shape = str((flat.dtype, tuple(flat.shape))).encode()
        parts = [shape, flat.flatten().view(torch.uint8).numpy().tobytes()]
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        parts = [str((value.dtype, value.shape)).encode(), value.tobytes()]
    elif isinstance(value, dict):
        parts = [b"".join(pair) for pair in sorted((_joined(key), _joined(entry)) for key, entry in value.items())]
    elif isinstance(value, (set, frozenset)):
        parts = sorted(map(_joined, value))
    elif isinstance(value, (list, tuple)):
        parts = list(map(_joined, value))
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        parts = [_joined((field, getattr(value, field))) for field in value.__dataclass_fields__]
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        parts = [repr(value).encode()]
    else:
        parts = [pickle.dumps(value, protocol=4)]
    return [type(value).__qualname__.encode(), *parts]


def _joined(value: object) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in _canonical(value))


def _up() -> Any:
    """Return torch.distributed when there is a process group, else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def _is_simulated(dist: Any, group: ProcessGroup | None) -> bool:
    """Tell whether collectives of this group do nothing: `ezpz simulate` plays one rank of many."""
    return bool(dist.get_backend(group) == "fake")


def _global(dist: Any, group: ProcessGroup | None, rank: int) -> int:
    return rank if group is None else int(dist.get_global_rank(group, rank))


def _device(dist: Any, group: ProcessGroup | None, tensor: Any) -> Any:
    """Return where a tensor must lie for the group: as it is when a backend serves that, else on this rank's device."""
    served = dist.get_backend_config(group)
    if f"{tensor.device.type}:" in served:
        return tensor.device
    from ezpz.dist.device import device as own_device

    return "cpu" if "cpu:" in served else own_device()


def set_timeout(seconds: float) -> bool:
    """Let the collectives of the default group and of the mesh's groups fail after so many seconds; all ranks call it.

    It waits until all ranks have come, so that none still takes the longer time that it was given before. Groups that
    were made for other things, such as writing checkpoints, keep theirs.

    The first step is slow on purpose: kernels are compiled, connections are made, files are read for the first time.
    After it a collective that waits for minutes waits for a rank that is gone, and a shorter time-out says so sooner.

    Returns:
        Whether every backend took it; those that cannot are named in the log.

    Raises:
        UsageError: The time is not positive.
    """
    from datetime import timedelta

    import torch.distributed as dist

    from ezpz.log import get_logger

    if seconds <= 0:
        raise UsageError(f"unusable time-out of {seconds} seconds (from set_timeout); expected a positive number.")
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return True
    from ezpz.dist.device import synchronize

    synchronize()
    barrier()
    refused = {name for group in _groups() for name in _set_timeout(group, timedelta(seconds=seconds))}
    if refused:
        get_logger(__name__).info(
            f"the time-out of collectives stays as it is for {', '.join(sorted(refused))}: no such setting"
        )
    return not refused


def _groups() -> list[ProcessGroup]:
    import torch.distributed as dist

    from ezpz.dist.mesh import get_mesh

    mesh = get_mesh()
    groups = [dist.group.WORLD, *(mesh.get_all_groups() if mesh is not None else [])]
    return list({id(group): group for group in groups}.values())


def _set_timeout(group: Any, timeout: timedelta) -> list[str]:
    """Set the time-out of a group's backends; return the names of those that have none."""
    import torch

    refused = []
    for pair in _backends_of(group):
        device, _, name = pair.partition(":")
        try:
            # torch's own function knows nccl and gloo only, and warns of others.
            group._get_backend(torch.device(device))._set_default_timeout(timeout)  # noqa: SLF001  # no public way
        except (AttributeError, RuntimeError, NotImplementedError):
            refused.append(name)
    return refused


def _backends_of(group: Any) -> list[str]:
    """Return ``["cpu:gloo", "cuda:nccl"]``."""
    import torch.distributed as dist

    return [str(pair) for pair in dist.get_backend_config(group).split(",")]
