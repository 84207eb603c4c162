"""Intel MPI, measured with 2021.18.

    $ mpiexec --version
    Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)

Machine file: ``n01:2`` per line (``-f`` collapses repeated hosts, ``-machinefile`` keeps the counts). Pinning is left to
the placement of torch's own threads; a user's ``I_MPI_PIN`` wins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

NAME = "Intel MPI"


def recognises(version: str) -> bool:
    """Tell whether ``--version`` speaks of Intel MPI."""
    return "Intel(R) MPI Library" in version


def command(exe: str, placement: Placement, hostfile: str) -> list[str]:
    """Return ``mpiexec -n 2``, with ``-machinefile FILE`` on several hosts."""
    where = ["-machinefile", hostfile] if hostfile else ["-bootstrap", "fork"]
    return [exe, "-n", str(placement.world_size), *where]


def environment(placement: Placement) -> dict[str, str]:
    """Return the pinning switch, unless the user set it."""
    del placement
    return {} if "I_MPI_PIN" in os.environ else {"I_MPI_PIN": "0"}


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01:2``."""
    return f"{host}:{count}"
