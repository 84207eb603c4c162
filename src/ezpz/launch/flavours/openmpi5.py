"""Open MPI 5, whose process manager is PRRTE; measured with 5.0.11.

    $ mpiexec --version
    mpiexec (Open MPI) 5.0.11

Host file: ``n01 slots=2`` per line. Remote ranks get only the variables that ``-x`` names. Open MPI binds a rank to one
core by default, which would put all its threads there, and refuses root and more ranks than cores by default. It gives
ranks a pseudo-terminal for stdout, so that a program behind a pipe or in a job's log believes it may use colour. It
puts its own libraries first on the ranks' LD_LIBRARY_PATH, on other hosts also its programs on PATH.
"""

from __future__ import annotations

import os
import re

from ezpz.launch.contract import kept_paths
from ezpz.launch.flavours.base import MpiFlavour
from ezpz.launch.flavours.request import Flag, Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ezpz.launch.flavours.request import Order

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")
_TAKEN = re.compile(r"[A-Za-z_]\w*\Z")  # an exported bash function is no name that -x takes
_SHIELDED = os.path.abspath(f"{__file__}/../../../bin/shielded")
# What Open MPI carries itself, and what is true of one host only.
_OWN = re.compile(r"(OMPI_|PMIX_|PRTE_|ORTE_|SLURM|(HOSTNAME|PWD|OLDPWD|SHLVL|_)\Z)")


class OpenMpi5(MpiFlavour):
    """The mpiexec of Open MPI 5 and newer."""

    name = "openmpi5"
    title = "Open MPI 5"
    family = "openmpi"
    sorts_hosts = False
    remote_choices = ("PRTE_MCA_plm", "--prtemca", "--mca")
    # It would take component 0 of a heterogeneous job of Slurm for all that there is.
    shell_forced = "--prtemca ras ^slurm --prtemca plm ssh"
    # The daemons stay in the scheduler's task, as its accounting and its signals need it.
    shell_options = "--prtemca prte_leave_session_attached 1 --prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_agent"
    # Its daemon on each host, a task of srun, ends of Slurm's SIGTERM and kills its ranks within a moment.
    daemon = ("PRTE_MCA_prte_launch_agent", "prted")
    root_switches: tuple[str, ...] = (  # without them root is refused
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    )

    def recognises(self, text: str) -> bool:
        """Tell whether ``--version`` names Open MPI 5 or newer."""
        match = _VERSION.search(text)
        return match is not None and int(match[1]) >= 5

    def command(self, order: Order) -> list[Flag]:
        """Return ``mpiexec -n 2 --map-by slot:OVERSUBSCRIBE --bind-to none``, with the hosts and ``-x NAME`` on
        several.
        """
        flags = [
            Flag((order.exe,), "launcher"),
            Flag(("-n", str(order.placement.world_size)), order.placement.origin),
            Flag(("--map-by", "slot:OVERSUBSCRIBE"), "blocks of ranks, as many as were planned"),
            Flag(("--bind-to", "none"), "it would put all threads of a rank on one core"),
        ]
        if order.hostfile:
            flags.append(Flag(("--hostfile", order.hostfile), "hosts, and ranks on each"))
            flags += _forwarded(order)
            flags += self.remote_flags(order)
        return [*flags, *order.tail()]

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the user's paths, the switches for root, who is meant in a container, and the truth about colour."""
        why = f"the user's, which {self.title} changes"
        settings = {name: Setting(value, why) for name, value in kept_paths(order.environ).items()}
        settings |= super().environment(order)
        variable, program = self.daemon
        signals = order.hostfile and order.scheduler.signalling_daemon and variable not in order.environ
        if signals and not re.search(r"\s", _SHIELDED):  # it is split into words
            settings[variable] = Setting(f"{_SHIELDED} {program}", f"{order.scheduler.title} signals its daemons")
        if os.geteuid() == 0:
            settings |= dict.fromkeys(self.root_switches, Setting("1", "this user is root"))
        if not os.isatty(1) and "FORCE_COLOR" not in order.environ:
            settings["NO_COLOR"] = Setting("1", "stdout is no terminal, although Open MPI shows ranks one")
        return settings

    def not_carried(self, names: Iterable[str]) -> list[str]:
        """Return the names that ``-x`` does not take: exported functions of bash, names with dots and dashes."""
        return sorted(name for name in names if not _TAKEN.match(name) and not _OWN.match(name))

    def hostfile_line(self, host: str, count: int) -> str:
        """Return ``n01 slots=2``."""
        return f"{host} slots={count}"


def _forwarded(order: Order) -> list[Flag]:
    """Return ``-x NAME`` for every variable of the user and of ours: remote ranks get no others."""
    names = sorted(name for name in {*order.environ, *order.carried} if _TAKEN.match(name) and not _OWN.match(name))
    return [Flag(tuple(word for name in names for word in ("-x", name)), "variables that ranks on other hosts get")]


FLAVOUR = OpenMpi5()
