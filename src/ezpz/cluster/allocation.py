"""What a scheduler granted: hosts, and how many ranks each of them is meant to hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[str], "str | None"]
    Run = Callable[[list[str]], "str | None"]

__all__ = ["Allocation"]


@dataclass(frozen=True)
class Allocation:
    """The hosts that this process may use, and where each answer came from.

    Attributes:
        scheduler: ``slurm``, ``pbs`` or ``none``.
        job_id: The scheduler's own words, e.g. ``4[2].head``; empty without a job.
        hosts: Host names in launch order, each once; never empty.
        slots: Ranks granted per host, as long as ``hosts``; None when nobody granted any.
        tasks: Ranks that the user asked the scheduler for in total; None when only hosts were asked for.
        cpus: CPUs granted per host, as long as ``hosts``; None when unknown.
        hostfile: The scheduler's own file when it is plain (each host once, one per line); else empty.
        origin: Name of each field above to the variable, file or command that gave it.
    """

    scheduler: str
    job_id: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...] | None = None
    tasks: int | None = None
    cpus: tuple[int, ...] | None = None
    hostfile: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("slots", "cpus"):
            counts = getattr(self, name)
            if counts is not None and len(counts) != len(self.hosts):
                raise MachineError(
                    f"{len(counts)} counts (from {self.origin.get(name, name)}) for {len(self.hosts)} hosts (from "
                    f"{self.origin.get('hosts', 'the scheduler')}); expected one per host. "
                    "Name the hosts yourself with `launch --hostfile FILE`."
                )
