"""Slurm: the hosts of a job from its variables alone, so that no daemon and no ``scontrol`` is needed.

    SLURM_JOB_ID=12  SLURM_JOB_NODELIST=node[01-02]  SLURM_TASKS_PER_NODE=3,1  SLURM_JOB_CPUS_PER_NODE=3,1
    SLURM_NTASKS=4 only when the user asked for tasks; otherwise the tasks per node follow from the CPUs.
    Inside a step: SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NUM_TASKS.

Recorded from Slurm 22.05.8 (tests/data/environments/slurm-*.json).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.hostlist import expand
from ezpz.errors import MachineError
from ezpz.ranks import expand_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

__all__ = ["detect"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h counts its special step ids down from 0xFFFFFFFE


def detect(environ: Mapping[str, str], read: Read, run: Run) -> Allocation | None:
    """Return the job that ``environ`` tells of, or None outside Slurm.

    Raises:
        MachineError: The job's variables are incomplete.
        UsageError: The host expression cannot be read.
    """
    del read, run  # every answer is in the environment
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job:
        return None
    step = "SLURM_STEP_NUM_TASKS" in environ and "SLURM_STEP_NODELIST" in environ and not _is_shell(environ)
    names = _first(environ, ("SLURM_STEP_NODELIST",) if step else ("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if not names:
        raise MachineError(
            f"no hosts of job {job} (from SLURM_JOB_ID): SLURM_JOB_NODELIST is unset; expected a host expression. "
            "Run inside the job (salloc, sbatch), or unset SLURM_JOB_ID."
        )
    hosts = tuple(dict.fromkeys(expand(environ[names])))
    slots = "SLURM_STEP_TASKS_PER_NODE" if step else "SLURM_TASKS_PER_NODE"
    tasks = "SLURM_STEP_NUM_TASKS" if step else "SLURM_NTASKS"
    origin = {"scheduler": "SLURM_JOB_ID", "job_id": "SLURM_JOB_ID", "hosts": names}
    origin |= {"slots": slots, "tasks": tasks, "cpus": "SLURM_JOB_CPUS_PER_NODE"}
    return Allocation(
        scheduler="slurm",
        job_id=job,
        hosts=hosts,
        slots=_counts(environ, slots),
        tasks=int(environ[tasks]) if environ.get(tasks, "").isdigit() else None,
        cpus=None if step else _counts(environ, "SLURM_JOB_CPUS_PER_NODE"),
        origin=origin,
    )


def _is_shell(environ: Mapping[str, str]) -> bool:
    """Tell whether the step is the batch script or an interactive shell: it names one host, the job has more."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if environ.get(name)), "")


def _counts(environ: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    return tuple(expand_counts(environ[name])) if environ.get(name) else None
