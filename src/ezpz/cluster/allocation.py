"""Describe what a scheduler granted: hosts, how many ranks each of them is meant to hold, devices, and until when."""

from __future__ import annotations

import re

from ezpz.errors import MachineError
from ezpz.fields import EMPTY, Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[str], "str | None"]
    Run = Callable[[list[str]], "str | None"]

# The letters of a host's name, which becomes a word of launch lines, host files and shell exports.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_JOB = re.compile(r"[A-Za-z0-9\u0192][A-Za-z0-9._@\[\]-]*\Z")  # U+0192 begins a job id of Flux


class Allocation(Record):
    """The hosts that this process may use, and where each answer came from.

    Attributes:
        scheduler: One of `ezpz.cluster.SCHEDULERS`, or ``none``.
        job_id: The scheduler's own words, e.g. ``4[2].head``; empty without a job.
        hosts: Host names in launch order, each once; never empty.
        slots: Ranks granted per host, as long as ``hosts``; None when none were granted.
        tasks: Ranks that the user asked the scheduler for in total; None when only hosts were asked for.
        cpus: CPUs granted per host, as long as ``hosts``; None when unknown.
        devices: Accelerators granted per host, as long as ``hosts``, where the scheduler's commands say so; None when
            unknown.
        end_time: When the job ends, in seconds since 1970-01-01 UTC; None when unknown or without a limit.
        is_ordered: Whether the hosts are in the scheduler's own order; the user may have named them in another.
        hostfile: The scheduler's own file when it is plain (each host once, one per line); else empty.
        components: Number of the component of a heterogeneous job that each host is in, as long as ``hosts``; None in
            other jobs.
        parts: All components of a heterogeneous job, by their numbers, where more than the hosts above can be used.
        notes: What a user should know and no field says, one sentence each.
        origin: Name of each field above to the variable, file or command that gave it.
    """

    scheduler: str
    job_id: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...] | None = None
    tasks: int | None = None
    cpus: tuple[int, ...] | None = None
    devices: tuple[int, ...] | None = None
    end_time: int | None = None
    is_ordered: bool = True
    hostfile: str = ""
    components: tuple[int, ...] | None = None
    parts: tuple[Allocation, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Mapping[str, str] = EMPTY

    def __post_init__(self) -> None:
        source = self.origin.get("hosts", "the scheduler")
        odd = next((host for host in self.hosts if not _NAME.match(host)), None)
        if odd is not None:
            raise MachineError(
                f"not a host name: {odd!r} (from {source}); expected letters, digits, dots, dashes and underscores. "
                "Name the hosts yourself with `launch --hostfile FILE`."
            )
        for name in ("slots", "cpus", "devices", "components"):
            counts = getattr(self, name)
            if counts is not None and len(counts) != len(self.hosts):
                raise MachineError(
                    f"{len(counts)} counts (from {self.origin.get(name, name)}) for {len(self.hosts)} hosts (from "
                    f"{source}); expected one per host. Name the hosts yourself with `launch --hostfile FILE`."
                )


class Grant(Record):
    """How many devices of each host are this job's, the most where hosts differ, and the variable that says so."""

    number: int
    origin: str
    notes: tuple[str, ...] = ()


def is_job(job: str) -> bool:
    """Tell whether a text can be the id of a job: one that can be shown and passed on."""
    return bool(_JOB.match(job))


def checked_job(job: str, source: str) -> str:
    """Return a job id that can be shown and passed on.

    Args:
        job: The id.
        source: The variable or the command that gave it.

    Raises:
        MachineError: It holds what no scheduler writes.
    """
    if not is_job(job):
        advice = (
            f"Run `unset {source}`" if source.isupper() else "Name the hosts yourself with `launch --hostfile FILE`"
        )
        raise MachineError(
            f"not a job id: {job!r} (from {source}); expected one such as 1234, 4[2].head or f2Xk. {advice}."
        )
    return job
