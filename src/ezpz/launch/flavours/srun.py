"""Slurm's srun, measured with 22.05.

srun takes ``SLURM_NTASKS`` and other variables of the job as options, so every count is given explicitly. A host list
with one entry per rank and ``--distribution=arbitrary`` places uneven blocks exactly.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ezpz.ranks import expand_counts

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

NAME = "srun"

_MOST_NAMED_HOSTS = 64  # one word of a command line has at most 128 KiB; longer lists go through the host file


def recognises(version: str) -> bool:
    """Tell that srun is chosen by the job, never by ``mpiexec --version``."""
    del version
    return False


def command(exe: str, placement: Placement, hostfile: str) -> list[str]:
    """Return ``srun -N 2 -n 4 --ntasks-per-node=2 -c 8 …``; the host file names uneven blocks and long lists."""
    words = [exe, "-N", str(len(placement.hosts)), "-n", str(placement.world_size)]
    if len(set(placement.counts)) == 1 and len(placement.hosts) <= _MOST_NAMED_HOSTS:
        words += [f"--ntasks-per-node={placement.counts[0]}", f"--nodelist={','.join(placement.hosts)}"]
        words += ["--distribution=block"]
    else:
        words += ["--distribution=arbitrary", f"--nodelist={hostfile}"]
    words += ["-c", str(cpus_per_rank(placement)), "--overcommit"]
    return [*words, "--export=ALL", "--kill-on-bad-exit=1", "--quit-on-interrupt", "--input=0"]


def environment(placement: Placement) -> dict[str, str]:
    """Return the threads of a rank: the CPUs that srun binds it to, unless the user chose."""
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(cpus_per_rank(placement))}


def hostfile_line(host: str, count: int) -> str:
    """Return the host once per rank."""
    return "\n".join([host] * count)


def cpus_per_rank(placement: Placement) -> int:
    """Return the CPUs that each rank gets: the job's CPUs per host shared among its ranks, at least 1."""
    text = os.environ.get("SLURM_CPUS_PER_TASK") or ""
    if text.isdigit():
        return int(text)
    granted = placement.cpus or min(expand_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")))
    return max(1, granted // max(placement.counts))
