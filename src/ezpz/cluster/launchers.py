"""List the kinds of launcher that ezpz can use, called flavours: ``ezpz.launch.flavours`` has a file for each name.

The list is here, below `ezpz.launch`, because the tables of sites name launchers too and are checked against it.
"""

from __future__ import annotations

__all__ = ["FLAVOURS", "MPI_FLAVOURS", "NOT_STARTED", "SITES_LAUNCHERS"]

# Behind an `mpiexec`. Intel MPI is asked before MPICH: it is built on the same Hydra and some builds print both names.
MPI_FLAVOURS = ("impi", "openmpi5", "openmpi4", "pals", "mpich")
# The first one needs nothing; the last one is taken where hosts have nothing else.
FLAVOURS = ("local", *MPI_FLAVOURS, "srun", "flux", "torchrun", "ssh")

# What the table of a site may name: flavours of whatever version, and launchers that ezpz passes over with a note.
NOT_STARTED = ("ibrun",)
SITES_LAUNCHERS = (*dict.fromkeys(name.rstrip("0123456789") for name in FLAVOURS), *NOT_STARTED)
