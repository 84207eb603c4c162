"""Name a rank or a host that the others wait for, and hosts on which all ranks wait for a core.

A finding needs three windows in a row (`ezpz.why.lag`) in each of which the same rank of the same group is last in over
60 % of the meetings, over 10 % of a step after the median of the others, and a significance test that says so:

    The lags of the rank are averaged in four batches per window. Were ranks only noisy, a rank would be ahead of the
    others as often as after them, and the batches' mean would be near 0. Student's t of the batches, one-sided, must
    have p < 0.0001 / ranks of the group (Bonferroni: any of them could have been the one). Lags that
    follow each other are no independent witnesses: batches take in what lasts shorter than they do, and the number that
    counts is made smaller by their own correlation r, n (1 - r) / (1 + r).

A host with several ranks, of which each is last as often as the next, is judged in the same way: it comes when its
first rank does. A rank that is seldom late, and long then, is judged by time: the others must wait for it in over a
quarter of the whole, and it must have been last at so many of the long waits that ranks which are alike would show it
with p < 0.001 / ranks, by the binomial distribution. A rank that evaluates or saves for the others costs less.
"""

from __future__ import annotations

import math

from ezpz.fields import Record
from ezpz.records.launch_record import Arrivals, HostShares, Shares, Window
from ezpz.why.cause import Cause, Certainty

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ezpz.records.launch_record import Group
    from ezpz.why.known_facts import Facts

__all__ = ["CHANCE", "LAG", "Straggler", "chance", "find", "straggler", "waits_for_cores"]

_WINDOWS = 3
_LAST, LAG = 0.6, 0.1  # share of the meetings in which it is last; lag as a share of a step
_SELDOM = 0.001  # the same where a quarter of the time is lost: 13 of 13 long waits show a rank, of two as well
_ALWAYS = 0.95  # share of the meetings: ranks that are alike are not last so often for three windows
CHANCE = 0.0001  # for all ranks of the group together
_COSTS, _MOSTLY = 0.25, 0.6  # share of the time that a seldom straggler costs, and of the long waits that are for it
_ALIKE = 0.5  # of the lag of a rank, that of its host: then it is the host that is slow
_SURELY = 0.05  # share of the time that a reason must explain,
_MORE = 1.25  # how much more of the time that it wants a rank goes without, whose core is shared
_TWICE = 2.0  # and how much more of it the straggler must have than the median of the others
_ON_HOSTS = {"gloo", "mpi", "ucc"}  # backends whose collectives begin when the host enqueues them
_SLOW_CLOCK = 0.9  # times the clock of other hosts' devices
# Shares of the time in which ranks have no core: where the launch itself is why, and where others are. A host that is
# busy for a moment slows no run down.
_WORTH, _BUSY = 0.05, 0.3
_UNMET = 0.25  # of the time in which a rank could run
_SHORTEST, _LONG = 5.0, 60.0  # seconds of meetings that were seen: for the first, and for the second
_MOST_NAMED = 8  # hosts beside the first


