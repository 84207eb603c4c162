"""How far the ranks have come, summed per host: what is held grows with hosts, not with ranks."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["STAGES", "Stages"]

STAGES = ("shim", "interpreter", "torch", "group", "step")


class _Times(NamedTuple):
    ranks: int
    low: float
    median: float
    high: float


class Stages:
    """When the ranks reached each stage, in seconds since the launch began."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, _Times]] = {}

    def add(self, host: str, stage: str, count: int, low: float, median: float, high: float) -> None:  # noqa: PLR0917  # the words of one line, in its order
        """Note what a host says of its ranks; what it said of the same stage before no longer counts.

        Args:
            host: The host.
            stage: One of `STAGES`; others are dropped.
            count: Ranks of the host that have reached it.
            low: When the first of them did.
            median: When half of them had.
            high: When the last of them did.
        """
        if stage in STAGES and count > 0:
            self._hosts.setdefault(stage, {})[host] = _Times(count, low, median, high)

    def reached(self, stage: str) -> int:
        """Return how many ranks have reached a stage."""
        return sum(times.ranks for times in self._hosts.get(stage, {}).values())

    def summary(self) -> dict[str, dict[str, object]]:
        """Return what ``run.json`` says: stages in their order, those that no rank has reached left out.

        The median is that of the hosts' medians, weighted by their ranks.
        """
        return {stage: _summed(self._hosts[stage]) for stage in STAGES if stage in self._hosts}


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
    raise ValueError("no host has said anything")
