"""MPICH and its Hydra process manager, measured with 5.0.2; MVAPICH has the same.

    $ mpiexec --version
    HYDRA build details:
        Version:                                 5.0.2

Host file: ``n01:2`` per line. Hydra takes no ``--`` and no ``-x``; it forwards the whole environment by itself.
"""

from __future__ import annotations

from ezpz.launch.flavours.base import MpiFlavour
from ezpz.launch.flavours.request import Flag

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.flavours.request import Order


class Mpich(MpiFlavour):
    """The mpiexec of MPICH and MVAPICH."""

    name = "mpich"
    title = "MPICH"
    family = "hydra"
    bootstrap_option = "-launcher"
    shell_options = "-launcher ssh -launcher-exec"
    remote_choices = ("HYDRA_LAUNCHER", "-launcher", "-bootstrap", "-rmk")

    def recognises(self, text: str) -> bool:
        """Tell whether ``--version`` names Hydra."""
        return "HYDRA build details" in text

    def command(self, order: Order) -> list[Flag]:
        """Return ``mpiexec -n 2 -launcher fork``, or ``mpiexec -n 4 -f FILE`` on several hosts."""
        flags = [Flag((order.exe,), "launcher"), Flag(("-n", str(order.placement.world_size)), order.placement.origin)]
        if order.hostfile:
            flags.append(Flag(("-f", order.hostfile), "hosts, and ranks on each"))
            flags += self.remote_flags(order)
        elif order.is_here:
            flags.append(
                Flag(("-launcher", "fork"), "all ranks are here: a stale SLURM_* must not lead Hydra elsewhere")
            )
        return [*flags, *order.tail()]


FLAVOUR = Mpich()
