"""The plan of one launch: placement, flavour, the line to run, the variables of the ranks, and a reason for each of them."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ezpz.cluster.probe import is_here
from ezpz.launch.binding import Binding, parse_cpus, share
from ezpz.launch.contract import inherited, quoted, rank_variables, started_here, threads
from ezpz.launch.flavours import FLAVOURS, MPI_FLAVOURS
from ezpz.launch.flavours.request import Flag, Order, Setting, words
from ezpz.launch.folder import write_lines
from ezpz.launch.settings import Communication
from ezpz.ranks import CONTRACT, Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.site import Site
    from ezpz.launch.choice import Choice
    from ezpz.launch.flavours import Flavour
    from ezpz.launch.placement import Placement

__all__ = ["LaunchPlan"]

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host", "shim.py")  # pathlib costs 10 ms


@dataclass(frozen=True)
class LaunchPlan:
    """All that is decided before anything starts.

    Attributes:
        placement: Ranks per host.
        choice: The launcher, and why.
        binding: CPUs of each local rank.
        communication: What the site wants of the ranks' environment.
        site: The machine, if it is known.
        user_args: ``--launcher-args``.
        hostfile: Host file in the flavour's dialect; empty on one host.
        master: Address and port of the rendezvous, and who chose them.
        run_id: Unique name of this launch.
        extra: More variables for all ranks.
        job: The scheduler's variable that names the job, where this shell has none of them; else empty.
        environ: The environment of the launcher.
    """

    placement: Placement
    choice: Choice
    binding: Binding = field(default_factory=Binding)
    communication: Communication = field(default_factory=lambda: Communication({}, {}, {}))
    site: Site | None = None
    user_args: tuple[str, ...] = ()
    hostfile: str = ""
    master: tuple[Setting, Setting] = (Setting("127.0.0.1", "all ranks are here"), Setting("0", "not chosen yet"))
    run_id: str = ""
    extra: Mapping[str, Setting] = field(default_factory=dict)
    job: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def flavour(self) -> Flavour | None:
        """The launcher's module; None for the local flavour."""
        return self.choice.flavour

    @property
    def flavour_name(self) -> str:
        """Name of the flavour as the user reads it."""
        return self.flavour.NAME if self.flavour else "local"

    @property
    def is_here(self) -> bool:
        """Whether all ranks run on this host."""
        return len(self.placement.hosts) == 1 and is_here(self.placement.hosts[0])

    @property
    def by_hosts(self) -> bool:
        """Whether each host has a leader of ours, which starts its ranks."""
        return self.flavour_name == "ssh"

    @property
    def needs_hostfile(self) -> bool:
        """Whether the launcher must be told of other hosts."""
        return self.flavour is not None and not self.is_here

    @property
    def is_mpi(self) -> bool:
        """Whether an MPI starts the ranks, which one of them can make it abort."""
        return bool(self.flavour) and getattr(self.flavour, "__name__", "").rpartition(".")[2] in MPI_FLAVOURS

    @property
    def tells_codes(self) -> bool:
        """Whether the launcher is to learn how ranks ended: accounting of the scheduler shows it, and it stays silent about it."""
        return self.flavour_name in {"srun", "flux"}

    def and_settings(self, more: Mapping[str, Setting]) -> LaunchPlan:
        """Return this plan with more variables for all ranks."""
        return replace(self, extra={**self.extra, **more})

    def order(self, carried: tuple[str, ...] = ()) -> Order:
        """Return what the flavour is asked to do."""
        site = self.site
        return Order(
            exe=self.choice.exe,
            placement=self.placement,
            binding=self.binding,
            is_here=self.is_here,
            master=(self.master[0].value, int(self.master[1].value)),
            hostfile=self.hostfile,
            version=self.choice.version,
            carried=carried,
            environ=self.kept(),
            site_args=site.launcher_args if site and self.flavour and self._is_sites_launcher(site) else (),
            user_args=self.user_args,
            site=site.name if site else "",
        )

    def _is_sites_launcher(self, site: Site) -> bool:
        module = self.flavour.__name__.rpartition(".")[2] if self.flavour else "local"  # type: ignore[attr-defined]  # a module has a name
        return module.startswith(site.launcher) and bool(site.launcher)

    def with_hostfile(self, folder: str) -> LaunchPlan:
        """Return this plan with its host file written into ``folder``; unchanged where none is needed."""
        if self.flavour is None or not self.needs_hostfile:
            return self
        pairs = zip(self.placement.hosts, self.placement.counts, strict=True)
        name = f"hosts-{self.flavour_name}".replace(" ", "-")
        path = write_lines(os.path.join(folder, name), (self.flavour.hostfile_line(*pair) for pair in pairs))
        return replace(self, hostfile=path)

    def flags(self, *, ranks: bool = False) -> list[Flag]:
        """Return the words in front of a program, with reasons; those that only concern our shims with ``ranks``."""
        if self.flavour is None:
            wish = ["-n", str(self.placement.world_size), *["--oversubscribe"] * self.placement.oversubscribed]
            return [Flag((sys.executable, "-m", "ezpz.launch", *wish, "--"), "ranks are started by ezpz itself")]
        flags = [Flag((f"{name}={value}",), "the job of this host") for name, value in self.job.items()]
        if flags:
            flags.insert(0, Flag(("env",), "this shell has no variable of the job"))
        return [*flags, *self.flavour.command(self.order(tuple(self.shared()) if ranks else ()))]

    def prefix(self) -> list[str]:
        """Return the plain words in front of a program, without the shim: what ``DIST_LAUNCH`` holds."""
        return words(self.flags())

    def notes(self) -> tuple[str, ...]:
        """Return what speaks against this plan."""
        site = self.site
        if site is None:
            return ()
        against = [
            f"site {site.name} advises against {word} (from --launcher-args)"
            for word in self.user_args
            if word.split("=", 1)[0] in site.launcher_forbids
        ]
        if site.launcher and site.launcher not in {*FLAVOURS, "openmpi"}:
            against.append(
                f"site {site.name} advises {site.launcher}, which ezpz does not start; {self.flavour_name} is used"
            )
        return tuple(against)

    def settings(self) -> dict[str, Setting]:
        """Return the variables that are equal on all ranks, each with who chose it."""
        told = {
            "MASTER_ADDR": self.master[0],
            "MASTER_PORT": self.master[1],
            "TORCHELASTIC_RUN_ID": Setting(self.run_id, "this launch"),
            "EZPZ_RUN_ID": Setting(self.run_id, "this launch"),
            "EZPZ_PLACEMENT": Setting(self.placement.encode(), "ranks per host"),
            "EZPZ_FLAVOUR": Setting(self.flavour_name, self.choice.reason),
            **self.extra,
            **self.communication.settings,
        }
        if "PYTHONFAULTHANDLER" not in self.environ:
            told["PYTHONFAULTHANDLER"] = Setting("1", "a rank that crashes or hangs shows its Python stacks")
        if self.flavour:
            told.update(self.flavour.environment(self.order()))
        if self.flavour and (self.binding.text == "auto" or (self.binding.cpus and not self.flavour.BINDS)):
            told["EZPZ_CPUS"] = Setting(":".join(self.binding.cpus) or "auto", self.binding.origin)
        return told

    def shared(self) -> dict[str, str]:
        """Return the variables that are equal on all ranks."""
        return {name: setting.value for name, setting in self.settings().items()}

    def kept(self) -> dict[str, str]:
        """Return the user's environment as ranks get it: without leftovers, and without what is to be unset."""
        kept = inherited(self.environ)
        return {name: value for name, value in kept.items() if name not in self.communication.unset}

    def argv(self, command: list[str]) -> list[str]:
        """Return the launcher's whole command; the shim translates for the rank behind it."""
        if self.flavour is None:
            return command
        if self.by_hosts:
            return [*self.prefix(), *command]
        return [*words(self.flags(ranks=True)), *self.behind(command)]

    def behind(self, command: list[str]) -> list[str]:
        """Return the command with the shim in front of it; words that mpiexec would take for its own are written in another way."""
        odd = ":" in command or (self.flavour_name == "torchrun" and any("$" in word for word in command))
        return [sys.executable, "-I", "-S", SHIM, *(["--quoted", *map(quoted, command)] if odd else command)]

    def rank_environment(self, rank: int) -> dict[str, str]:
        """Return the whole environment of one rank of the local flavour."""
        world = self.placement.world_size
        ranks = Ranks(rank, world, rank, world, 0, "contract")
        return {
            "OMP_NUM_THREADS": threads(world),
            **started_here(self.kept()),
            **self.shared(),
            **rank_variables(ranks, 1),
        }

    def cpus(self, rank: int) -> list[int] | None:
        """Return the CPUs of one rank of the local flavour; None where nobody binds it."""
        if self.binding.cpus:
            return parse_cpus(self.binding.cpus[rank])
        if self.binding.text == "auto" and hasattr(os, "sched_getaffinity"):  # macOS binds nothing
            return share(os.sched_getaffinity(0), rank, self.placement.world_size)
        return None

    def lines(self, command: list[str]) -> list[str]:
        """Return the lines that ``--dry-run`` shows; pasted into a shell they start the same ranks."""
        gone = [name for name in (*CONTRACT, *self.communication.unset) if name in self.environ]
        unset = ["env", *(word for name in gone for word in ("-u", name))]
        if self.by_hosts:
            return self._lines_by_host(command)
        if self.flavour is not None:
            shared = [f"{name}={value}" for name, value in self.shared().items()]
            return [shlex.join([*unset, *shared, *self.argv(command)])]
        lines = []
        for rank in range(self.placement.world_size):
            environment = self.rank_environment(rank)
            new = [f"{name}={value}" for name, value in environment.items() if self.environ.get(name) != value]
            lines.append(shlex.join([*unset, *new, *command]) + " &")
        return [*lines, "wait"]

    def _lines_by_host(self, command: list[str]) -> list[str]:
        """Return a line per host: the parcel takes the environment from the shell where it is pasted, and no secret is shown."""
        from ezpz.launch.flavours.ssh import PARCEL, leader_line

        environ = {**started_here(self.kept()), **self.shared(), "EZPZ_STDIN": "none"}
        gone = [word for name in self.environ if name not in environ for word in ("-u", name)]
        new = [f"{name}={value}" for name, value in environ.items() if self.environ.get(name) != value]
        parcel = shlex.join(["env", *gone, *new, sys.executable, "-I", "-S", PARCEL, *command])
        order = self.order()
        hosts = range(len(self.placement.hosts))
        return [*(f"{parcel} | {shlex.join(leader_line(order, index))} &" for index in hosts), "wait"]
