"""Notice that ranks of this host have ended before they could meet the others, where no launcher would.

Hydra (MPICH, Intel MPI) and srun let the other ranks run when one has ended with an error, so that they would wait for
it until time is up. But they start all ranks of a host as children of one process: when it has fewer, a rank is gone.
Linux lists them:

    /proc/4711/task/4711/children     4712 4713 4715                      (proc(5): children of one thread)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ezpz import proc
from ezpz.ranks import FAMILIES, family_of, of_this_launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.ranks import Ranks

# What only the environment of a rank has.
_RANK_NAMES = tuple(f"\0{family.variables[0]}=".encode() for family in FAMILIES)


def is_supervised(environ: Mapping[str, str]) -> bool:
    """Tell whether `ezpz launch` or torchrun's agent looks after this rank, and ends it when another one fails."""
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
        family = None if is_supervised(environ) else family_of(ranks)
        expected = family.careless_starter if family else ""
        pid = starter()[0] if expected else 0
        # In a container a rank's starter may be another program, with one child for each rank.
        self._starter = pid if expected and proc.name(pid) == expected else 0

    def missing(self) -> int:
        """Return how many ranks of this host have ended; 0 where that is unknown."""
        if not self._starter:
            return 0
        living = sum(proc.start_time(pid) != "" for pid in proc.children(self._starter) or ())
        return max(0, self._expected - living) if living else 0
