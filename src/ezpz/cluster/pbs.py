"""PBS (OpenPBS, PBS Pro): the hosts of a job from its node file.

    PBS_JOBID=1.head  PBS_NODEFILE=/var/spool/pbs/aux/1.head

The node file names a host once per MPI process that was asked for, in chunk order, short or fully qualified:

    n01
    n01
    n02

Recorded from OpenPBS 23.06.06 (tests/data/environments/pbs-*.json).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.cluster.allocation import Allocation
from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

__all__ = ["detect"]


def detect(environ: Mapping[str, str], read: Read, run: Run) -> Allocation | None:
    """Return the job that ``environ`` tells of, or None outside PBS.

    Raises:
        MachineError: The node file is not named, cannot be read, or names no host.
    """
    del run  # qstat is absent on many compute hosts; the node file says all that is needed here
    job = environ.get("PBS_JOBID")
    if not job:
        return None
    path = environ.get("PBS_NODEFILE", "")
    text = read(path) if path else None
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if not lines:
        found = "is unset" if not path else "cannot be read" if text is None else "is empty"
        raise MachineError(
            f"no hosts of job {job} (from PBS_JOBID): PBS_NODEFILE={path} {found}; expected one host per line. "
            "Run on the first host of the job, or name the hosts with `launch --hostfile FILE`."
        )
    counts: dict[str, int] = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    hosts = tuple(counts)
    origin = dict.fromkeys(("scheduler", "job_id"), "PBS_JOBID")
    origin |= dict.fromkeys(("hosts", "slots", "tasks", "hostfile"), f"PBS_NODEFILE={path}")
    return Allocation(
        scheduler="pbs",
        job_id=job,
        hosts=hosts,
        slots=tuple(counts.values()),
        tasks=len(lines),
        hostfile=path if len(hosts) == len(lines) else "",
        origin=origin,
    )
