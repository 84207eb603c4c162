"""How many ranks each kind of parallelism gets: arithmetic on whole numbers, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DIMENSIONS", "Degrees", "resolve"]

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
    wished = {"pp": pp, "dp_replicate": dp_replicate, "dp_shard": dp_shard, "cp": cp, "tp": tp}
    _check_numbers({"world_size": world_size}, rest=False)
    _check_numbers(wished, rest=True)
    free = [name for name, value in wished.items() if value == REST]
    if len(free) > 1:
        raise UsageError(
            f"{' and '.join(f'{name}=-1' for name in free)}: only one degree can be the rest (from the degrees of the mesh); "
            f"expected one -1 at most. Give {' or '.join(free)} a number."
        )
    fixed = {name: value for name, value in wished.items() if value != REST}
    product = math.prod(fixed.values())
    if world_size % product or (not free and product != world_size):
        raise UsageError(_does_not_fit(world_size, fixed, free))
    degrees = Degrees(**{name: world_size // product if value == REST else value for name, value in wished.items()})
    if not tp_across_hosts:
        _check_host(degrees, wished, world_size, _counts(ranks_per_host, world_size))
    return degrees


def _check_numbers(values: dict[str, int], *, rest: bool) -> None:
    for name, value in values.items():
        # True is an int to Python, and a mistake here.
        if type(value) is not int or not (value > 0 or (rest and value == REST)):
            expected = "a whole number from 1 on" + (", or -1 for the rest of the ranks" if rest else "")
            raise UsageError(
                f"unusable {name}={value!r} (from the degrees of the mesh); expected {expected}. Give {name}=1 to do without."
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
            f"{problem}; expected degrees that multiply to {world_size}. Leave all but one of them at 1, and give that one "
            f"{_alternatives(_divisors(world_size))}."
        )
    if len(legal) == 1 and len(used) == 1 and free:
        return f"{problem}; expected {_alternatives(next(iter(legal.values())))}: {_nearest(legal, used)} nearest."
    return f"{problem}; expected degrees that multiply to {world_size}: {_nearest(legal, used)} nearest."


def _check_host(degrees: Degrees, wished: dict[str, int], world_size: int, counts: set[int]) -> None:
    inside = math.gcd(*counts)
    if not counts or inside % degrees.tp == 0:
        return
    # With the others as they are the world must still come out; dp_shard is what gives way in a suggestion.
    others = math.prod(value for name, value in wished.items() if value != REST and name not in {"tp", "dp_shard"})
    legal = [value for value in _divisors(inside) if (world_size // others) % value == 0]
    hosts = (
        f"a host of {_ranks(inside)}" if len(counts) == 1 else f"hosts of {_alternatives(sorted(counts), 'and')} ranks"
    )
    rest = f" (tp=-1, the rest of {_ranks(world_size)})" if wished["tp"] == REST else ""
    raise UsageError(
        f"tp={degrees.tp}{rest} does not fit inside {hosts}; expected {_alternatives(legal)}: "
        f"{_nearest({'tp': legal}, {'tp': degrees.tp})} nearest. Give that, or tp_across_hosts=True to let every layer wait "
        "for the network between hosts."
    )


def _counts(ranks_per_host: int | Sequence[int] | None, world_size: int) -> set[int]:
    if ranks_per_host is None:
        return set()
    counts = [ranks_per_host] if isinstance(ranks_per_host, int) else list(ranks_per_host)
    for count in counts:
        _check_numbers({"ranks_per_host": count}, rest=False)
    if not isinstance(ranks_per_host, int) and sum(counts) != world_size:
        raise UsageError(
            f"the hosts have {sum(counts)} ranks together (from ranks_per_host={counts}); expected {world_size}, the world. "
            "Give one count per host."
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
