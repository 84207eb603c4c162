"""Compare the ranks that came up with those that were planned, and describe the ways in which they differ."""

from __future__ import annotations

import re

from ezpz.cluster.scheduler import scheduler
from ezpz.fields import Record
from ezpz.launch.agent_messages import STAGES
from ezpz.ranks import FAMILIES

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.agent_messages import Mismatch, Up
    from ezpz.launch.agent_messages import Stages as StagesReport
    from ezpz.launch.plan import LaunchPlan


# How far the ranks have come, summed per host: what is held grows with hosts, not with ranks, of which each is known
# in small worlds only.


class _Times(Record):
    ranks: int
    low: float
    median: float
    high: float


class Stages:
    """When the ranks reached each stage, in seconds since the launch began."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, _Times]] = {}
        self._ranks: dict[str, dict[int, float]] = {}

    def add(self, host: str, report: StagesReport, began: float) -> None:
        """Note what a host reports of its ranks; its earlier report of the same stage counts no more.

        Args:
            host: The host.
            report: One of `STAGES`, with the times at which the first, half and the last of its ranks reached it;
                others are dropped.
            began: When the launch began.
        """
        if report.stage in STAGES and report.count > 0:
            low, median, high = (moment - began for moment in (report.low, report.median, report.high))
            self._hosts.setdefault(report.stage, {})[host] = _Times(report.count, low, median, high)
            for rank, moment in report.ranks:
                self._ranks.setdefault(report.stage, {})[rank] = moment - began

    def reached(self, stage: str) -> int:
        """Return how many ranks have reached a stage."""
        return sum(times.ranks for times in self._hosts.get(stage, {}).values())

    def summary(self) -> dict[str, dict[str, object]]:
        """Return what ``run.json`` says: stages in their order, those that no rank has reached left out.

        The median is that of the hosts' medians, weighted by their ranks.
        """
        return {
            stage: {**_summed(self._hosts[stage]), **_by_rank(self._ranks.get(stage, {}))}
            for stage in STAGES
            if stage in self._hosts
        }


def _by_rank(ranks: dict[int, float]) -> dict[str, object]:
    """Return the time of each rank, None for those that have not come so far; nothing in a large world."""
    if not ranks:
        return {}
    times = [ranks.get(rank) for rank in range(max(ranks) + 1)]
    return {"by_rank": [None if seconds is None else round(seconds, 3) for seconds in times]}


def _summed(hosts: dict[str, _Times]) -> dict[str, object]:
    ranks = sum(times.ranks for times in hosts.values())
    return {
        "ranks": ranks,
        "min": round(min(times.low for times in hosts.values()), 3),
        "median": round(_median(sorted((times.median, times.ranks) for times in hosts.values()), ranks), 3),
        "max": round(max(times.high for times in hosts.values()), 3),
        "slowest_host": max(hosts, key=lambda host: hosts[host].high),
    }


def _median(ordered: list[tuple[float, int]], ranks: int) -> float:
    passed = 0
    for index, (value, count) in enumerate(ordered):
        passed += count
        if 2 * passed == ranks:  # half on either side
            return (value + ordered[index + 1][0]) / 2
        if 2 * passed > ranks:
            return value
    raise ValueError("no host has reported anything")


__all__ = ["RollCall", "Stages"]

_NAMED = 3  # hosts that are named one by one
_WORD = r"\w[\w.-]*\w|\w"
# The beginning of a line names the host that it comes from: "[mpiexec@n01] …", "[n01:4711] …". Open MPI 4 also
# names hosts that it has reached: "my node: n01", "target node: n01".
_SPEAKER = r"^\s*(?:\[[^\]]*\]\s*|(?:my|target) node:.*)"


class RollCall:
    """What is known of each host of a world: silent, partly up, up. Hosts are numbered as the plan has them."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._is_local = plan.flavour is None
        self._hosts = plan.placement.hosts
        self._counts = plan.placement.counts
        self._started = plan.started.world_size
        self._agents = " agents" if plan.forks else ""
        self._program = plan.choice.exe or plan.flavour_name
        self._flavour = plan.flavour_name
        self._up: dict[int, int] = {}
        self._partly: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._strangers: list[tuple[str, tuple[str, str, str]]] = []

    @property
    def complete(self) -> bool:
        """Whether every rank of every host is ready to begin."""
        return len(self._up) == len(self._hosts)

    @property
    def empty(self) -> bool:
        """Whether no rank at all has come up."""
        return not self._up and not self._partly and not self._names

    def came(self, index: int, name: str) -> None:
        """Note a host whose agent has come."""
        self._names[index] = name

    def up(self, index: int, report: Up) -> None:
        """Note a host all of whose ranks are ready."""
        self._up[index] = report.ranks

    def partly(self, index: int, have: int) -> None:
        """Note a host on which only some ranks are."""
        self._partly[index] = have

    def strangers(self, report: Mismatch) -> None:
        """Note ranks that are none of the plan."""
        self._strangers += [(report.host, world) for world in report.worlds]

    def misplaced(self, index: int, name: str) -> str:
        """Return what is wrong with the host that came as number ``index``; empty when nothing is.

        Its name may be one that the plan does not know (an alias, an address): only one that the plan gives another
        number is wrong.
        """
        if not 0 <= index < len(self._hosts):
            return ""
        short = [host.split(".", 1)[0] for host in self._hosts]
        mine = name.split(".", 1)[0]
        if mine == short[index] or mine not in short:
            return ""
        return (
            f"the ranks planned for {self._hosts[index]} came up on {name}; expected hosts in the planned order. "
            "Does the launcher sort its host file? Name the hosts in its order with --hosts"
        )

    def late(self) -> list[int]:
        """Return the numbers of the hosts that have not come up."""
        return [index for index in range(len(self._hosts)) if index not in self._up]

    def silent(self) -> list[str]:
        """Return the hosts of which nothing was ever heard."""
        if self._is_local:
            return []
        return [self._hosts[index] for index in self.late() if index not in self._names and index not in self._partly]

    def missing(self, seconds: float) -> str:
        """Return which hosts have not come up, and how far each of them is."""
        late = f"{len(self.late())} of {len(self._hosts)} hosts"
        return (
            f"{late} did not come up within {seconds:g} s: {self._late_hosts()}; expected {sum(self._counts)} ranks. "
            f"Look at the words of {self._flavour} above, or give them longer: --start-timeout 30m"
        )

    def awaited(self, seconds: float) -> str:
        """Return for which hosts all ranks have waited so long."""
        late, have = self.late(), "has" if len(self.late()) == 1 else "have"
        return (
            f"{len(late)} of {len(self._hosts)} hosts {have} not come up after {seconds:g} s: {self._late_hosts()}; "
            "no rank begins before"
        )

    def absent(self) -> str:
        """Return how many ranks came up of those that were planned."""
        came = sum(self._up.values()) + sum(count for index, count in self._partly.items() if index not in self._up)
        return f"{came} of {sum(self._counts)} ranks came up"

    def named_in(self, words: str) -> tuple[str, str]:
        """Return the host of which a launcher says first that something is wrong, and that line; empty without one.

        Only a host that has not come up counts, in a line that names no other host of the plan.
        """
        late = {host.lower(): host for index, host in enumerate(self._hosts) if index not in self._names}
        known = {**{host.partition(".")[0]: name for host, name in late.items() if not host[:1].isdigit()}, **late}
        for line in words.splitlines():
            found = {known.get(word, "") for word in re.findall(_WORD, re.sub(_SPEAKER, "", line).lower())} - {""}
            if len(found) == 1:
                return found.pop(), line.strip()
        return "", ""

    def mismatch(self) -> str:
        """Return what came up instead of the planned world, and what usually causes that."""
        hosts = sorted({name for name, _ in self._strangers})
        where = ", ".join(hosts[:_NAMED]) + (f" and {len(hosts) - _NAMED} more hosts" if len(hosts) > _NAMED else "")
        planned = self._started
        world, family, words = self._strangers[0][1]
        if world in {"0", str(planned)}:  # contradictions, and ranks in other places than planned
            return f"on {where}: {words}"
        cause = _usual_cause(family, self._program)
        count, several = len(self._strangers), len(self._hosts) > 1
        came = f"{count} world{'s'[: count > 1]} of 1" if world == "1" else f"a world of {world}"
        return (
            f"{came} came up on {where} (from {family}); expected a world of {planned}{self._agents} on "
            f"{len(self._hosts)} "
            f"host{'s'[:several]} (from the plan). Usual cause: {cause}"
        )

    def _late_hosts(self) -> str:
        late = self.late()
        stages = [f"{self._hosts[index]} ({self._stage(index)})" for index in late[:_NAMED]]
        return ", ".join(stages) + (f", and {len(late) - _NAMED} more" if len(late) > _NAMED else "")

    def _stage(self, index: int) -> str:
        if index in self._partly:
            return f"{self._partly[index]} of {self._counts[index]} ranks came"
        return "its host agent came, but no rank" if index in self._names else "nothing was heard of it"


def _usual_cause(family: str, program: str) -> str:
    """Return what usually causes a world of singletons, by the launcher family of the ranks' variables."""
    if family == "alone":
        return (
            f"it gave them no rank at all: {program} does not belong to this job, or is a wrapper that hides the "
            "ranks' variables"
        )
    if any(known.is_mpi for known in FAMILIES if known.name == family):
        return (
            f"{program} starts every rank as a world of its own: it and the job's scheduler, or an outer launcher, do "
            "not belong together"
        )
    return scheduler(family).singletons_cause or f"{program} and the job do not belong together"
