"""No scheduler: this host alone, which is the ordinary answer on a laptop or a workstation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.cluster.allocation import Allocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

__all__ = ["detect"]


def detect(environ: Mapping[str, str], read: Read, run: Run) -> Allocation:
    """Return this host, under the name that the kernel tells."""
    del environ, read, run
    from os import uname

    looked = "no SLURM_JOB_ID, no PBS_JOBID"
    return Allocation(
        scheduler="none",
        job_id="",
        hosts=(uname().nodename,),
        origin={"scheduler": looked, "job_id": looked, "hosts": "the host name"},
    )
