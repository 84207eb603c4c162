"""Explain where the time until the first step went, from the stages that a launch has recorded of its ranks.

Of each rank the launcher knows when it reached a stage, in seconds since the launch began. Some stages no rank reaches
before all others are ready: such a gate closes when the last rank comes, and whoever came earlier has waited for it.
"""

from __future__ import annotations

from itertools import islice

from ezpz.fields import Record
from ezpz.quantities import duration
from ezpz.records.launch_record import LaunchRecord, StageReached
from ezpz.track.intervals import Interval, one_after_another

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GROUPS",
    "STAGES",
    "Change",
    "Delay",
    "StageTimes",
    "Startup",
    "changes",
    "delays",
    "host_intervals",
    "latest_hosts",
    "median",
    "read_startup",
]


class Stage(Record):
    """A stage of the start.

    Attributes:
        name: In ``run.json``.
        what: What a rank does until it has reached it.
        is_gate: Whether no rank reaches it before all have reached the stage before.
    """

    name: str
    what: str
    is_gate: bool = False


STAGES = (
    Stage("shim", "launcher"),
    Stage("process", "start of the program", is_gate=True),
    Stage("interpreter", "start of Python"),
    Stage("torch", "imports before torch"),
    Stage("setup", "imports and own code"),
    Stage("met", "rendezvous", is_gate=True),
    Stage("group", "process group", is_gate=True),
    Stage("own", "model and own code"),
    Stage("model", "wrap_model"),
    Stage("data", "first batch"),
    Stage("step", "first step", is_gate=True),
    Stage("second_step", "second step", is_gate=True),
)
GROUPS = {  # what a rank is doing, in a word, and the stages at whose end it has done it
    "start": ("shim", "process", "interpreter"),
    "imports": ("torch", "setup"),
    "rendezvous": ("met", "group"),
    "model and data": ("own", "model", "data"),
    "first step": ("step",),
}
_MOST_HOSTS = 32  # that are shown
_LEAST = 0.5  # seconds: a shorter delay, or change, is not worth a word
_SHARE = 0.1  # of the start, likewise


class StageTimes(Record):
    """When ranks reached a stage, in seconds since the launch began.

    Attributes:
        stage: The stage.
        took: From the last rank's arrival at the stage before to the last rank's arrival here; never below zero.
        first: The first rank's time.
        median: Half of the ranks came by then.
        last: The last rank's time.
        rank: The last rank; -1 where the launch was too large to record each.
        host: The host of the last rank.
    """

    stage: Stage
    took: float
    first: float
    median: float
    last: float
    rank: int
    host: str


class Delay(Record):
    """A host that others waited for.

    Attributes:
        stage: Where it lost its time.
        host: The host, and
        rank: its last rank.
        seconds: What the rank took for that stage.
        waited: How much earlier the median of the others was ready.
        others: How many hosts waited; ranks, where there is one host only.
        alone: Whether all ranks are on one host.
    """

    stage: Stage
    host: str
    rank: int
    seconds: float
    waited: float
    others: int
    alone: bool

    def __str__(self) -> str:
        who = f"rank {self.rank} on {self.host}" if self.alone else f"{self.host} (rank {self.rank})"
        waiting = ("rank" if self.alone else "host") + ("s" if self.others > 1 else "")
        return (
            f"{duration(self.seconds)} of {self.stage.what} on {who} held up {self.others} {waiting} "
            f"for {duration(self.waited)}"
        )


class Change(Record):
    """A stage that took longer, or shorter, than in an earlier launch: seconds now and then."""

    stage: Stage
    now: float
    then: float

    def __str__(self) -> str:
        more = self.now - self.then
        sign = "+" if more > 0 else "-"
        return f"{self.stage.what} {sign}{duration(abs(more))} ({duration(self.now)} instead of {duration(self.then)})"


