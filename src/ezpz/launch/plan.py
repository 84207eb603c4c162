"""The plan of one launch: placement, flavour, the line to run, the variables of the ranks, and why."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ezpz.errors import LaunchError
from ezpz.launch import flavours
from ezpz.launch.contract import rank_variables, started_here, threads
from ezpz.launch.folder import write_lines
from ezpz.ranks import CONTRACT, Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation, Run
    from ezpz.launch.flavours import Flavour
    from ezpz.launch.placement import Placement

__all__ = ["LaunchPlan", "choose", "is_here"]

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")  # pathlib costs 10 ms


@dataclass(frozen=True)
class LaunchPlan:
    """All that is decided before anything starts.

    Attributes:
        placement: Ranks per host.
        flavour: The launcher's module, or None for the local flavour, where the launcher starts the ranks itself.
        exe: Path of ``mpiexec`` or ``srun``; empty for the local flavour.
        hostfile: Host file in the flavour's dialect; empty on one host.
        master: Address and port of the rendezvous.
        run_id: Unique name of this launch.
        reason: Why this flavour.
        extra: More variables for all ranks.
        job: The scheduler's variable that names the job, where this shell has none of them; else empty.
    """

    placement: Placement
    flavour: Flavour | None
    exe: str
    reason: str
    hostfile: str = ""
    master: tuple[str, int] = ("127.0.0.1", 0)
    run_id: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    job: Mapping[str, str] = field(default_factory=dict)

    @property
    def flavour_name(self) -> str:
        """Name of the flavour as the user reads it."""
        return self.flavour.NAME if self.flavour else "local"

    @property
    def is_here(self) -> bool:
        """Whether all ranks run on this host."""
        return len(self.placement.hosts) == 1 and is_here(self.placement.hosts[0])

    @property
    def address(self) -> str:
        """Address of rank 0's host as all ranks can reach it."""
        return "127.0.0.1" if self.is_here else self.placement.hosts[0]

    @property
    def needs_hostfile(self) -> bool:
        """Whether the launcher must be told of other hosts."""
        return self.flavour is not None and not self.is_here

    def with_hostfile(self, folder: str) -> LaunchPlan:
        """Return this plan with its host file written into ``folder``; unchanged where none is needed."""
        if self.flavour is None or not self.needs_hostfile:
            return self
        pairs = zip(self.placement.hosts, self.placement.counts, strict=True)
        name = f"hosts-{self.flavour_name}".replace(" ", "-")
        path = write_lines(os.path.join(folder, name), (self.flavour.hostfile_line(*pair) for pair in pairs))
        return replace(self, hostfile=path)

    def prefix(self) -> list[str]:
        """Return the plain words in front of a program, without the shim: what ``DIST_LAUNCH`` holds."""
        if self.flavour is None:
            return [sys.executable, "-m", "ezpz.launch", "-n", str(self.placement.world_size), "--"]
        job = ["env", *(f"{name}={value}" for name, value in self.job.items())] if self.job else []
        return [*job, *self.flavour.command(self.exe, self.placement, self.hostfile)]

    def shared(self) -> dict[str, str]:
        """Return the variables that are equal on all ranks."""
        shared = {
            "MASTER_ADDR": self.master[0],
            "MASTER_PORT": str(self.master[1]),
            "TORCHELASTIC_RUN_ID": self.run_id,
            "EZPZ_PLACEMENT": self.placement.encode(),
            "EZPZ_FLAVOUR": self.flavour_name,
            **self.extra,
        }
        if self.flavour:
            shared.update(self.flavour.environment(self.placement))
        return shared

    def argv(self, command: list[str]) -> list[str]:
        """Return the launcher's whole command; the shim translates for the rank behind it."""
        if self.flavour is None:
            return command
        words = self.prefix()
        if "-x" in words:  # Open MPI on several hosts: ours must be named like the user's
            words += [
                word for name in self.shared() if not name.startswith(("OMPI_", "PRTE_")) for word in ("-x", name)
            ]
        return [*words, sys.executable, "-I", "-S", SHIM, *command]

    def rank_environment(self, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of one rank of the local flavour."""
        world = self.placement.world_size
        ranks = Ranks(rank, world, rank, world, 0, "contract")
        return {"OMP_NUM_THREADS": threads(world), **started_here(environ), **self.shared(), **rank_variables(ranks, 1)}

    def lines(self, command: list[str]) -> list[str]:
        """Return the lines that ``--dry-run`` shows; pasted into a shell they start the same ranks."""
        unset = ["env", *(word for name in CONTRACT if name in os.environ for word in ("-u", name))]
        if self.flavour is not None:
            shared = [f"{name}={value}" for name, value in self.shared().items()]
            return [shlex.join([*unset, *shared, *self.argv(command)])]
        lines = []
        for rank in range(self.placement.world_size):
            environment = self.rank_environment(rank, os.environ)
            new = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
            lines.append(shlex.join([*unset, *new, *command]) + " &")
        return [*lines, "wait"]


def choose(
    allocation: Allocation, placement: Placement, environ: Mapping[str, str], run: Run
) -> tuple[Flavour | None, str, str]:
    """Return the flavour, the path of its program and the reason.

    Inside a Slurm job its own srun; else the ``mpiexec`` on PATH when it says what it is; else, on this host alone, the
    local flavour.

    Raises:
        LaunchError: Several hosts and nothing that could start ranks on them.
    """
    path = environ.get("PATH")
    srun = shutil.which("srun", path=path) if allocation.scheduler == "slurm" else None
    if srun:
        return flavours.flavour("srun"), srun, f"srun of Slurm job {allocation.job_id}"
    mpiexec = shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)
    found = flavours.identify(run([mpiexec, "--version"]) or "") if mpiexec else None
    if mpiexec and found:
        return found, mpiexec, f"{mpiexec} on PATH"
    here = len(placement.hosts) == 1 and is_here(placement.hosts[0])
    told = f"{mpiexec} does not say which MPI it is" if mpiexec else "no mpiexec on PATH"
    if here:
        return None, "", told
    wanted = "srun" if allocation.scheduler == "slurm" else "an mpiexec of MPICH, Open MPI or Intel MPI"
    raise LaunchError(
        f"cannot start ranks on {', '.join(placement.hosts[:3])}: {told} (PATH={path}); expected {wanted}. "
        "Load the site's MPI module, or run on this host alone with `launch --hostfile` naming it."
    )


def is_here(host: str) -> bool:
    """Tell whether a host name means this host; names are compared by their first label."""
    return host.split(".", maxsplit=1)[0] in {os.uname().nodename.split(".")[0], "localhost", "127"}
