"""Join the components of a heterogeneous job, which a scheduler grants as if each were a job of its own.

One of them is used unless the user names hosts of others: component 0, where the batch script runs.
"""

from __future__ import annotations

from ezpz.fields import replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Container

    from ezpz.cluster.allocation import Allocation


def heterogeneous(parts: tuple[Allocation, ...]) -> Allocation:
    """Return component 0 with a note on the others, which stay within reach as its ``parts``."""
    if any(part.devices for part in parts):  # then one that names none has none
        parts = tuple(part if part.devices else replace(part, devices=(0,) * len(part.hosts)) for part in parts)
    first = replace(parts[0], components=(0,) * len(parts[0].hosts), parts=parts)
    return replace(first, notes=(*first.notes, _note(parts)))


def with_components(around: Allocation, named: Container[str] | None = None) -> Allocation:
    """Return the components of a job that hold a host that was named, joined in their order.

    Args:
        around: Component 0, as `heterogeneous` returns it.
        named: Some of the job's hosts; None means all.
    """
    hosts: dict[str, int] = {}
    for number, part in enumerate(around.parts):
        for host in part.hosts:
            hosts.setdefault(host, number)  # a host that two components share belongs to the first of them
    numbers = sorted({number for host, number in hosts.items() if named is None or host in named})
    chosen = [around.parts[number] for number in numbers]
    places: dict[str, tuple[int, int]] = {}
    for index, part in enumerate(chosen):
        for place, host in enumerate(part.hosts):
            places.setdefault(host, (index, place))

    def per_host(name: str) -> tuple[int, ...] | None:
        counts = [getattr(part, name) for part in chosen]
        return None if None in counts else tuple(counts[index][place] for index, place in places.values())

    names = dict.fromkeys(name for part in chosen for name in part.origin)
    origin = {
        name: ", ".join(dict.fromkeys(part.origin[name] for part in chosen if part.origin.get(name))) for name in names
    }
    tasks = [part.tasks for part in chosen if part.tasks is not None]
    note = _note(around.parts)
    return replace(
        around,
        hosts=tuple(places),
        slots=per_host("slots"),
        cpus=per_host("cpus"),
        devices=per_host("devices"),
        tasks=sum(tasks) if len(tasks) == len(chosen) else None,
        components=tuple(numbers[index] for index, _ in places.values()),
        notes=tuple(one for one in around.notes if one != note),
        origin={**around.origin, **origin},
    )


def _note(parts: tuple[Allocation, ...]) -> str:
    others = ", ".join(f"component {number} has {_short(part.hosts)}" for number, part in enumerate(parts) if number)
    return (
        f"component 0 of {len(parts)} of a heterogeneous job is used; {others}: `launch --hosts LIST` takes hosts of "
        "any of them"
    )


def _short(hosts: tuple[str, ...]) -> str:
    return ",".join(hosts) if len(hosts) <= 4 else f"{','.join(hosts[:3])},… {hosts[-1]}"