class Startup:
    """The start of one launch.

    Attributes:
        launch: Its record.
        command: What it started, as words.
        hosts: Its hosts, and
        counts: how many ranks each had.
        times: Stage to the times of its ranks, in seconds since the launch began, None for a rank that did not reach
            it; empty in a world that was too large to record each rank.
        arrivals: The stages that any rank reached, in their order.
    """

    def __init__(self, launch: LaunchRecord) -> None:
        self.launch = launch
        self.command, self.hosts, self.counts = launch.command, launch.plan.hosts, launch.plan.ranks_per_host
        reached = {stage: launch.stages.get(stage.name) or StageReached() for stage in STAGES}
        known = max((len(each.by_rank) for each in reached.values()), default=0)
        ranks = (host for host, count in zip(self.hosts, self.counts, strict=False) for _ in range(count))
        self._host_of = list(islice(ranks, known))  # a foreign record may tell of any number
        self.times: dict[str, list[float | None]] = {}
        self.arrivals: list[StageTimes] = []
        before = 0.0
        for stage, summary in reached.items():
            if summary.min is None or summary.median is None or summary.max is None:
                continue
            times = [each if isinstance(each, (int, float)) else None for each in summary.by_rank]
            if times:
                self.times[stage.name] = times
            last = float(summary.max)
            rank = max(range(len(times)), key=lambda each: _or_zero(times[each])) if times else -1
            host = self.host_of(rank) if rank >= 0 else summary.slowest_host
            took = max(0.0, last - before)
            self.arrivals.append(StageTimes(stage, took, float(summary.min), float(summary.median), last, rank, host))
            before = max(before, last)

    @property
    def world_size(self) -> int:
        """How many ranks were started."""
        return sum(self.counts)

    @property
    def first_step(self) -> float | None:
        """Seconds from the launch to the first step of the last rank; None where no rank reported one."""
        return next((each.last for each in self.arrivals if each.stage.name == "step"), None)

    @property
    def total(self) -> float:
        """Seconds to the first step, else to the last stage that any rank reached before."""
        ends = [each.last for each in self.arrivals if each.stage.name != "second_step"]
        return max(ends, default=0.0)

    def host_of(self, rank: int) -> str:
        """Return the host of a rank; empty where the record does not tell."""
        return self._host_of[rank] if 0 <= rank < len(self._host_of) else ""

    def by_host(self, stage: str) -> dict[str, tuple[float, float, float, int]]:
        """Return the first, the median and the last time at which the ranks of each host reached a stage, and the rank
        that was last; hosts in the order of ranks. Empty where single ranks are not known.
        """
        found: dict[str, list[tuple[float, int]]] = {}
        for rank, when in enumerate(self.times.get(stage, ())):
            if when is not None:
                found.setdefault(self.host_of(rank), []).append((when, rank))
        return {
            host: (min(each)[0], median([when for when, _ in each]), max(each)[0], max(each)[1])
            for host, each in found.items()
        }


def read_startup(launch: LaunchRecord) -> Startup | None:
    """Return the start of a launch; None where it recorded no stage."""
    startup = Startup(launch)
    return startup if startup.arrivals else None


def latest_hosts(startup: Startup) -> list[str]:
    """Return all hosts in the order of ranks; of many the 32 that came last to any stage."""
    late = dict.fromkeys(startup.hosts, 0.0)
    for arrival in startup.arrivals:
        for host, (_, _, last, _) in startup.by_host(arrival.stage.name).items():
            late[host] = max(late.get(host, 0.0), last - arrival.median)
    chosen = set(sorted(late, key=lambda host: -late[host])[:_MOST_HOSTS])
    return [host for host in late if host in chosen]


def host_intervals(startup: Startup) -> dict[str, list[Interval]]:
    """Return what the last rank of each of `latest_hosts` was doing, by `GROUPS`, in seconds since the launch began."""
    by_stage = {stage: startup.by_host(stage) for stage in startup.times}
    found = {}
    for host in latest_hosts(startup):
        lasts = [
            (name, [by_stage[stage][host][2] for stage in stages if host in by_stage.get(stage, {})])
            for name, stages in GROUPS.items()
        ]
        found[host] = one_after_another("stage", [(name, max(ends)) for name, ends in lasts if ends], host)
    return found


