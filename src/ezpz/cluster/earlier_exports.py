"""Read what `ezpz_setup_job` of an earlier shell exported: believed only for the job that it was exported in.

EZPZ_JOBID=1.head  EZPZ_SCHEDULER=pbs  EZPZ_HOSTS=n01,n02  NHOSTS=2
"""

from __future__ import annotations

from ezpz.cluster.allocation import Allocation

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping


def earlier_hosts(environ: Mapping[str, str], scheduler: str, job: str) -> Allocation | None:
    """Return the hosts of a job as an earlier shell found them; None when it was in another job or had none."""
    hosts = tuple(filter(None, environ.get("EZPZ_HOSTS", "").split(",")))
    if not hosts or environ.get("EZPZ_JOBID") != job or environ.get("EZPZ_SCHEDULER") != scheduler:
        return None
    origin = dict.fromkeys(("scheduler", "job_id"), "EZPZ_JOBID") | {
        "hosts": "EZPZ_HOSTS of an earlier shell of this job"
    }
    return Allocation(scheduler, job, hosts, origin=origin)


def is_known_jobless(environ: Mapping[str, str], host: str) -> bool:
    """Tell whether this very shell was found to be in no job, on this host: no scheduler needs to be asked again."""
    return environ.get("EZPZ_SCHEDULER") == "none" and environ.get("EZPZ_HOSTS") == host
