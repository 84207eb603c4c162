"""The four MPI flavours, one venv each: a Python that sees torch and ezpz beside that flavour's ``mpiexec``."""

from __future__ import annotations

import sys
from pathlib import Path

from lab import process

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("mpich", "openmpi", "openmpi4", "impi")
AS_ROOT = {
    "openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    "openmpi4": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
}


def base_bin():
    """The folder of the Python that runs the tests; .test/venv holds no mpiexec."""
    return Path(sys.executable).parent


def remote(hosts):
    """Variables that make every MPI reach the lab's hosts by the stand-in for ssh."""
    names = ("HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
    return {"HYDRA_LAUNCHER": "ssh", **dict.fromkeys(names, str(hosts.rsh))}


class Flavour:
    """One flavour: `name`, `bin` (folder with mpiexec), `python` (sees torch and ezpz), `mpiexec` (its path)."""

    def __init__(self, name, home=None, tag=None):
        self.name, self.home, self.tag = name, home, tag
        self.bin = ROOT / ".test" / "mpi" / name / "bin"
        self.python = self.bin / "python3"
        self.mpiexec = self.bin / "mpiexec"

    def problem(self):
        if (self.bin.parent / ".stamp").exists():
            return None
        return f"no {self.bin.parent.relative_to(ROOT)} (tests/lab/setup venv mpi makes it)"

    def env(self, **more):
        """A clean environment in which `mpiexec` and `python3` are this flavour's."""
        return {**process.minimal_env(self.home, self.tag, self.bin, base_bin()), **more}

    def bare_env(self, **more):
        """The same for a bare ``mpiexec``, with the switches that Open MPI wants from root. Not for `ezpz launch`."""
        return self.env(**AS_ROOT.get(self.name, {}), **more)

    def command(self, ranks, args, *, hosts=(), rsh=None):
        """A bare mpiexec line (run it with `bare_env`): `ranks` on this host, or spread evenly over lab `hosts`."""
        start = [str(self.mpiexec), "-n", str(ranks)]
        per_host = -(-ranks // len(hosts)) if hosts else ranks
        if self.name.startswith("openmpi"):
            return [*start, *self._openmpi(hosts, per_host, rsh), *map(str, args)]
        return [*start, *self._hydra(hosts, per_host, rsh), *map(str, args)]

    def _openmpi(self, hosts, per_host, rsh):
        if not hosts:
            return ["--oversubscribe"] if self.name == "openmpi4" else ["--map-by", ":OVERSUBSCRIBE"]
        where = ["--host", ",".join(f"{host}:{per_host}" for host in hosts)]
        if self.name == "openmpi4":
            return [*where, "--prefix", str(self.bin.parent), "--mca", "plm_rsh_agent", str(rsh)]
        return [*where, "--prefix", str(self.bin.parent), "--prtemca", "plm_ssh_agent", str(rsh)]

    def _hydra(self, hosts, per_host, rsh):
        # Without hosts: never let leftovers of a scheduler choose how processes start.
        launcher = ["-launcher", "ssh", "-launcher-exec", str(rsh)] if hosts else ["-launcher", "fork"]
        return [*launcher, *(["-hosts", ",".join(hosts), "-ppn", str(per_host)] if hosts else [])]
