"""List the kinds of launcher that ezpz can use, called flavours: ``ezpz.launch.flavours`` has a file for each name.

The list is here, below `ezpz.launch`, because the tables of sites name launchers too and are checked against it.
"""

from __future__ import annotations

# Behind an `mpiexec`. Intel MPI is asked before MPICH: it is built on the same Hydra and some builds print both names.
MPI_FLAVOURS = ("impi", "openmpi5", "openmpi4", "pals", "mpich")
# The first one needs nothing; the last one is taken where hosts have nothing else.
FLAVOURS = ("local", *MPI_FLAVOURS, "srun", "flux", "torchrun", "pbs_tmrsh", "ssh")

# Launchers that a site's table may name beside the flavours, whatever their version; a note says that they are passed
# over.
NOT_STARTED = ("ibrun",)


def site_launchers() -> tuple[str, ...]:
    """Return what the table of a site may name as its launcher."""
    return (*dict.fromkeys(name.rstrip("0123456789") for name in FLAVOURS), *NOT_STARTED)


# Programs that start ranks, whoever calls them. Debian's alternatives have the name of their MPI behind a dot:
# mpiexec.mpich, mpirun.openmpi.
PROGRAMS = (
    r"(mpiexec|mpirun)(\.(hydra|mpich|openmpi))?|orterun|prterun|srun|aprun|jsrun|ibrun|torchrun|deepspeed|horovodrun"
    r"|launch"
)
PROGRAMS_WITH_VERB = (("ezpz", "launch"), ("accelerate", "launch"), ("colossalai", "run"), ("flux", "run"))
MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "ezpz.launch", "accelerate.commands.launch"))
# Those that start the ranks of one host, and words by which one on each of several hosts meets the others.
OF_ONE_HOST = ("torchrun", "torch.distributed.run")
NAMES_HOSTS = ("--nnodes", "--node_rank", "--node-rank", "--rdzv")
