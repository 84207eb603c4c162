"""Count the devices that the scheduler granted on each host: by its variables or, where they say nothing, its commands.

Each scheduler's own file reads its variables (`ezpz.cluster.scheduler.Scheduler.granted`). One that sets no count may
set CUDA_VISIBLE_DEVICES, which is a mask (masks.py). What commands printed while the job was looked for is in
``Allocation.devices``.
"""

from __future__ import annotations

from ezpz.cluster.allocation import Grant
from ezpz.cluster.scheduler import scheduler, schedulers

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation

_UNSET = {"", "(null)"}


def granted(environ: Mapping[str, str], allocation: Allocation | None, *, here: bool) -> Grant | None:
    """Return the grant, or None where the scheduler names none.

    Args:
        environ: The environment to read.
        allocation: The job, or None when it was not looked for: the variables of any scheduler are then believed.
        here: Whether this host is one of the job's, so that variables about "this host" are of use.

    Raises:
        UsageError: A variable of the scheduler cannot be read.
    """
    if allocation is None:
        grants = (one.granted(environ, here=here) for one in schedulers())
        return next((grant for grant in grants if grant is not None), None)
    grant = scheduler(allocation.scheduler).granted(environ, here=here)
    if allocation.devices is None:
        return grant
    source, each = allocation.origin.get("devices", allocation.scheduler), allocation.devices
    # What this host's variables tell is true of this host alone, or of its component of a heterogeneous job.
    if len(set(each)) > 1 or allocation.components:
        return Grant(max(each), source)
    return grant or Grant(each[0], source)


def strangers(environ: Mapping[str, str], allocation: Allocation | None) -> tuple[str, ...]:
    """Return a sentence about variables of a scheduler where the job is another scheduler's, or there is none."""
    for other in schedulers() if allocation else ():
        names = [name for name in other.device_variables if environ.get(name, "") not in _UNSET]
        if allocation and allocation.scheduler != other.name and names:
            job = f"{allocation.scheduler} job {allocation.job_id}" if allocation.job_id else f"a {other.title} job"
            return (f"{names[0]}={environ[names[0]]} is not of {job} and is passed over",)
    return ()
