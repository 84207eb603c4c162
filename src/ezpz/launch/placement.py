"""Place ranks on hosts, as many as there is room for and as the user asked.

A host holds at most as many ranks as

1. it has devices, where it has any: the scheduler's slots do not count then, because ``salloc -N 2 --gres=gpu:4`` and
   ``qsub -l select=2:ngpus=4`` grant 1 slot per host, or as many as CPUs, and mean 4 ranks;
2. without devices, the scheduler granted slots, where it granted any;
3. the user's own host file names slots, where it names any, besides 1 and 2.

More needs --oversubscribe. Where none of these names a number, there is no limit.
"""

from __future__ import annotations

from itertools import groupby

from ezpz.cluster.devices import devices_on
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import UsageError
from ezpz.fields import Record, replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.cluster.allocation import Allocation
    from ezpz.cluster.devices import Devices

_MOST_BY_DEFAULT = 4  # ranks on a host that has no devices, without a request: slots may be all its CPUs


class Placement(Record):
    """Ranks in blocks: the first host holds the lowest ranks.

    Attributes:
        hosts: Hosts that hold at least one rank, in launch order.
        counts: Ranks per host, as long as ``hosts``, all positive.
        origin: Where the total came from.
        cpus: CPUs that the scheduler granted on the host that has the fewest; None when unknown.
        oversubscribed: Whether some host holds more ranks than its devices, or than the slots that were granted on it
            or, where none were granted, than it has cores: launchers that count need an option for it.
        is_ordered: Whether the hosts are in the scheduler's own order, in which some launchers sort them.
        component: Number of the component of a heterogeneous job that holds all hosts; None in other jobs, and where
            several do.
        parts: The placement in each of several components, in the order of ranks; empty otherwise.
    """

    hosts: tuple[str, ...]
    counts: tuple[int, ...]
    origin: str
    cpus: int | None = None
    oversubscribed: bool = False
    is_ordered: bool = True
    component: int | None = None
    parts: tuple[Placement, ...] = ()

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return sum(self.counts)

    def of_agents(self) -> Placement:
        """Return one process per host in place of its ranks, which that process starts."""
        parts = tuple(part.of_agents() for part in self.parts)
        return replace(self, counts=(1,) * len(self.hosts), origin="one agent per host", parts=parts)

    def encode(self) -> str:
        """Return the counts with repetitions folded, e.g. ``4(x2),3``: small for any number of hosts."""
        return _folded(self.counts)


