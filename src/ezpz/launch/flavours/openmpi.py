"""Open MPI 5 (PRRTE) and 4 (ORTE), measured with 5.0.11 and 4.1.8.

    $ mpiexec --version
    mpiexec (Open MPI) 5.0.11        5.x
    mpiexec (OpenRTE) 4.1.8          4.x

Host file: ``n01 slots=2`` per line. Remote ranks get only the variables that ``-x`` names. Open MPI binds a rank to one
core by default, which would put all its threads there, and refuses root and more ranks than cores unless told. It gives
ranks a pseudo-terminal for stdout, so that a program behind a pipe or in a job's log believes it may use colour.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

NAME = "Open MPI"

_ROOT = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
_FORWARDED = re.compile(r"[A-Za-z_]\w*\Z")  # an exported bash function is no name that -x takes
# What Open MPI carries itself, and what is true of one host only.
_OWN = re.compile(r"(OMPI_|PMIX_|PRTE_|ORTE_|SLURM|(HOSTNAME|PWD|OLDPWD|SHLVL|_)\Z)")


def recognises(version: str) -> bool:
    """Tell whether ``--version`` speaks of Open MPI."""
    return "(Open MPI)" in version or "(OpenRTE)" in version


def command(exe: str, placement: Placement, hostfile: str) -> list[str]:
    """Return ``mpiexec -n 2 --oversubscribe --bind-to none``, with the hosts and ``-x NAME`` on several."""
    words = [exe, "-n", str(placement.world_size), "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    if hostfile:
        words += ["--hostfile", hostfile]
        for name in sorted(os.environ):
            if _FORWARDED.match(name) and not _OWN.match(name):
                words += ["-x", name]
    return words


def environment(placement: Placement) -> dict[str, str]:
    """Return the switches for root, who is meant in a container, and the truth about colour."""
    del placement
    variables = dict.fromkeys(_ROOT, "1") if os.geteuid() == 0 else {}
    if not os.isatty(1) and "FORCE_COLOR" not in os.environ:
        variables["NO_COLOR"] = "1"
    return variables


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01 slots=2``."""
    return f"{host} slots={count}"
