"""Intel MPI, measured with 2021.18.

    $ mpiexec --version
    Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)

Machine file: ``n01:2`` per line (``-f`` collapses repeated hosts, ``-machinefile`` keeps the counts, and lets it forget
the scheduler: ``-bootstrap`` names that). Pinning is left to the placement of torch's own threads; a user's
``I_MPI_PIN`` wins.
"""

from __future__ import annotations

from ezpz.launch.flavours.base import MpiFlavour
from ezpz.launch.flavours.request import Flag, Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order


class IntelMpi(MpiFlavour):
    """The mpiexec of Intel MPI."""

    name = "impi"
    title = "Intel MPI"
    family = "hydra"
    bootstrap_option = "-bootstrap"
    shell_options = "-bootstrap ssh -bootstrap-exec"
    remote_choices = ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_RMK", "-bootstrap", "-launcher", "-rmk")

    def recognises(self, text: str) -> bool:
        """Tell whether ``--version`` names Intel MPI."""
        return "Intel(R) MPI Library" in text

    def command(self, order: Order) -> list[Flag]:
        """Return ``mpiexec -n 2 -bootstrap fork``, or ``-machinefile FILE`` on several hosts."""
        flags = [Flag((order.exe,), "launcher"), Flag(("-n", str(order.placement.world_size)), order.placement.origin)]
        if order.hostfile:
            flags.append(Flag(("-machinefile", order.hostfile), "hosts, and ranks on each"))
            flags += self.remote_flags(order)
        elif order.is_here:
            flags.append(Flag(("-bootstrap", "fork"), "all ranks are here: a stale job must not lead Hydra elsewhere"))
        return [*flags, *order.tail()]

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return what keeps Intel MPI from pinning ranks, and from following a scheduler's counts instead of the
        plan's.
        """
        settings = dict(super().environment(order))
        if "I_MPI_PIN" not in order.environ:
            settings["I_MPI_PIN"] = Setting("0", "it would pin each rank's threads by a rule of its own")
        if order.hostfile:
            settings["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] = Setting("0", "the plan's counts, not the scheduler's")
        return settings


FLAVOUR = IntelMpi()
