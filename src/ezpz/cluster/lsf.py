"""LSF: the hosts of a job from its host file, or from its variables. Its jobs are detected, and nothing more.

    LSB_JOBID=4711  LSB_JOBINDEX=0 (the index of a task of an array)  LSB_QUEUE=normal  LSB_JOBNAME=train
    LSB_DJOB_HOSTFILE=/home/me/.lsbatch/1764367200.4711.hostfile     a line for each slot: n01, n01, n02
    LSB_MCPU_HOSTS=n01 2 n02 1                                       hosts and their slots
    LSB_HOSTS=n01 n01 n02                                            a word for each slot; not set for large jobs

Written from "Environment variables set for job execution" of IBM Spectrum LSF 10.1.0 and "How LSF runs parallel jobs"
of its administration guide; replayed in tests, never run on an LSF machine.
"""

from __future__ import annotations

from ezpz.cluster.allocation import Allocation, checked_job
from ezpz.cluster.earlier_exports import earlier_hosts
from ezpz.cluster.scheduler import Scheduler
from ezpz.errors import MachineError

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run


class Lsf(Scheduler):
    """LSF, whose jobs describe themselves in variables."""

    name = "lsf"
    title = "LSF"
    job_variables = ("LSB_JOBID",)
    array_variables = ("LSB_JOBINDEX",)
    ancestor_prefixes = ("sbatchd",)
    commands = frozenset(("bsub", "bjobs", "bkill"))
    kept_variables = ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_QUEUE", "LSB_JOBNAME")
    slots_option = "-n"

    def detect(self, environ: Mapping[str, str], read: Read, run: Run, *, more: bool = False) -> Allocation | None:
        """Return the job that ``environ`` tells of, or None outside LSF.

        Raises:
            MachineError: No file and no variable names a host.
        """
        del run, more
        job = environ.get("LSB_JOBID", "")
        if not job:
            return None
        path = environ.get("LSB_DJOB_HOSTFILE", "")
        words = environ.get("LSB_MCPU_HOSTS", "").split()
        pairs = zip(words[::2], words[1::2], strict=False)
        given = {
            "LSB_DJOB_HOSTFILE": (read(path) or "").split() if path else [],
            "LSB_MCPU_HOSTS": [host for host, slots in pairs if slots.isdecimal() for _ in range(int(slots[:6]))],
            "LSB_HOSTS": environ.get("LSB_HOSTS", "").split(),
        }
        origin, listed = next(((name, found) for name, found in given.items() if found), ("", []))
        if not listed:
            earlier = earlier_hosts(environ, "lsf", checked_job(job, "LSB_JOBID"))
            if earlier:
                return earlier
            raise MachineError(
                f"no hosts of the LSF job {job} (from LSB_JOBID): {', '.join(given)} name none; expected a host for "
                "each slot. Run on the first host of the job, or name the hosts with `launch --hostfile FILE`."
            )
        counts: dict[str, int] = {}
        for host in listed:
            counts[host] = counts.get(host, 0) + 1
        return Allocation(
            scheduler="lsf",
            job_id=checked_job(job, "LSB_JOBID"),
            hosts=tuple(counts),
            slots=tuple(counts.values()),
            tasks=len(listed),
            hostfile=path if origin == "LSB_DJOB_HOSTFILE" and len(counts) == len(listed) else "",
            origin={
                **dict.fromkeys(("scheduler", "job_id"), "LSB_JOBID"),
                **dict.fromkeys(("hosts", "slots", "tasks", "hostfile"), origin),
            },
        )


SCHEDULER = Lsf()
