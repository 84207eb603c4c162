"""What the scheduler says that it granted on each host, by its variables or, where they say nothing, its commands.

SLURM_GPUS_ON_NODE=4                    this host's, inside the job; in a step the step's
SLURM_STEP_GPUS=0,1  SLURM_JOB_GPUS=0-3 global numbers of this host's devices, in a step and in the batch script
SLURM_GPUS_PER_NODE=4 | a100:4 | a100:2,h100:1      as asked for with --gpus-per-node; also where salloc left the shell
SLURM_GPUS_PER_TASK=1 with SLURM_NTASKS_PER_NODE=4  as asked for
    https://slurm.schedmd.com/sbatch.html, "OUTPUT ENVIRONMENT VARIABLES"; tests/data/environments/slurm-batch-gpus.json

PBS and Flux set no count: the hook of PBS for cgroups and Flux set CUDA_VISIBLE_DEVICES, which is a mask. What their
commands told while the job was looked for (and scontrol, for a shell of salloc) stands in ``Allocation.devices``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster.devices.answer import refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation

__all__ = ["Grant", "granted", "strangers"]

_HERE = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_IDS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_ASKED = "SLURM_GPUS_PER_NODE"
_PER_TASK, _TASKS = "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_NODE"
_UNSET = {"", "(null)"}


class Grant(NamedTuple):
    """How many devices of each host are this job's, and the variable that says so."""

    number: int
    origin: str
    notes: tuple[str, ...] = ()


def granted(environ: Mapping[str, str], allocation: Allocation | None, *, here: bool) -> Grant | None:
    """Return the grant, or None where the scheduler tells none.

    Args:
        environ: The environment to read.
        allocation: The job, or None when it was not looked for: Slurm's variables are then believed.
        here: Whether this host is one of the job's, so that what is said of "this host" is of use.

    Raises:
        UsageError: A variable of the scheduler cannot be read.
    """
    if allocation is None:
        return _slurm(environ, here)
    grant = _slurm(environ, here) if allocation.scheduler == "slurm" else None
    if grant is None and allocation.devices is not None:
        return Grant(allocation.devices, allocation.origin.get("devices", allocation.scheduler))
    return grant


def strangers(environ: Mapping[str, str], allocation: Allocation | None) -> tuple[str, ...]:
    """Return a sentence about Slurm's variables where the job is another scheduler's, or there is none."""
    if allocation is None or allocation.scheduler == "slurm":
        return ()
    names = [name for name in (*_HERE, _ASKED) if environ.get(name, "") not in _UNSET]
    job = f"{allocation.scheduler} job {allocation.job_id}" if allocation.job_id else "a Slurm job"
    return (f"{names[0]}={environ[names[0]]} is not of {job} and is passed over",) if names else ()


def _slurm(environ: Mapping[str, str], here: bool) -> Grant | None:
    asked = _asked(environ)
    for name in _HERE if here else ():
        text = environ.get(name, "").strip()
        if text in _UNSET:
            continue
        number = _ids(name, text) if name in _IDS else _count(name, text)
        notes: tuple[str, ...] = ()
        if asked is not None and asked.number != number:
            notes = (f"{name}={text} tells {number}, {asked.origin} {asked.number}; this host's own decides",)
        return Grant(number, name, notes)
    return asked


def _asked(environ: Mapping[str, str]) -> Grant | None:
    text = environ.get(_ASKED, "").strip()
    if text not in _UNSET:
        return Grant(_count(_ASKED, text), _ASKED)
    text, tasks = environ.get(_PER_TASK, "").strip(), environ.get(_TASKS, "").strip()
    if text in _UNSET or not (tasks.isascii() and tasks.isdigit()):
        return None
    return Grant(_count(_PER_TASK, text) * int(tasks), f"{_PER_TASK} times {_TASKS}")


def _count(name: str, text: str) -> int:
    total = 0
    for item in text.split(","):
        found = re.fullmatch(r"(?:[^\s:,()]+:)*(\d+)(?:\(S:[\d,-]+\))?", item.strip(), re.ASCII)
        if not found:
            raise _unreadable(name, text, "a count such as 4, a100:4 or a100:2,h100:1")
        total += int(found[1])
    return total


def _ids(name: str, text: str) -> int:
    seen: set[int] = set()
    for item in text.removeprefix("[").removesuffix("]").split(","):
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", item.strip(), re.ASCII)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise _unreadable(name, text, "device numbers such as 0,1 or 0-3")
        seen.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return len(seen)


def _unreadable(name: str, text: str, expected: str) -> Exception:
    return refusal("the devices that Slurm granted", name, text, expected, "run `export EZPZ_NGPU_PER_HOST=N`")
