"""Make the mesh of ranks that work together for each kind of parallelism.

Ranks are numbered as in a table whose last column changes fastest, so that the ranks of one layer (tp) are neighbours
and share a host, and pipeline stages (pp) lie farthest apart.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist.device import get_torch_device_type
from ezpz.dist.job_around import this_rank
from ezpz.errors import MachineError, UsageError, did_you_mean
from ezpz.ranks import expand_counts, of_this_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


# How many ranks each kind of parallelism gets: arithmetic on whole numbers, without torch.

DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # outermost to innermost
REST = -1


@dataclass(frozen=True)
class Degrees:
    """The size of every dimension of a mesh, outermost to innermost; they multiply to the world.

    Attributes:
        pp: Pipeline stages.
        dp_replicate: Copies of the model, each of which may be sharded.
        dp_shard: Ranks over which one copy's weights are sharded.
        cp: Ranks that share one sequence.
        tp: Ranks that share one layer.
    """

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int

    @property
    def dp(self) -> int:
        """Ranks that see different data."""
        return self.dp_replicate * self.dp_shard

    def by_name(self) -> dict[str, int]:
        """Return all sizes, outermost first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def resolve(
    world_size: int,
    *,
    dp_replicate: int = 1,
    dp_shard: int = REST,
    cp: int = 1,
    tp: int = 1,
    pp: int = 1,
    ranks_per_host: int | Sequence[int] | None = None,
    tp_across_hosts: bool = False,
) -> Degrees:
    """Return degrees that multiply to the world.

    Args:
        world_size: Number of ranks.
        dp_replicate: Copies of the model; this and every other degree may be -1, "the rest", but only one of them.
        dp_shard: Ranks that share one copy's weights.
        cp: Ranks that share one sequence.
        tp: Ranks that share one layer; they are neighbours, and must be on one host.
        pp: Pipeline stages.
        ranks_per_host: Ranks of each host, or one number if all hosts are alike; None means not known, not checked.
        tp_across_hosts: Let tensor parallel cross hosts, where every layer waits for the network.

    Raises:
        UsageError: A degree is no positive whole number, they do not multiply to the world, or tensor parallel does not
            fit inside a host; the nearest legal values are named.
    """
    wanted = {"pp": pp, "dp_replicate": dp_replicate, "dp_shard": dp_shard, "cp": cp, "tp": tp}
    _check_numbers({"world_size": world_size}, rest=False)
    _check_numbers(wanted, rest=True)
    free = [name for name, value in wanted.items() if value == REST]
    if len(free) > 1:
        raise UsageError(
            f"{' and '.join(f'{name}=-1' for name in free)}: only one degree can be the rest (from the degrees of the "
            f"mesh); expected one -1 at most. Give {' or '.join(free)} a number."
        )
    fixed = {name: value for name, value in wanted.items() if value != REST}
    product = math.prod(fixed.values())
    if world_size % product or (not free and product != world_size):
        raise UsageError(_does_not_fit(world_size, fixed, free))
    degrees = Degrees(**{name: world_size // product if value == REST else value for name, value in wanted.items()})
    if not tp_across_hosts:
        _check_host(degrees, wanted, world_size, _counts(ranks_per_host, world_size))
    return degrees


def _check_numbers(values: dict[str, int], *, rest: bool) -> None:
    for name, value in values.items():
        # True is an int to Python, and a mistake here.
        if type(value) is not int or not (value > 0 or (rest and value == REST)):
            expected = "a whole number from 1 on" + (", or -1 for the rest of the ranks" if rest else "")
            raise UsageError(
                f"unusable {name}={value!r} (from the degrees of the mesh); expected {expected}. Give {name}=1 to do "
                "without."
            )


def _does_not_fit(world_size: int, fixed: dict[str, int], free: list[str]) -> str:
    """Return the message for degrees whose product does not divide the world, or is not the world."""
    used = {name: value for name, value in fixed.items() if value > 1} or {"dp_shard": fixed.get("dp_shard", 1)}
    shown = " x ".join(f"{name}={value}" for name, value in used.items())
    product = math.prod(used.values())
    if len(used) > 1:
        shown += f" = {product}"
    # A change of one degree that makes all of them legal: which values can it take beside the others?
    legal = {name: _beside(world_size, product // value, exact=not free) for name, value in used.items()}
    if not free:
        legal.setdefault("dp_shard", _beside(world_size, product, exact=True))
    legal = {name: values for name, values in legal.items() if values}
    problem = f"{shown} does not {'divide' if free else 'make'} {_ranks(world_size)} (from the degrees of the mesh)"
    if not legal:
        return (
            f"{problem}; expected degrees that multiply to {world_size}. Leave all but one of them at 1, and give "
            f"that one {_alternatives(_divisors(world_size))}."
        )
    if len(legal) == 1 and len(used) == 1 and free:
        return f"{problem}; expected {_alternatives(next(iter(legal.values())))}: {_nearest(legal, used)} nearest."
    return f"{problem}; expected degrees that multiply to {world_size}: {_nearest(legal, used)} nearest."


def _check_host(degrees: Degrees, wanted: dict[str, int], world_size: int, counts: set[int]) -> None:
    inside = math.gcd(*counts)
    if not counts or inside % degrees.tp == 0:
        return
    # With the others as they are the world must still come out; dp_shard is what gives way in a suggestion.
    others = math.prod(value for name, value in wanted.items() if value != REST and name not in {"tp", "dp_shard"})
    legal = [value for value in _divisors(inside) if (world_size // others) % value == 0]
    hosts = (
        f"a host of {_ranks(inside)}" if len(counts) == 1 else f"hosts of {_alternatives(sorted(counts), 'and')} ranks"
    )
    rest = f" (tp=-1, the rest of {_ranks(world_size)})" if wanted["tp"] == REST else ""
    raise UsageError(
        f"tp={degrees.tp}{rest} does not fit inside {hosts}; expected {_alternatives(legal)}: "
        f"{_nearest({'tp': legal}, {'tp': degrees.tp})} nearest. Give that, or tp_across_hosts=True to let every "
        "layer wait for the network between hosts."
    )


def _counts(ranks_per_host: int | Sequence[int] | None, world_size: int) -> set[int]:
    if ranks_per_host is None:
        return set()
    counts = [ranks_per_host] if isinstance(ranks_per_host, int) else list(ranks_per_host)
    for count in counts:
        _check_numbers({"ranks_per_host": count}, rest=False)
    if not isinstance(ranks_per_host, int) and sum(counts) != world_size:
        raise UsageError(
            f"the hosts have {sum(counts)} ranks together (from ranks_per_host={counts}); expected {world_size}, the "
            "world. Give one count per host."
        )
    # All ranks on one host: tensor parallel cannot leave it, however few of its ranks this world has.
    return {world_size} if len(counts) == 1 and counts[0] >= world_size else set(counts)


def _beside(world_size: int, others: int, *, exact: bool) -> list[int]:
    if world_size % others:
        return []
    left = world_size // others
    return [left] if exact else _divisors(left)


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def _nearest(legal: dict[str, list[int]], given: dict[str, int]) -> str:
    """Return ``tp=2 or tp=4 is``: the legal values with the least distance from what was given."""
    changes = [(abs(value - given.get(name, 1)), name, value) for name, values in legal.items() for value in values]
    least = min(changes)[0]
    return f"{' or '.join(f'{name}={value}' for distance, name, value in changes if distance == least)} is"


def _alternatives(values: Sequence[int], word: str = "or") -> str:
    """Return ``1, 2, 4 or 8``, with the middle left out where there are many."""
    texts = [str(value) for value in values]
    if len(texts) > 10:
        texts = [*texts[:5], "…", *texts[-4:]]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"


def _ranks(number: int) -> str:
    return f"{number} rank{'' if number == 1 else 's'}"


# Making process groups on a backend that cannot split the one that is there.


@contextmanager
def new_groups(*, split: bool = True) -> Iterator[Callable[[list[Any]], None]]:
    """Let torch make process groups inside in a way that the backend can; all ranks must enter together.

    A process group that is bound to a device (device_id) makes DeviceMesh split it, which xccl cannot: torch raises
    "its backend does not support splitting" (torch 2.13, pytorch#186548). Without the binding torch makes the groups
    anew, which works everywhere. The binding itself must stay, on the new groups too: without it a barrier and the
    gathers of FSDP2 may take another tile than this rank's.

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


_DP = ("dp_replicate", "dp_shard")
_INSIDE_STAGE = DIMENSIONS[1:]


class _Made(NamedTuple):
    mesh: Any
    degrees: Degrees
    device_type: str
    world: Any  # the process group in which the mesh was made; another one means that the mesh is of the past


_made: list[_Made] = []  # of the present process group, the latest last


def init_mesh(
    dp_replicate: int = 1,
    dp_shard: int = -1,
    cp: int = 1,
    tp: int = 1,
    pp: int = 1,
    *,
    device_type: str | None = None,
    tp_across_hosts: bool = False,
    **unknown: object,
) -> DeviceMesh:
    """Arrange all ranks in a mesh, and remember it for `get_mesh`.

    All ranks must call it with the same degrees. Asked again for the same degrees it returns the mesh that is there.

    Args:
        dp_replicate: Copies of the model. One degree may be -1, "the rest of the ranks"; by default that is
            ``dp_shard``.
        dp_shard: Ranks over which the weights of one copy are sharded.
        cp: Ranks that share one sequence.
        tp: Ranks that share one layer.
        pp: Pipeline stages.
        device_type: ``cuda``, ``xpu``, ``cpu``, …; by default the device's own, and ``cpu`` where the process group
            moves only CPU tensors.
        tp_across_hosts: Let tensor parallel cross hosts.
        **unknown: Refused, with the names that there are.

    Returns:
        A mesh with the dimensions of `DIMENSIONS` in that order, those of size 1 left out except ``dp_shard``.

    Raises:
        MachineError: There is no process group yet.
        UsageError: The degrees do not multiply to the world, tensor parallel does not fit inside a host, or there is
            no degree of a name.
    """
    from torch.distributed.device_mesh import init_device_mesh

    _refuse_unknown(unknown)
    world = _world("init_mesh")
    sizes = {"dp_replicate": dp_replicate, "dp_shard": dp_shard, "cp": cp, "tp": tp, "pp": pp}
    degrees = check_degrees(world.size(), sizes, tp_across_hosts=tp_across_hosts)
    kind = device_type or _device_type()
    _made[:] = [made for made in _made if made.world is world]
    for made in _made:
        if (made.degrees, made.device_type) == (degrees, kind):
            _made.remove(made)
            _made.append(made)
            return made.mesh
    kept = {name: size for name, size in degrees.by_name().items() if size > 1 or name == "dp_shard"}
    with new_groups() as keep_device:
        mesh = init_device_mesh(kind, tuple(kept.values()), mesh_dim_names=tuple(kept))
        keep_device(mesh.get_all_groups())
    _made.append(_Made(mesh, degrees, kind, world))
    return mesh


# What others call an axis -> what to type here.
_OTHER_AXES = {
    "dp": "dp_shard= for ranks that share the weights of one copy, or dp_replicate= for copies",
    "fsdp": "dp_shard=",
    "sp": "cp= for ranks that share one sequence; sequence parallel comes with llama_plan() and tp=",
    "ep": "the others alone: experts are not spread over ranks here",
}


def _refuse_unknown(unknown: Mapping[str, object]) -> None:
    for name, value in unknown.items():
        cure = f" Type {_OTHER_AXES[name]}." if name in _OTHER_AXES else did_you_mean(name, DIMENSIONS)
        raise UsageError(
            f"unknown degree {name}={value!r} (from init_mesh); expected dp_replicate, dp_shard, cp, tp or pp.{cure}"
        )


def check_degrees(world_size: int, sizes: Mapping[str, int], *, tp_across_hosts: bool = False) -> Degrees:
    """Return the degrees of a mesh on the hosts of this job; makes nothing and needs no process group.

    Raises:
        UsageError: They do not multiply to the world, or tensor parallel does not fit inside a host.
    """
    per_host = _ranks_per_host(world_size)
    return resolve(world_size, ranks_per_host=per_host, tp_across_hosts=tp_across_hosts, **sizes)


def get_mesh() -> DeviceMesh | None:
    """Return the mesh of the last `init_mesh` in the present process group; None before."""
    import torch.distributed as dist

    if not _made or not dist.is_initialized() or _made[-1].world is not dist.group.WORLD:
        return None
    return _made[-1].mesh


def degree(mesh: DeviceMesh | None, name: str) -> int:
    """Return the size of a dimension, or of ``dp``: 1 for what is left out.

    Without a mesh all ranks are data parallel.
    """
    if mesh is None:
        return _world_size() if name in {"dp", "dp_shard"} else _check_name(name, 1)
    return math.prod(mesh.size(place) for place in _places(mesh, name))


def coordinate(mesh: DeviceMesh | None, name: str) -> int:
    """Return this rank's place along a dimension, or along ``dp``, from 0: 0 for what is left out.

    Raises:
        MachineError: This rank is not in the mesh.
    """
    if mesh is None:
        return _world_rank() if name in {"dp", "dp_shard"} else _check_name(name, 0)
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        raise MachineError(
            f"rank {_world_rank()} has no place in {mesh}; expected a mesh of all ranks. Make it with "
            "ezpz.init_mesh(…)."
        )
    place_of_rank = 0
    for place in _places(mesh, name):
        place_of_rank = place_of_rank * mesh.size(place) + int(coordinates[place])
    return place_of_rank


def axis(mesh: DeviceMesh, name: str) -> DeviceMesh | None:
    """Return the 1-D mesh of a dimension, or of ``dp``: copies and shards as one; None for what is left out.

    All ranks must ask for ``dp`` alike, because the first question makes its groups where there are copies and shards.
    """
    there = _names(mesh)
    names = tuple(there[place] for place in _places(mesh, name))
    return _joined(mesh, names, name) if names else None


def fsdp_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh for ``fully_shard``: 1-D, or 2-D (copies, shards) for HSDP.

    The ranks of one sequence (cp) hold the same weights, so that they share in the sharding. All ranks must ask alike.
    """
    cut = _present(mesh, ("dp", "dp_shard", "cp"))
    if not cut:
        raise UsageError(
            f"this mesh has no ranks to cut weights over: its dimensions are {', '.join(_names(mesh))} (from mesh); "
            "expected dp_shard among them. Make it with `ezpz.init_mesh(…)`, which adds it, or use strategy='none'."
        )
    shard = _joined(mesh, cut, "fsdp")
    if "dp_replicate" not in _names(mesh):
        return shard
    names = _names(shard)
    if names == ("dp_shard",):
        return mesh["dp_replicate", "dp_shard"]
    # Torch from 2.11 on joins meshes and warns when flattened dimensions are picked by name; older ones do only that.
    join = getattr(type(mesh), "_concatenate", None)
    return join([mesh["dp_replicate"], shard]) if join else mesh["dp_replicate", names[0]]


def check_names(mesh: DeviceMesh) -> None:
    """Refuse a mesh of torch's own in which nothing says which ranks see different data.

    Raises:
        UsageError: A dimension has no name, or one that is not known here.
    """
    strange = [repr(name) for name in _names(mesh) if name not in {*DIMENSIONS, "dp"}]
    if not _names(mesh) or strange:
        what = f"a dimension {strange[0]}" if strange else "dimensions without names"
        raise UsageError(
            f"the mesh has {what} (from mesh={mesh}), and data would be cut wrongly; expected dp or "
            f"{', '.join(DIMENSIONS)}. Name them with init_device_mesh(…, mesh_dim_names=('dp_replicate', 'dp_shard')) "
            "or so, or take ezpz.init_mesh(…)."
        )


def stage_mesh(mesh: DeviceMesh) -> DeviceMesh | None:
    """Return the 1-D mesh of the ranks that hold the same pipeline stage; None when there are no stages."""
    if "pp" not in _names(mesh):
        return None
    return _joined(mesh, _present(mesh, _INSIDE_STAGE), "stage")


def _joined(mesh: DeviceMesh, names: tuple[str, ...], name: str) -> DeviceMesh:
    """Return several dimensions as one; torch keeps it in the mesh under its name, so that groups are made once."""
    if len(names) == 1:
        return mesh[names[0]]
    with new_groups() as keep_device:
        joined = mesh[names]._flatten(name)  # noqa: SLF001  # torch documents it under this name
        keep_device(joined.get_all_groups())
    return joined


def _present(mesh: DeviceMesh, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in _names(mesh))


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or ())


def _places(mesh: DeviceMesh, name: str) -> list[int]:
    _check_name(name, 0)
    there = _names(mesh)
    if name in there:  # a mesh of the user's own may call its only dimension dp
        return [there.index(name)]
    return [there.index(part) for part in _DP if part in there] if name == "dp" else []


def _check_name(name: str, value: int) -> int:
    if name not in {*DIMENSIONS, "dp"}:
        raise UsageError(
            f"a mesh has no dimension {name!r}; expected dp or one of {', '.join(DIMENSIONS)}. Ask for `dp` if "
            "batches are to be distinguished."
        )
    return value


def _world(who: str) -> ProcessGroup:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise MachineError(
            f"{who} needs a process group, and this process has none (from torch.distributed); expected one of all "
            "ranks. Call `ezpz.setup_torch()` first."
        )
    return dist.group.WORLD


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else this_rank().world_size


def _world_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else this_rank().rank


def _ranks_per_host(world_size: int) -> int | list[int] | None:
    """Return the ranks of each host, as the launch planned them or as this rank's launcher says; None if neither
    does.
    """
    if "EZPZ_PLACEMENT" in os.environ and of_this_launch(os.environ):
        counts = list(expand_counts(os.environ["EZPZ_PLACEMENT"]))
        if sum(counts) == world_size:
            return counts
    ranks = this_rank()
    # A group of another size was made by hand, or plays a larger world: the launcher's hosts are not its hosts.
    return ranks.local_world_size if ranks.world_size == world_size else None


def _device_type() -> str:
    """Return the device's type if the process group has a backend of its own for it, else ``cpu``.

    gloo names cuda and mps among its devices, but moves their tensors through the host or not at all.
    """
    import torch.distributed as dist

    kind = get_torch_device_type()
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    backends = {device: backend for device, _, backend in pairs}
    return kind if backends.get(kind, "gloo") not in {"gloo", "mpi"} else "cpu"
