"""Open MPI 4, whose process manager is ORTE; measured with 4.1.8.

    $ mpiexec --version
    mpiexec (OpenRTE) 4.1.8

The line is that of Open MPI 5; root is asked for under other names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ezpz.launch.flavours import openmpi5
from ezpz.launch.flavours.openmpi5 import command, hostfile_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order, Setting

__all__ = ["BINDS", "NAME", "command", "environment", "hostfile_line", "recognises"]

NAME = "Open MPI 4"
BINDS = False

_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) ([1-4])\.")


def recognises(said: str) -> bool:
    """Tell whether ``--version`` speaks of Open MPI before 5."""
    return bool(_VERSION.search(said))


def environment(order: Order) -> Mapping[str, Setting]:
    """Return the switches for root, who is meant in a container, and the truth about colour."""
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return openmpi5.as_root(root) | openmpi5.colour(order)
