"""MPICH and its Hydra process manager, measured with 5.0.2; MVAPICH has the same.

    $ mpiexec --version
    HYDRA build details:
        Version:                                 5.0.2

Host file: ``n01:2`` per line. Hydra takes no ``--`` and no ``-x``; it forwards the whole environment by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.launch.flavours.request import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order, Setting

NAME = "MPICH"
BINDS = False


def recognises(said: str) -> bool:
    """Tell whether ``--version`` speaks of Hydra."""
    return "HYDRA build details" in said


def command(order: Order) -> list[Flag]:
    """Return ``mpiexec -n 2 -launcher fork``, or ``mpiexec -n 4 -f FILE`` on several hosts."""
    flags = [Flag((order.exe,), "launcher"), Flag(("-n", str(order.placement.world_size)), order.placement.origin)]
    if order.hostfile:
        flags.append(Flag(("-f", order.hostfile), "hosts, and ranks on each"))
    elif order.is_here:
        flags.append(Flag(("-launcher", "fork"), "all ranks are here: a stale SLURM_* must not lead Hydra elsewhere"))
    return [*flags, *order.tail()]


def environment(order: Order) -> Mapping[str, Setting]:
    """Return nothing: Hydra needs no variables."""
    del order
    return {}


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01:2``."""
    return f"{host}:{count}"