def delays(startup: Startup) -> list[Delay]:
    """Return the hosts (on one host, the ranks) that others waited for, in the order of the gates they closed.

    A host counts where its last rank reached the stage before a gate later than the median of the other hosts' last
    ranks, by half a second and a tenth of the whole start. The stage named is the one in which it lost the most.
    """
    names = [arrival.stage for arrival in startup.arrivals if arrival.stage.name in startup.times]
    found, begin = [], 0
    for number, stage in enumerate(names):
        if not _is_gate(startup, stage):
            continue
        if number - begin > 1:
            delay = _delay(startup, names[begin:number])
            found += [delay] if delay else []
        begin = number
    if begin < len(names) - 1:  # no gate follows, so no rank waited; a plain script is shown all the same
        delay = _delay(startup, names[begin:])
        found += [delay] if delay else []
    return found


def changes(now: Startup, then: Startup) -> list[Change]:
    """Return the stages whose time differs between two launches by more than half a second and a quarter."""
    before = {arrival.stage.name: arrival.took for arrival in then.arrivals}
    both = [(arrival, before[arrival.stage.name]) for arrival in now.arrivals if arrival.stage.name in before]
    return [
        Change(arrival.stage, arrival.took, took)
        for arrival, took in both
        if abs(arrival.took - took) > max(_LEAST, 0.25 * took)
    ]


def _is_gate(startup: Startup, stage: Stage) -> bool:
    """Tell whether no rank reached a stage before all were ready.

    Of `wrap_model`, whose strategies differ in that, the times tell: ranks that came apart left together.
    """
    if stage.name != "model":
        return stage.is_gate
    began, ended = ([when for when in startup.times.get(name, ()) if when is not None] for name in ("own", "model"))
    if not began or not ended or min(ended) < max(began):
        return False
    return max(ended) - min(ended) < (max(began) - min(began)) / 2


def _delay(startup: Startup, stages: Sequence[Stage]) -> Delay | None:
    """Return who was last at the last of these stages; the first of them is where all began together."""
    alone = len(startup.hosts) <= 1
    ready = startup.times[stages[-1].name]
    lasts: dict[object, float] = {}  # of each host, or rank
    for rank, when in enumerate(ready):
        if when is not None:
            group = rank if alone else startup.host_of(rank)
            lasts[group] = max(lasts.get(group, 0.0), when)
    if len(lasts) < 2:
        return None
    rank = max(range(len(ready)), key=lambda each: _or_zero(ready[each]))
    latest = _or_zero(ready[rank])
    own = rank if alone else startup.host_of(rank)
    others = [when for group, when in lasts.items() if group != own]
    waited = latest - median(others)
    least = max(_LEAST, _SHARE * startup.total)
    if waited < least:
        return None
    stage = max(stages[1:], key=lambda each: _lost(startup, stages, each, rank, own, alone=alone))
    seconds = _spent(startup, stages, stage, rank)
    waiting = sum(latest - when >= least for when in others)
    return Delay(stage, startup.host_of(rank), rank, seconds, waited, waiting, alone)


def _lost(startup: Startup, stages: Sequence[Stage], stage: Stage, rank: int, own: object, *, alone: bool) -> float:
    """Return how much longer a rank took for a stage than the median of the ranks elsewhere."""
    others = [
        _spent(startup, stages, stage, each)
        for each, when in enumerate(startup.times[stage.name])
        if when is not None and (each if alone else startup.host_of(each)) != own
    ]
    return _spent(startup, stages, stage, rank) - (median(others) if others else 0.0)


def _spent(startup: Startup, stages: Sequence[Stage], stage: Stage, rank: int) -> float:
    """Return the seconds from a rank's stage before to this one."""
    number = [each.name for each in stages].index(stage.name)
    here, before = (_at(startup.times[each.name], rank) for each in (stage, stages[number - 1]))
    return 0.0 if here is None or before is None else max(0.0, here - before)


def _at(times: Sequence[float | None], rank: int) -> float | None:
    return times[rank] if rank < len(times) else None


def _or_zero(seconds: float | None) -> float:
    return 0.0 if seconds is None else seconds


def median(values: Sequence[float]) -> float:
    """Return the value in the middle of some, at least one; of an even number the mean of the two there."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
