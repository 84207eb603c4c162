"""Name a rank that the others wait for, from the times at which all ranks arrive at collectives.

A finding needs three windows in a row (`ezpz.why.lag`) in each of which the same rank of the same group is last in over
60 % of the meetings, over 10 % of a step after the median of the others, and a significance test that says so:

    The lags of the rank are averaged in four batches per window. Were ranks only noisy, a rank would be ahead of the
    others as often as after them, and the batches' mean would be near 0. Student's t of the batches, one-sided, must
    have p < 0.0001 / ranks of the group (Bonferroni: any of them could have been the one). Lags that
    follow each other are no independent witnesses: batches take in what lasts shorter than they do, and the number that
    counts is made smaller by their own correlation r, n (1 - r) / (1 + r).
"""

from __future__ import annotations

import math

from ezpz.fields import Record
from ezpz.records.launch_record import Arrivals, Shares, Window
from ezpz.why.cause import Cause, Certainty

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.records.launch_record import Group
    from ezpz.why.known_facts import Facts

__all__ = ["CHANCE", "LAG", "Straggler", "chance", "find", "straggler"]

_WINDOWS = 3
_LAST, LAG = 0.6, 0.1  # share of the meetings in which it is last; lag as a share of a step
CHANCE = 0.0001  # for all ranks of the group together
_SURELY = 0.05  # share of the time that a reason must explain,
_TWICE = 2.0  # and how much more of it the straggler must have than the median of the others
_ON_HOSTS = {"gloo", "mpi", "ucc"}  # backends whose collectives begin when the host enqueues them
_SLOW_CLOCK = 0.9  # times the clock of other hosts' devices


class Straggler(Record):
    """A rank that others wait for.

    Attributes:
        group: Its group, with the backend in front: ``gloo:0``.
        rank: The rank.
        last: Share of the meetings in which it came last.
        lag: Seconds that it came after the median of the others.
        step: Seconds from one such meeting to the next.
        wait: Share of the time in which the others waited for it.
        meetings: How many were seen.
        size: Ranks of the group.
        chance: The probability of such lags if all ranks were alike.
        windows: In how many windows in a row.
        seconds: How long these were together.
    """

    group: str
    rank: int
    last: float
    lag: float
    step: float
    wait: float
    meetings: int
    size: int
    chance: float
    windows: int
    seconds: float


def find(windows: Sequence[Window]) -> Straggler | None:
    """Return the rank that others wait for longest; None where none stands out.

    Args:
        windows: In the order of time.
    """
    names = {group.group for each in windows for group in each.groups}
    found = [one for name in sorted(names) for one in _of_group(windows, name)]
    return max(found, key=lambda one: (one.windows * one.wait, -one.rank), default=None)


def _of_group(windows: Sequence[Window], name: str) -> Iterator[Straggler]:
    """Yield a straggler for each stretch of windows in which a rank of the group is late."""
    stretch: list[tuple[float, Group]] = []
    for each in (*windows, Window(0.0, ())):
        row = next((group for group in each.groups if group.group == name), None)
        is_late = row is not None and row.n > 0 and row.last > _LAST and row.lag > LAG * row.step
        if stretch and not (is_late and row is not None and row.rank == stretch[0][1].rank):
            yield from _judge(stretch)
            stretch = []
        if is_late and row is not None:
            stretch.append((each.s, row))


def _judge(stretch: Sequence[tuple[float, Group]]) -> Iterator[Straggler]:
    rows = [row for _, row in stretch]
    if len(rows) < _WINDOWS:
        return
    probability = chance([lag for row in rows for lag in row.batches])
    size = max(2, *(row.size for row in rows))
    if probability >= CHANCE / size:
        return
    number = sum(row.n for row in rows)

    def mean(name: str) -> float:
        return float(sum(getattr(row, name) * row.n for row in rows) / number)

    seconds = sum(seconds for seconds, _ in stretch)
    yield Straggler(
        rows[0].group,
        rows[0].rank,
        mean("last"),
        mean("lag"),
        mean("step"),
        mean("wait"),
        number,
        size,
        probability,
        len(rows),
        seconds,
    )


