"""Open MPI 5, whose process manager is PRRTE; measured with 5.0.11.

    $ mpiexec --version
    mpiexec (Open MPI) 5.0.11

Host file: ``n01 slots=2`` per line. Remote ranks get only the variables that ``-x`` names. Open MPI binds a rank to one
core by default, which would put all its threads there, and refuses root and more ranks than cores unless told. It gives
ranks a pseudo-terminal for stdout, so that a program behind a pipe or in a job's log believes it may use colour.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ezpz.launch.flavours.request import Flag, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order

NAME = "Open MPI 5"
BINDS = False

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_ROOT_PRRTE = ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")
_TAKEN = re.compile(r"[A-Za-z_]\w*\Z")  # an exported bash function is no name that -x takes
# What Open MPI carries itself, and what is true of one host only.
_OWN = re.compile(r"(OMPI_|PMIX_|PRTE_|ORTE_|SLURM|(HOSTNAME|PWD|OLDPWD|SHLVL|_)\Z)")


def recognises(said: str) -> bool:
    """Tell whether ``--version`` speaks of Open MPI 5 or newer."""
    found = _VERSION.search(said)
    return found is not None and int(found[1]) >= 5


def command(order: Order) -> list[Flag]:
    """Return ``mpiexec -n 2 --map-by slot:OVERSUBSCRIBE --bind-to none``, with the hosts and ``-x NAME`` on several."""
    flags = [
        Flag((order.exe,), "launcher"),
        Flag(("-n", str(order.placement.world_size)), order.placement.origin),
        Flag(("--map-by", "slot:OVERSUBSCRIBE"), "blocks of ranks, as many as were planned"),
        Flag(("--bind-to", "none"), "it would put all threads of a rank on one core"),
    ]
    if order.hostfile:
        flags.append(Flag(("--hostfile", order.hostfile), "hosts, and ranks on each"))
        flags += forwarded(order)
    return [*flags, *order.tail()]


def forwarded(order: Order) -> list[Flag]:
    """Return ``-x NAME`` for every variable of the user and of ours: remote ranks get no others."""
    names = sorted(name for name in {*order.environ, *order.carried} if _TAKEN.match(name) and not _OWN.match(name))
    return [Flag(tuple(word for name in names for word in ("-x", name)), "variables that ranks on other hosts get")]


def environment(order: Order) -> Mapping[str, Setting]:
    """Return the switches for root, who is meant in a container, and the truth about colour."""
    return as_root((*_ROOT, *_ROOT_PRRTE)) | colour(order)


def as_root(names: tuple[str, ...]) -> dict[str, Setting]:
    """Return the switches without which root is refused."""
    return dict.fromkeys(names, Setting("1", "this user is root")) if os.geteuid() == 0 else {}


def colour(order: Order) -> dict[str, Setting]:
    """Return ``NO_COLOR`` where stdout is no terminal, although ranks will see one."""
    if os.isatty(1) or "FORCE_COLOR" in order.environ:
        return {}
    return {"NO_COLOR": Setting("1", "stdout is no terminal, although Open MPI shows ranks one")}


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01 slots=2``."""
    return f"{host} slots={count}"