class Straggler(Record):
    """A rank or a host that others wait for.

    Attributes:
        group: Its group, with the backend in front: ``gloo:0``.
        rank: The rank; of a host, its first one in the group.
        last: Share of the meetings in which it came last.
        lag: Seconds that it came after the median of the others.
        step: Seconds from one such meeting to the next.
        wait: Share of the time in which the others waited for it.
        meetings: How many were seen.
        size: Ranks of the group.
        chance: The probability of such lags if all ranks were alike.
        windows: In how many windows in a row.
        seconds: How long these were together.
        host: The host, where all of its ranks are late; else empty.
        of: All meetings, where these are the few at which the others waited long for it; else 0.
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
    host: str = ""
    of: int = 0


def find(windows: Sequence[Window]) -> Straggler | None:
    """Return the rank or host that others wait for longest; None where none stands out.

    Args:
        windows: In the order of time.
    """
    rank = _longest(_in_stretches([(each.s, each.groups) for each in windows], _is_late, _by_lags, CHANCE))
    host = _longest(_in_stretches([(each.s, each.hosts) for each in windows], _is_late, _by_lags, CHANCE))
    if host is not None and (rank is None or host.lag > _ALIKE * rank.lag):
        return host
    seldom = [(each.s, each.seldom) for each in windows]
    return rank or _longest(_in_stretches(seldom, _is_dear, _by_count, _SELDOM))


def _longest(found: Iterator[Straggler]) -> Straggler | None:
    return max(found, key=lambda one: (one.windows * one.wait, -one.rank), default=None)


def _is_late(row: Group) -> bool:
    return row.n > 0 and row.last > _LAST and row.lag > LAG * row.step


def _is_dear(row: Group) -> bool:
    return row.n > 0 and row.last > _MOSTLY and row.wait > _COSTS


def _in_stretches(
    windows: Sequence[tuple[float, Sequence[Group]]],
    stands_out: Callable[[Group], bool],
    probability: Callable[[Sequence[Group]], float],
    most: float,
) -> Iterator[Straggler]:
    """Yield a straggler for each stretch of windows in which the same rank or host of a group stands out.

    Args:
        windows: Of each one its seconds, and the rows of its groups.
        stands_out: Tells whether a row is of a straggler, as far as one window shows it.
        probability: Returns the probability of the rows of a stretch, were all ranks alike.
        most: The probability below which it is a straggler, for all ranks of the group together.
    """
    for name in sorted({row.group for _, rows in windows for row in rows}):
        stretch: list[tuple[float, Group]] = []
        for seconds, rows in (*windows, (0.0, ())):
            row = next((row for row in rows if row.group == name), None)
            found = row if row is not None and stands_out(row) else None
            if stretch and (found is None or (found.rank, found.host) != (stretch[0][1].rank, stretch[0][1].host)):
                yield from _judge(stretch, probability, most)
                stretch = []
            if found is not None:
                stretch.append((seconds, found))


def _by_lags(rows: Sequence[Group]) -> float:
    """Return the probability of the lags, in seconds; of a rank that is nearly always last, as shares of a step.

    Where the load of a host changes during a run, both grow and fall with it, and lags in seconds are alike for that.
    """
    is_always = all(row.last >= _ALWAYS and row.step > 0 for row in rows)
    shares = chance([lag / row.step for row in rows for lag in row.batches]) if is_always else 1.0
    return min(shares, chance([lag for row in rows for lag in row.batches]))


def _by_count(rows: Sequence[Group]) -> float:
    """Return the probability that a rank is last in so many of the long waits, where each rank may be the last."""
    number = sum(row.n for row in rows)
    often = sum(round(row.last * row.n) for row in rows)
    size = max(2, *(row.size for row in rows))
    tail = (math.comb(number, each) * (size - 1) ** (number - each) for each in range(often, number + 1))
    return float(sum(tail) / size**number)


def _judge(
    stretch: Sequence[tuple[float, Group]], test: Callable[[Sequence[Group]], float], most: float
) -> Iterator[Straggler]:
    rows = [row for _, row in stretch]
    if len(rows) < _WINDOWS:
        return
    probability = test(rows)
    size = max(2, *(row.size for row in rows))
    if probability >= most / size:
        return
    number = sum(row.n for row in rows)

    def mean(name: str) -> float:
        return float(sum(getattr(row, name) * row.n for row in rows) / number)

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
        sum(seconds for seconds, _ in stretch),
        rows[0].host,
        sum(row.of for row in rows),
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
    """A rank or a host that is last at most collectives, or late at few of them, while the others wait."""
    arrivals = facts.launch.arrivals or Arrivals()
    found = find(arrivals.windows)
    if found is None:
        return
    if found.host:
        own: Shares = arrivals.hosts.get(found.host) or HostShares()
    else:
        own = arrivals.ranks.get(str(found.rank)) or Shares()
    host = arrivals.hosts.get(facts.host(found.rank) or "") or HostShares()
    reasons = [*_reasons(own, arrivals.others, host, found), *_clock(facts, found.rank)]
    why = f": {reasons[0][0]}" if reasons else ""
    measured = (
        "by the devices' own times"
        if arrivals.source == "device"
        else "by the times at which hosts enqueued them, corrected by the clocks of the hosts"
    )
    seen = f"{found.of or found.meetings} meetings of {found.size} ranks in {found.windows} windows, "
    odds = f"were the ranks alike, the chance of this would be {_chance_text(found.chance)}"
    evidence = [f"{seen}{found.seconds:.0f} s in all, {measured}; {odds}"]
    if arrivals.source != "device" and found.group.partition(":")[0] not in _ON_HOSTS:
        evidence.append("the collectives run on devices, of which no times were recorded: hosts may run ahead of them")
    evidence += [text for _, text in reasons]
    if not reasons:
        evidence.append("why it is slower does not show: no shared core, steal, throttling, page faults or loader")
    waiting = f"{found.size - 1} other rank{'s' * (found.size > 2)}"
    yield Cause(
        "straggler",
        f"{_lateness(facts, found)}; the others wait {found.wait:.0%}{why}",
        Certainty.FINDING,
        rank=None if found.host else found.rank,
        host=found.host or facts.host(found.rank),
        evidence=tuple(evidence),
        consequences=(f"{'the other ranks' if found.host else waiting} waited {found.wait:.0%} of the time",),
        advice=_ADVICE.get(reasons[0][0], "") if reasons else "",
    )


def _lateness(facts: Facts, found: Straggler) -> str:
    """Return who is late, how often, and by how much."""
    if found.host:
        ranks = [rank for rank in range(facts.world_size) if facts.host(rank) == found.host]
        who = f"{found.host} (ranks {ranks[0]} to {ranks[-1]})" if len(ranks) > 1 else found.host
        return f"{who} arrives last in {found.last:.0%}, each rank of it, +{_ms(found.lag)} of {_ms(found.step)}"
    who = facts.who(found.rank)
    if found.of:
        often = round(found.last * found.meetings)
        return f"{who} arrives late in {often} of {found.of:,} meetings, +{_ms(found.lag)} each time"
    return f"{who} arrives last in {found.last:.0%}, +{_ms(found.lag)} of {_ms(found.step)}"


_ADVICE = {
    "its core is shared": "give each rank cores of its own: launch --cpu-bind, and look who else runs there (`top`)",
    "the cores of its host are shared": "look who else runs on that host (`top`)",
    "its cores are throttled": "ask for more CPUs in the job or container: its cgroup takes CPU time away",
    "its host loses time to other machines": "use another host: the hypervisor gives its CPUs to others (steal)",
    "it waits for pages from a disk": "lower its memory: pages come back from swap or a file system",
    "it waits for its loader": (
        "raise num_workers, or look at what its part of the data, or its disk, has that others' have not"
    ),
}


def _reasons(own: Shares, others: Shares, host: HostShares, found: Straggler) -> list[tuple[str, str]]:
    """Return why a rank or host may be slow, and what shows it, where it has much more of that than the others.

    What explains over half of the time that the others wait comes first, else what explains most. A rank that computes
    more than the others also waits more for a core, where its host is busy: that is no core which it alone shares.

    Args:
        own: Of the rank, or the median of the host's ranks.
        others: The median of the others.
        host: The median of the ranks on the rank's host.
        found: How late it is.
    """
    is_of_host = found.host or (host.ranks > 1 and own.delay <= _TWICE * host.delay)
    shared = "the cores of its host are shared" if is_of_host else "its core is shared"
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
            shared,
            "it was ready to run and had no core for {own:.0%} of the time, others for {other:.0%}",
        ),
        (
            "loader",
            "it waits for its loader",
            "it was in its DataLoader in {own:.0%} of the looks, others in {other:.0%}",
        ),
    )
    reasons = []
    for name, reason, text in shares:
        mine, other = getattr(own, name), getattr(others, name)
        if name == "delay" and _unmet(own) <= _MORE * _unmet(others):
            continue  # it gets as much as others of the time that it wants, and wants more
        if mine >= _SURELY and mine > _TWICE * other:
            reasons.append((mine - other, reason, text.format(own=mine, other=other)))
    if own.faults >= 10.0 and own.faults > _TWICE * others.faults:
        seen = f"{own.faults:.0f} major page faults/s, others {others.faults:.0f}/s"
        reasons.append((found.wait, "it waits for pages from a disk", seen))
    usual = own.others_here
    is_apart = own.where != others.where if usual is None else own.here > _TWICE * usual
    if own.where and own.here >= _SURELY and is_apart:
        was = "its ranks were" if found.host else "it was"
        seen = f"{was} in {own.where} in {own.here:.0%} of the looks at the main thread, others "
        seen += "less often" if usual is None else f"in {usual:.0%}"
        # A thread that waits for a core is in some line as well.
        reasons.append((own.here - own.delay, f"{was} in {own.where}", seen))
    explained = sorted(reasons, key=lambda one: -min(one[0], found.wait / 2))
    return [(reason, seen) for _, reason, seen in explained]


def _unmet(shares: Shares) -> float:
    """Return for which share of the time in which a rank could run it had no core; 0 where that is not known."""
    return shares.delay / (shares.delay + shares.cpu) if shares.cpu > 0 else 0.0 if not shares.delay else 1.0


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


# Hosts on which all ranks wait for a core: nobody is late there, and all are slow.


def waits_for_cores(facts: Facts) -> Iterator[Cause]:
    """All ranks of a host are ready to run and have no core, for a share of the time that is worth knowing."""
    arrivals = facts.launch.arrivals or Arrivals()
    if (arrivals.seconds or 0.0) < _SHORTEST:
        return
    rows = []
    for name, host in arrivals.hosts.items():
        reason, seen, advice = _crowded(host)
        least = _WORTH if reason else _BUSY
        if host.delay >= least and _unmet(host) >= _UNMET and (reason or (arrivals.seconds or 0.0) >= _LONG):
            rows.append((host.delay, name, host, reason, seen, advice))
    if not rows:
        return
    delay, name, host, reason, seen, advice = max(rows, key=lambda row: (row[0], row[1]))
    who = "all ranks" if len(facts.launch.plan.hosts) < 2 else f"the ranks on {name}"
    cores = host.cores or host.allowed
    shared = f"{host.ranks} ranks share {_count(cores, 'core')}" if 0 < cores < host.ranks else ""
    also = [f"the ranks on {other} do as well, {share:.0%}" for share, other, *_ in rows if other != name]
    yield Cause(
        "waits-for-cores",
        f"{who} wait for a core {delay:.0%} of the time" + (f": {reason or shared}" if reason or shared else ""),
        Certainty.FINDING,
        host=name,
        evidence=(
            f"half of its {host.ranks} ranks or more were ready to run and had no core for {delay:.0%} of the time",
            *([seen] if seen else ["what takes the cores does not show: other programs may run there"]),
            *also[:_MOST_NAMED],
        ),
        advice=advice or "look who else runs there (`top`)",
    )


def _crowded(host: HostShares) -> tuple[str, str, str]:
    """Return what of the launch itself leaves a host's ranks without a core, what shows it and what to do; or nothing.

    More ranks than the host has cores are no reason by themselves: `launch` notes that at its start.
    """
    cores = host.cores or host.allowed
    if 0 < host.allowed < min(host.ranks, host.there):
        return (
            f"{host.ranks} ranks may use {_count(cores, 'core')} of {host.there}",
            f"the launch itself may use no more than {_count(host.allowed, 'core')} of the host",
            "ask the scheduler for more CPUs per task or host, or look for taskset in front of launch",
        )
    if 0 < host.cores < min(host.ranks, host.allowed):
        return (
            f"{host.ranks} ranks may use {_count(host.cores, 'core')} of {host.there or host.allowed}",
            f"the {host.ranks} ranks are bound to {_count(host.cores, 'core')}, the launch may use {host.allowed}",
            (
                "give each rank cores of its own: launch --cpu-bind, and look for what binds them: taskset, numactl, "
                "srun, os.sched_setaffinity"
            ),
        )
    if host.throttled >= _WORTH and host.throttled > host.delay / 2:
        return (
            f"their cgroup stops them {host.throttled:.0%} of the time",
            f"the cgroup of its ranks was throttled for {host.throttled:.0%} of the time",
            _ADVICE["its cores are throttled"],
        )
    if host.threads > 1 and 0 < cores < host.threads * host.ranks:
        said = f" (OMP_NUM_THREADS={host.omp})" if host.omp >= host.threads else ""
        fair = max(1, cores // host.ranks)
        return (
            f"{host.ranks} ranks compute with {host.threads} threads each on {_count(cores, 'core')}{said}",
            f"torch computes with {host.threads * host.ranks} threads on {_count(cores, 'core')}",
            (
                f"use {_count(fair, 'thread')} per rank: leave OMP_NUM_THREADS unset, and launch sets it, or call "
                f"torch.set_num_threads({fair})"
            ),
        )
    return "", "", ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    if value >= 1000:
        return f"{seconds:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def _chance_text(value: float) -> str:
    return "below 1e-9" if value < 1e-9 else f"{value:.0e}"
