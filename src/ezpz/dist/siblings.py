"""Whether ranks of this host have ended before they could meet the others, where nobody else would notice.

A Hydra (MPICH, Intel MPI) and srun let the other ranks run when one has ended with an error, so that they would wait for it
until time is up. But they start all ranks of a host as children of one process: when it has fewer, a rank is gone. Linux tells:

    /proc/4711/task/4711/children     4712 4713 4715                      (proc(5): children of one thread)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ezpz import proc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.ranks import Ranks

__all__ = ["Siblings", "is_supervised", "starter"]

# Launchers that leave the others alone, with the process (/proc/<pid>/comm) that starts the ranks of a host; torchrun, Open MPI,
# PALS and flux end them. In a container a rank's starter may be another one, with one child for each rank.
_CARELESS = {"hydra": "hydra_pmi_proxy", "slurm": "slurmstepd"}
_RANK_NAMES = (b"\0PMI_RANK=", b"\0OMPI_COMM_WORLD_RANK=", b"\0SLURM_PROCID=")


def is_supervised(environ: Mapping[str, str]) -> bool:
    """Tell whether `ezpz launch` or torchrun's agent looks after this rank, and ends it when another one fails."""
    from ezpz.ranks import of_this_launch

    by_us = of_this_launch(environ) and "EZPZ_SOCKET" in environ  # a line that was pasted by hand has no agent
    return by_us or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def starter() -> tuple[int, str]:
    """Return pid and start time of the nearest process above that is no rank itself; "" for the time without /proc.

    Ranks may be wrapped in shells of their own, so the parent alone is not common to them.
    """
    pid = os.getppid()
    while pid > 1:
        process = proc.stat(pid)
        if process is None:
            return pid, ""
        environ = proc.environ(pid)
        if not any(name in environ for name in _RANK_NAMES):
            return pid, process.start
        pid = process.parent
    return pid, ""


class Siblings:
    """The ranks of this host, as the process that started them has them as children."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str]) -> None:
        self._expected = ranks.local_world_size
        careless = "" if is_supervised(environ) else _CARELESS.get(ranks.family, "")
        pid = starter()[0] if careless else 0
        self._starter = pid if careless and proc.name(pid) == careless else 0

    def missing(self) -> int:
        """Return how many ranks of this host have ended; 0 where that cannot be told."""
        if not self._starter:
            return 0
        living = sum(proc.start_time(pid) != "" for pid in proc.children(self._starter) or ())
        return max(0, self._expected - living) if living else 0
