"""Open MPI 4, whose process manager is ORTE; measured with 4.1.8.

    $ mpiexec --version
    mpiexec (OpenRTE) 4.1.8

The line is that of Open MPI 5; root is allowed under fewer names. An mpiexec that is called by an absolute path, as
ours is, puts its own folder first on the ranks' PATH, and with a distribution's ``/usr/bin`` its Python before the
user's. ``--noprefix`` prevents that on one host; daemons on other hosts are found by the prefix, and the shim gives the
ranks their PATH back.
"""

from __future__ import annotations

import re

from ezpz.launch.flavours.openmpi5 import OpenMpi5
from ezpz.launch.flavours.request import Flag

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.flavours.request import Order

_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) ([1-4])\.")


class OpenMpi4(OpenMpi5):
    """The mpiexec of Open MPI before 5."""

    name = "openmpi4"
    title = "Open MPI 4"
    family = "openmpi"
    sorts_hosts = True
    remote_choices = ("OMPI_MCA_plm", "--mca", "-mca")
    shell_forced = "--mca ras ^slurm,tm --mca plm rsh"
    # A daemon that leaves its session leaves the scheduler's task: PBS then ends what it has started.
    shell_options = "--mca orte_leave_session_attached 1 --mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_agent"
    daemon = ("OMPI_MCA_orte_launch_agent", "orted")
    root_switches = OpenMpi5.root_switches[:2]

    def recognises(self, text: str) -> bool:
        """Tell whether ``--version`` names Open MPI before 5."""
        return bool(_VERSION.search(text))

    def command(self, order: Order) -> list[Flag]:
        """Return the words of Open MPI 5, on one host with ``--noprefix``."""
        flags = super().command(order)
        if order.is_here and "--prefix" not in (*order.site_args, *order.user_args):
            flags.insert(1, Flag(("--noprefix",), "its folder would come before the user's on PATH"))
        return flags


FLAVOUR = OpenMpi4()