def default_ranks(allocation: Allocation, devices: Devices, cores: int) -> tuple[list[int], str]:
    """Return the ranks per host without any request, and why.

    One per device; without devices what the user asked the scheduler for, else the slots that it granted, at most 4 on
    a host; else half the cores, at least 2, at most 4.
    """
    hosts = len(allocation.hosts)
    if devices.count:
        return devices_on(devices, allocation), f"one per device ({devices.origin})"
    if allocation.slots and allocation.tasks:
        counts = list(allocation.slots)
        if sum(counts) > allocation.tasks:  # Slurm: more room on the hosts than tasks were asked for
            counts = _fill(counts, allocation.tasks)
        return counts, allocation.origin.get("tasks", allocation.scheduler)
    if allocation.slots:
        source = allocation.origin.get("slots", allocation.scheduler)
        return [min(_MOST_BY_DEFAULT, slots) for slots in allocation.slots], f"{source}, at most {_MOST_BY_DEFAULT}"
    rule = max(2, min(_MOST_BY_DEFAULT, cores // 2))
    return [rule] * hosts, f"half of {cores} cores, at least 2, at most {_MOST_BY_DEFAULT}"


def place(
    allocation: Allocation,
    devices: Devices,
    cores: int,
    *,
    ranks: int | None = None,
    per_host: int | None = None,
    origin: str = "-n",
    wanted: tuple[int, ...] | None = None,
    wanted_origin: str = "--hostfile",
    oversubscribe: bool = False,
) -> Placement:
    """Return the placement that the user asked for.

    Args:
        allocation: Hosts and granted slots.
        devices: Accelerators of one host.
        cores: CPU cores of this host.
        ranks: Requested total, or None.
        per_host: Requested ranks per host, or None.
        origin: Where the total came from.
        wanted: Ranks per host that the user's host file names, or None.
        wanted_origin: The host file.
        oversubscribe: Allow more ranks on a host than its devices or slots.

    Raises:
        UsageError: The request does not fit on the hosts; the arithmetic and the nearest possible one are named.
    """
    defaults, why = (list(wanted), wanted_origin) if wanted else default_ranks(allocation, devices, cores)
    limits = _limits(allocation, devices, wanted, wanted_origin)
    scene = _Scene(allocation, [] if oversubscribe else limits, ranks, per_host, why if ranks is None else origin)
    if per_host is not None:
        room = [per_host] * len(allocation.hosts)
        scene = replace(scene, origin="--ppn" if ranks is None else origin)
        if ranks is not None and ranks > sum(room):
            raise _no_room(scene)
    elif ranks is not None:
        if scene.limits and ranks > sum(scene.most):
            raise _too_many(scene)
        room = _spread(ranks, defaults, scene.most, limits)
    else:
        room = defaults
    counts = _fill(room, sum(room) if ranks is None else ranks)
    for limit in scene.limits:
        if any(count > most for count, most in zip(counts, limit.counts, strict=True)):
            raise _beyond(scene, counts, limit)
    used = [place for place, count in enumerate(counts) if count]
    is_named = allocation.origin.get("hosts", "").startswith(("--hosts", "--hostfile"))
    if is_named and ranks is None and devices.count and len(used) < len(counts):
        raise _without_rank(scene, devices, counts.index(0))

    def placed(used: list[int]) -> Placement:
        return Placement(
            hosts=tuple(allocation.hosts[place] for place in used),
            counts=tuple(counts[place] for place in used),
            origin=scene.origin,
            cpus=min(allocation.cpus[place] for place in used) if allocation.cpus else None,
            oversubscribed=_is_oversubscribed(counts, allocation, devices, wanted, cores),
            is_ordered=allocation.is_ordered,
        )

    numbers = allocation.components or ()
    by_component = groupby(used, numbers.__getitem__) if numbers else ()
    parts = tuple(replace(placed(list(places)), component=number) for number, places in by_component)
    return parts[0] if len(parts) == 1 else replace(placed(used), parts=parts)


class _Limit(Record):
    """The most ranks that each host may hold, and why."""

    counts: Sequence[int]
    noun: str
    origin: str


class _Scene(Record):
    allocation: Allocation
    limits: list[_Limit]  # empty with --oversubscribe
    ranks: int | None
    per_host: int | None
    origin: str

    @property
    def most(self) -> list[int]:
        """The most ranks of each host under all limits; empty without any."""
        return _least(self.limits)


def _limits(
    allocation: Allocation, devices: Devices, wanted: tuple[int, ...] | None, wanted_origin: str
) -> list[_Limit]:
    limits = []
    if devices.count:
        limits.append(_Limit(devices_on(devices, allocation), "device", devices.origin))
    elif allocation.slots:
        limits.append(_Limit(allocation.slots, "slot", allocation.origin.get("slots", allocation.scheduler)))
    if wanted:
        limits.append(_Limit(wanted, "slot", wanted_origin))
    return limits


def _least(limits: list[_Limit]) -> list[int]:
    return [min(counts) for counts in zip(*(limit.counts for limit in limits), strict=True)]


def _is_oversubscribed(
    counts: list[int], allocation: Allocation, devices: Devices, wanted: tuple[int, ...] | None, cores: int
) -> bool:
    limits = [devices_on(devices, allocation)] if devices.count else []
    limits.append(list(allocation.slots or wanted or [cores] * len(counts)))
    return any(count > most for limit in limits for count, most in zip(counts, limit, strict=True))


def _spread(ranks: int, defaults: list[int], most: list[int], limits: list[_Limit]) -> list[int]:
    """Return room for a total: the defaults where they suffice, else the lowest level of all hosts that does.

    Args:
        ranks: The total.
        defaults: Ranks per host without any request.
        most: What no host may exceed; empty when nothing is in the way. It holds the total.
        limits: What would be in the way without --oversubscribe.
    """
    room = [min(pair) for pair in zip(defaults, most, strict=True)] if most else defaults
    if sum(room) >= ranks:
        return room
    even = -(-ranks // len(room))
    full = most or _least(limits)
    if not full:
        return [even] * len(room)
    if sum(full) < ranks:  # with --oversubscribe: every host bears an equal part of the excess
        return [count + -(-(ranks - sum(full)) // len(full)) for count in full]
    low, high = even, max(full)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sum(min(middle, count) for count in full) >= ranks else (middle + 1, high)
    return [min(low, count) for count in full]


def _fill(room: Sequence[int], total: int) -> list[int]:
    """Fill hosts in order; the last one used may stay partly filled."""
    counts = []
    for space in room:
        counts.append(min(space, total))
        total -= counts[-1]
    return counts


def _no_room(scene: _Scene) -> UsageError:
    """More ranks than hosts times --ppn."""
    total, each, hosts = scene.ranks or 0, scene.per_host or 0, len(scene.allocation.hosts)
    needed, least = -(-total // hosts), min(scene.most, default=total)
    if each > least:  # --ppn is impossible itself
        ways = [f"`-n {min(total, sum(scene.most))}` without --ppn", "`--oversubscribe` with `-n` alone"]
    else:
        ways = [f"`-n {each * hosts}`", *([f"`--ppn {needed}`"] if needed <= least else [])]
        ways.append(f"{-(-total // each)} hosts")
    return UsageError(
        f"cannot place {_some(total, 'rank')} (from {scene.origin}) on {_some(hosts, 'host')} with {each} each "
        f"(from --ppn): that is room for {each * hosts}. Use {_either(ways)}."
    )


def _too_many(scene: _Scene) -> UsageError:
    """More ranks than the limits of all hosts together."""
    hosts, room = scene.allocation.hosts, sum(scene.most)
    limit = min(scene.limits, key=lambda one: sum(one.counts))
    if sum(limit.counts) > room:  # neither of two limits alone
        limit = _Limit(scene.most, "slot", ", ".join(one.origin for one in scene.limits))
    ways = [f"`-n {room}`"]
    if len(set(limit.counts)) == 1:
        ways.append(_some(-(-(scene.ranks or 0) // limit.counts[0]), "host"))
    return UsageError(
        f"cannot place {_some(scene.ranks or 0, 'rank')} (from {scene.origin}) on {_some(len(hosts), 'host')} with "
        f"{_per_host(limit, len(hosts))} ({limit.origin}): that is room for {room}. "
        f"Use {_either([*ways, *_around(scene, limit)])}."
    )


def _beyond(scene: _Scene, counts: list[int], limit: _Limit) -> UsageError:
    """More ranks on one host than its limit, although the total may fit."""
    index = next(place for place, count in enumerate(counts) if count > limit.counts[place])
    host = scene.allocation.hosts[index]
    if scene.ranks is None:
        ways = [f"`--ppn {min(scene.most)}`"] if min(scene.most) else [f"`--exclude {host}`"]
    else:
        ways = [f"`-n {min(scene.ranks, sum(scene.most))}` without --ppn"]
    source = "--ppn" if scene.per_host is not None else scene.origin
    return UsageError(
        f"cannot place {_some(counts[index], 'rank')} (from {source}) on {host}: it has "
        f"{_some(limit.counts[index], limit.noun)} ({limit.origin}). Use {_either([*ways, *_around(scene, limit)])}."
    )


def _without_rank(scene: _Scene, devices: Devices, index: int) -> UsageError:
    """A host that the user has named gets no rank, because it has no devices and others do."""
    host, origin = scene.allocation.hosts[index], scene.allocation.origin["hosts"]
    return UsageError(
        f"{host} (from {origin}) gets no rank: it has 0 devices ({devices.origin}), and there is a rank per device; "
        f"expected hosts with devices. Use `--exclude {host}`, or `--devices-per-host 0 --ppn N` for ranks on CPUs."
    )


def _around(scene: _Scene, limit: _Limit) -> list[str]:
    """Return the ways that lift a limit."""
    ways = []
    if limit.noun == "device" and not scene.allocation.slots:
        ways.append("`TORCH_DEVICE=cpu` for ranks on CPUs")
    option = scheduler(scene.allocation.scheduler).slots_option
    if limit.counts is scene.allocation.slots and option:
        ways.append(f"a job with more slots ({option})")
    return [*ways, f"`--oversubscribe` to share {limit.noun}s"]


def _per_host(limit: _Limit, hosts: int) -> str:
    if len(set(limit.counts)) > 1:
        text = _folded(limit.counts)
        return f"{text if len(text) <= 40 else text[:40] + '…'} {limit.noun}s"
    return _some(limit.counts[0], limit.noun) + " each" * (hosts > 1)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"


def _either(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"


def _folded(counts: Sequence[int]) -> str:
    words: list[str] = []
    start = 0
    for index in range(1, len(counts) + 1):
        if index == len(counts) or counts[index] != counts[start]:
            times = index - start
            words.append(f"{counts[start]}(x{times})" if times > 1 else str(counts[start]))
            start = index
    return ",".join(words)
