"""How many ranks each host holds, from what is there and what the user wishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from ezpz.cluster.allocation import Allocation
    from ezpz.cluster.devices import Devices

__all__ = ["Placement", "default_ranks", "place"]


@dataclass(frozen=True)
class Placement:
    """Ranks in blocks: the first host holds the lowest ranks.

    Attributes:
        hosts: Hosts that hold at least one rank, in launch order.
        counts: Ranks per host, as long as ``hosts``, all positive.
        origin: Where the total came from.
        cpus: CPUs that the scheduler granted on the host that has the fewest; None when unknown.
    """

    hosts: tuple[str, ...]
    counts: tuple[int, ...]
    origin: str
    cpus: int | None = None

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return sum(self.counts)

    def encode(self) -> str:
        """Return the counts with repetitions folded, e.g. ``4(x2),3``: small for any number of hosts."""
        words: list[str] = []
        start = 0
        for index in range(1, len(self.counts) + 1):
            if index == len(self.counts) or self.counts[index] != self.counts[start]:
                times = index - start
                words.append(f"{self.counts[start]}(x{times})" if times > 1 else str(self.counts[start]))
                start = index
        return ",".join(words)


def default_ranks(allocation: Allocation, devices: Devices, cores: int) -> tuple[list[int], str]:
    """Return the ranks per host that nobody had to ask for, and why.

    One per device; without devices what the user asked the scheduler for; else half the cores, at least 2, at most 4,
    and not more than the scheduler granted.
    """
    hosts = len(allocation.hosts)
    if devices.count:
        return [devices.count] * hosts, f"one per device ({devices.origin})"
    if allocation.slots and allocation.tasks:
        counts = list(allocation.slots)
        if sum(counts) > allocation.tasks:  # Slurm: more room on the hosts than tasks were asked for
            counts = _fill(counts, allocation.tasks)
        return counts, allocation.origin["tasks"]
    rule = max(2, min(4, cores // 2))
    if allocation.slots:
        return [max(1, min(rule, slots)) for slots in allocation.slots], allocation.origin["slots"]
    return [rule] * hosts, f"half of {cores} cores, at least 2, at most 4"


def place(
    allocation: Allocation,
    devices: Devices,
    cores: int,
    *,
    ranks: int | None = None,
    per_host: int | None = None,
    origin: str = "-n",
) -> Placement:
    """Return the placement that the wishes ask for.

    Args:
        allocation: Hosts and granted slots.
        devices: Accelerators of one host.
        cores: CPU cores of this host.
        ranks: Wish for a total, or None.
        per_host: Wish for ranks per host, or None.
        origin: Where the wish for a total came from.

    Raises:
        UsageError: The wishes do not fit on the hosts; the arithmetic and the nearest possible wish are named.
    """
    hosts = allocation.hosts
    defaults, why = default_ranks(allocation, devices, cores)
    if per_host is not None:
        room = [per_host] * len(hosts)
        why = "--ppn"
    elif ranks is not None:
        # A single host holds what the user asks for; on several hosts the defaults say how a total is spread.
        room = defaults if sum(defaults) >= ranks else [-(-ranks // len(hosts))] * len(hosts)
    else:
        room = defaults
    total = sum(room) if ranks is None else ranks
    if total > sum(room):
        raise UsageError(
            f"cannot place {total} ranks (from {origin}) on {len(hosts)} host{'s'[: len(hosts) > 1]} with {per_host} each "
            f"(from --ppn): that is room for {sum(room)}. Use `-n {sum(room)}` or `--ppn {-(-total // len(hosts))}`."
        )
    counts = _fill(room, total)
    used = sum(count > 0 for count in counts)
    cpus = min(allocation.cpus[:used]) if allocation.cpus else None
    return Placement(hosts[:used], tuple(counts[:used]), why if ranks is None else origin, cpus)


def _fill(room: list[int], total: int) -> list[int]:
    """Fill hosts in order; the last one used may stay partly filled."""
    counts = []
    for space in room:
        counts.append(min(space, total))
        total -= counts[-1]
    return counts
