"""MPICH and its Hydra process manager, measured with 5.0.2.

    $ mpiexec --version
    HYDRA build details:
        Version:                                 5.0.2

Host file: ``n01:2`` per line. Hydra takes no ``--`` and no ``-x``; it forwards the whole environment by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

NAME = "MPICH"


def recognises(version: str) -> bool:
    """Tell whether ``--version`` speaks of Hydra."""
    return "HYDRA build details" in version


def command(exe: str, placement: Placement, hostfile: str) -> list[str]:
    """Return ``mpiexec -n 2 -launcher fork``, or ``mpiexec -n 4 -f FILE`` on several hosts.

    On one host the fork launcher keeps Hydra from following stale ``SLURM_*`` variables into a job that is gone.
    """
    where = ["-f", hostfile] if hostfile else ["-launcher", "fork"]
    return [exe, "-n", str(placement.world_size), *where]


def environment(placement: Placement) -> dict[str, str]:
    """Return nothing: Hydra needs no variables."""
    del placement
    return {}


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01:2``."""
    return f"{host}:{count}"