def chance(lags: Sequence[float]) -> float:
    """Return the probability of a mean lag as large as this one, were the true mean 0 or below.

    Student's t of values whose number is corrected for their correlation; its tail by the normal approximation of
    Wallace (1959), "Bounds on normal approximations to Student's and the chi-square distributions", Ann. Math. Stat.
    30: within 2 % of z here.

    Args:
        lags: Mean lags of batches in the order of time, in seconds.
    """
    size = len(lags)
    if size < 2:
        return 1.0
    mean = sum(lags) / size
    if mean <= 0:
        return 1.0
    offsets = [lag - mean for lag in lags]
    square = sum(offset * offset for offset in offsets)
    if square <= (1e-9 * mean) ** 2:  # a lag that never changes is no chance
        return 0.0
    together: float = sum(offsets[index - 1] * offsets[index] for index in range(1, size)) / square
    together = min(0.9, max(0.0, together))
    effective = size * (1 - together) / (1 + together)
    freedom = size - 1
    t_squared = mean * mean * effective / (square / (size - 1))
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t_squared / freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def straggler(facts: Facts) -> Iterator[Cause]:
    """A rank that is last at most collectives, while the others wait."""
    arrivals = facts.launch.arrivals or Arrivals()
    found = find(arrivals.windows)
    if found is None:
        return
    own = arrivals.ranks.get(str(found.rank)) or Shares()
    reasons = [*_reasons(own, arrivals.others), *_clock(facts, found.rank)]
    why = f": {reasons[0][0]}" if reasons else ""
    measured = (
        "by the devices' own times"
        if arrivals.source == "device"
        else "by the times at which hosts enqueued them, corrected by the clocks of the hosts"
    )
    seen = f"{found.meetings} meetings of {found.size} ranks in {found.windows} windows, {found.seconds:.0f} s in all"
    odds = f"were the ranks alike, the chance of this would be {_chance_text(found.chance)}"
    evidence = [f"{seen}, {measured}; {odds}"]
    if arrivals.source != "device" and found.group.partition(":")[0] not in _ON_HOSTS:
        evidence.append("the collectives run on devices, of which no times were recorded: hosts may run ahead of them")
    evidence += [text for _, text in reasons]
    if not reasons:
        evidence.append("why it is slower does not show: no shared core, steal, throttling, page faults or loader")
    yield Cause(
        "straggler",
        f"{facts.who(found.rank)} arrives last in {found.last:.0%}, +{_ms(found.lag)} of {_ms(found.step)}; "
        f"the others wait {found.wait:.0%}{why}",
        Certainty.FINDING,
        rank=found.rank,
        host=facts.host(found.rank),
        evidence=tuple(evidence),
        consequences=(f"{found.size - 1} other rank{'s' * (found.size > 2)} waited {found.wait:.0%} of the time",),
        advice=_advice(reasons),
    )


_ADVICE = {
    "its core is shared": "give each rank cores of its own: launch --cpu-bind, and look who else runs there (`top`)",
    "its cores are throttled": "ask for more CPUs in the job or container: its cgroup takes CPU time away",
    "its host loses time to other machines": "use another host: the hypervisor gives its CPUs to others (steal)",
    "it waits for pages from a disk": "lower its memory: pages come back from swap or a file system",
    "it waits for its loader": (
        "raise num_workers, or look at what its part of the data, or its disk, has that others' have not"
    ),
}


def _advice(reasons: Sequence[tuple[str, str]]) -> str:
    return _ADVICE.get(reasons[0][0], "") if reasons else ""


def _reasons(own: Shares, others: Shares) -> Iterator[tuple[str, str]]:
    """Yield why a rank may be slow, and what shows it, where it has much more of that than the median of the others."""
    shares = (
        (
            "throttled",
            "its cores are throttled",
            "its cgroup stopped it for {own:.0%} of the time, others for {other:.0%}",
        ),
        (
            "steal",
            "its host loses time to other machines",
            "{own:.0%} of its host's CPU time went to other virtual machines, of others' {other:.0%}",
        ),
        (
            "delay",
            "its core is shared",
            "it was ready to run and had no core for {own:.0%} of the time, others for {other:.0%}",
        ),
        (
            "loader",
            "it waits for its loader",
            "it was in its DataLoader in {own:.0%} of the looks, others in {other:.0%}",
        ),
    )
    for name, reason, text in shares:
        mine, other = getattr(own, name), getattr(others, name)
        if mine >= _SURELY and mine > _TWICE * other:
            yield reason, text.format(own=mine, other=other)
    if own.faults >= 10.0 and own.faults > _TWICE * others.faults:
        yield "it waits for pages from a disk", f"{own.faults:.0f} major page faults/s, others {others.faults:.0f}/s"
    if own.where and own.here >= _SURELY and own.where != others.where:
        yield (
            f"it was in {own.where}",
            f"it was in {own.where} in {own.here:.0%} of the looks at its main thread, others less often",
        )


def _clock(facts: Facts, rank: int) -> Iterator[tuple[str, str]]:
    """Yield that the devices of a rank's host run slower than those of other hosts."""
    clocks = {
        host: sum(known) / len(known)
        for host, hardware in facts.launch.hardware.hosts.items()
        if (known := [device.clock[0] for device in hardware.devices.values() if device.clock and device.given])
    }
    own = clocks.pop(facts.host(rank) or "", None)
    usual = sorted(clocks.values())[len(clocks) // 2] if clocks else None
    if own is not None and usual and own < _SLOW_CLOCK * usual:
        yield "its devices run slower", f"the devices of its host ran at {own:,.0f} MHz, others' at {usual:,.0f} MHz"


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def _chance_text(value: float) -> str:
    return "below 1e-9" if value < 1e-9 else f"{value:.0e}"
