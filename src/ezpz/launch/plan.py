"""Hold the finished plan of one start: hosts, ranks, the line that starts them, and their variables, with reasons."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from types import MappingProxyType

from ezpz.cluster.probe import is_here
from ezpz.cluster.scheduler import RemoteShellAccess
from ezpz.cluster.scheduler import scheduler as find_scheduler
from ezpz.fields import Record, as_dict
from ezpz.files import state_folder
from ezpz.interpreter import module_line
from ezpz.launch.contract import (
    BY_LAUNCHER,
    LONGEST_VARIABLE,
    inherited,
    named_hosts,
    quoted,
    rank_variables,
    threads,
)
from ezpz.launch.cpu_binding import Binding, chosen_cpus
from ezpz.launch.flavours import LOCAL
from ezpz.launch.flavours.base import AGENT, AgentFlavour
from ezpz.launch.flavours.request import Flag, Order, Setting, words
from ezpz.launch.rank_variables import Communication
from ezpz.ranks import CONTRACT, FAMILIES, OF_ANY_MPI, UNREAD, Ranks
from ezpz.visible import shell_line

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from typing import Any, NoReturn

    from ezpz.cluster.devices import Devices
    from ezpz.cluster.scheduler import Scheduler
    from ezpz.cluster.site import Site
    from ezpz.launch.flavours.base import Flavour
    from ezpz.launch.launcher_choice import Choice
    from ezpz.launch.master import ListenAddress
    from ezpz.launch.placement import Placement

_HOST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host")  # pathlib costs 10 ms
SHIM = os.path.join(_HOST, "run_shim.py")
PAYLOAD = os.path.join(_HOST, "payload.py")
_MOST_NAMED = 64  # hosts in a line

_REMOTE = ("EZPZ_REMOTE_SHELL", "EZPZ_REMOTE_AS")  # without which `bin/remote_shell`, a word of a line, does nothing
_NOTHING: Mapping[str, Any] = MappingProxyType({})
BY_ENV = "--env"  # origin of variables that the user has given for the ranks alone
NO_MASTER = (Setting("127.0.0.1", "all ranks are here"), Setting("0", "not chosen yet"))


class Supervision(Record):
    """What a supervised run needs besides the plan of its ranks.

    Attributes:
        launch_id: Name of the launch, the same for each of its starts; ``outer/inner`` inside a rank of another launch.
        variables: Variables for all ranks.
        for_agents: Variables for agents and shims, which ranks do not see.
        agent_settings: What the launcher sends to each agent that connects.
        keeps_terminal: Whether the only rank gets the launcher's terminal, so that a debugger works in it.
        listening: Where the launcher listens for agents; None where it forks the only one.
    """

    launch_id: str = ""
    variables: Mapping[str, Setting] = _NOTHING
    for_agents: Mapping[str, str] = _NOTHING
    agent_settings: Mapping[str, Any] = _NOTHING
    keeps_terminal: bool = False
    listening: ListenAddress | None = None


class Context(Record):
    """What the plan was made from, for people.

    Attributes:
        devices: Devices of a host, where they were counted.
        device_counts: Devices of each host of the plan.
        hosts_origin: Where the hosts came from.
        notes: What the user should know before it starts.
        check: What is looked at before ranks begin, and who chose it.
        sampling: How often the hardware is sampled, and who chose it.
        save_at_end: Whether ranks are asked to save before the job ends, and who chose it.
    """

    devices: Devices | None = None
    device_counts: tuple[int, ...] = ()
    hosts_origin: str = ""
    notes: tuple[str, ...] = ()
    check: Setting = Setting("fast", "default")
    sampling: Setting = Setting("each 5 s", "default")
    save_at_end: Setting = Setting("on", "default")


class Chosen(Record):
    """What starts the ranks of a launch, and how: chosen once, for all of its starts.

    Attributes:
        choice: The launcher, and why.
        mpi: Whether ranks may start an MPI, and who says so (`ezpz.launch.launcher_choice.choose_mpi`).
        binding: CPUs of each local rank.
        communication: What the site wants of the ranks' environment.
        reach: Whether, and as whom, the scheduler's remote shell can be used.
        site: The machine, if it is known.
        launcher_args: ``--launcher-args``.
    """

    choice: Choice
    mpi: Setting = Setting("yes", "default")
    binding: Binding = Binding()
    communication: Communication = Communication({}, {}, {})
    reach: RemoteShellAccess = RemoteShellAccess()
    site: Site | None = None
    launcher_args: tuple[str, ...] = ()


class LaunchPlan:
    """Everything that is decided before the first process starts; it cannot be changed.

    `ezpz.launch.planning.PlanBuilder` makes one for each start. ``--dry-run``, ``--explain`` and ``--json`` print it,
    the supervisor starts it, and ``run.json`` records it.

    Args:
        placement: Ranks per host.
        chosen: What starts them; its fields are attributes of the plan.
        command: The program and its arguments.
        hostfile: Host file in the flavour's dialect; empty on one host.
        master: Address and port of the rendezvous, and who chose them.
        run_id: Unique name of this start.
        more: More variables for all ranks.
        supervision: What a supervised run needs besides; a line that is pasted by hand goes without it.
        job: The scheduler's variable that names the job, where this shell has none of them; else empty.
        environ: The environment of the launcher.
        context: What people want to know besides.
        scheduler: Whose job this is; one whose answers are all empty where there is no job.

    Attributes:
        address: Address of the rendezvous, and who chose it.
        port: Port of the rendezvous, and who chose it.
        portable: Variables that are equal on all ranks, each with who chose it, as far as a pasted line needs them.
        variables: The same with those of a supervised run.
    """

    __slots__ = (
        "address",
        "binding",
        "choice",
        "command",
        "communication",
        "context",
        "environ",
        "hostfile",
        "job",
        "launcher_args",
        "more",
        "mpi",
        "placement",
        "port",
        "portable",
        "reach",
        "run_id",
        "scheduler",
        "site",
        "supervision",
        "variables",
    )

    placement: Placement
    choice: Choice
    command: tuple[str, ...]
    mpi: Setting
    binding: Binding
    communication: Communication
    site: Site | None
    launcher_args: tuple[str, ...]
    hostfile: str
    address: Setting
    port: Setting
    run_id: str
    more: Mapping[str, Setting]
    supervision: Supervision
    reach: RemoteShellAccess
    job: Mapping[str, str]
    environ: Mapping[str, str]
    context: Context
    scheduler: Scheduler
    portable: Mapping[str, Setting]
    variables: Mapping[str, Setting]

    def __init__(
        self,
        placement: Placement,
        chosen: Chosen,
        command: tuple[str, ...] = (),
        *,
        hostfile: str = "",
        master: tuple[Setting, Setting] = NO_MASTER,
        run_id: str = "",
        more: Mapping[str, Setting] = _NOTHING,
        supervision: Supervision | None = None,
        job: Mapping[str, str] = _NOTHING,
        environ: Mapping[str, str] | None = None,
        context: Context | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        given = dict(locals())
        del given["self"]
        given |= as_dict(given.pop("chosen"))
        given["environ"] = os.environ if environ is None else environ
        given["address"], given["port"] = given.pop("master")
        given["context"] = context or Context()
        given["scheduler"] = scheduler or find_scheduler("")
        given["supervision"] = supervision or Supervision()
        for name, value in given.items():
            is_table = name in {"more", "job", "environ"}
            object.__setattr__(self, name, MappingProxyType(dict(value)) if is_table else value)
        object.__setattr__(self, "portable", MappingProxyType(self._portable()))
        object.__setattr__(self, "variables", MappingProxyType({**self._supervised(), **self.portable}))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name}: a LaunchPlan does not change; build another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name}: a LaunchPlan does not change")

    def _portable(self) -> dict[str, Setting]:
        variables = {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RUN_ID": Setting(self.run_id, "this launch"),
            "EZPZ_RUN_ID": Setting(self.run_id, "this launch"),
            "EZPZ_PLACEMENT": Setting(self.placement.encode(), "ranks per host"),
            "EZPZ_FLAVOUR": Setting(self.flavour_name, self.choice.reason),
            **self.more,
            **self.communication.settings,
        }
        if self.mpi.value == "no":
            asked = "--mpi no" if self.mpi.origin == "--mpi" else self.mpi.origin
            variables["EZPZ_NO_MPI"] = Setting(asked, "a rank that starts an MPI is ended")
        elif self.flavour is None or not self.flavour.gives_mpi:
            variables["EZPZ_NO_MPI"] = Setting("1", "no MPI starts these ranks")
        if "PYTHONFAULTHANDLER" not in self.environ:
            variables["PYTHONFAULTHANDLER"] = Setting("1", "a rank that crashes or hangs shows its Python stacks")
        if self.flavour:
            variables.update(self.flavour.environment(self.order()))
        if self.flavour and self._binds and self.binding.text != "none":
            variables["EZPZ_CPUS"] = Setting(":".join(self.binding.cpus) or self.binding.text, self.binding.origin)
        variables.update((name, setting) for name, setting in self.more.items() if setting.origin == BY_ENV)
        return variables

    def _supervised(self) -> dict[str, Setting]:
        line = shlex.join([*self.prefix(), *self.command])[:LONGEST_VARIABLE]
        return {
            "EZPZ_HOSTS": Setting(named_hosts(self.placement.hosts), "the plan"),
            "EZPZ_LAUNCH_CMD": Setting(line, "this launch"),
            **self.supervision.variables,
        }

    @property
    def flavour(self) -> Flavour | None:
        """The launcher's module; None for the local flavour."""
        return self.choice.flavour

    @property
    def flavour_name(self) -> str:
        """Name of the flavour as the user reads it."""
        return self.flavour.title if self.flavour else LOCAL

    @property
    def is_here(self) -> bool:
        """Whether all ranks run on this host."""
        return len(self.placement.hosts) == 1 and is_here(self.placement.hosts[0])

    @property
    def by_hosts(self) -> bool:
        """Whether the launcher starts an agent of ours on each host, which starts the ranks there."""
        return self.flavour is not None and self.flavour.starts_agents

    @property
    def agents(self) -> AgentFlavour:
        """The launcher's module where it starts agents of ours (`by_hosts`).

        Raises:
            TypeError: It starts none.
        """
        if not isinstance(self.flavour, AgentFlavour):
            raise TypeError(f"{self.flavour_name} starts no agents on other hosts")
        return self.flavour

    @property
    def forks(self) -> bool:
        """Whether an mpiexec or srun starts one agent of ours on each host, which forks the ranks there."""
        return self.mpi.value == "no" and self.flavour is not None and not self.flavour.starts_agents

    @property
    def started(self) -> Placement:
        """What the launcher itself starts on each host: ranks, or one agent."""
        return self.placement.of_agents() if self.forks else self.placement

    @property
    def _binds(self) -> bool:
        """Whether a shim or an agent of ours binds the ranks; ``auto`` no launcher does."""
        return self.flavour is not None and (self.forks or not self.flavour.binds or self.binding.text == "auto")

    @property
    def is_mpi(self) -> bool:
        """Whether an MPI starts the ranks, which one of them can make it abort."""
        return self.flavour is not None and self.flavour.is_mpi and not self.forks

    @property
    def tells_codes(self) -> bool:
        """Whether shims pass on how their ranks ended: the scheduler's accounting shows it, and prints nothing."""
        return self.flavour is not None and self.flavour.ends_ranks_itself

    def names_of_ranks(self) -> dict[str, tuple[bool, str]]:
        """Return by which names ranks see who they are, or do not: whether each is set, and by whom, or why not.

        Not those that a launcher may have for an MPI besides its own.
        """
        own = self.flavour.family if self.flavour and not self.forks else ""
        why = f"{self.flavour_name} starts the ranks"
        names = dict.fromkeys(UNREAD, (False, why))
        for family in FAMILIES:
            unset = [name for name in family.every_variable if not own or not name.startswith(OF_ANY_MPI)]
            names |= dict.fromkeys(unset, (False, why))
            if family.is_alike(self.environ):
                names |= dict.fromkeys(family.alike, (True, "the same rank, in a job of its scheduler"))
        for family in FAMILIES:
            if family.name == own:
                names |= dict.fromkeys(family.every_variable, (True, why))
        return {**dict.fromkeys(CONTRACT[:5], (True, "torchrun's contract")), **names}

    def order(self, carried: tuple[str, ...] = (), program: Sequence[str] = ()) -> Order:
        """Return what the flavour is asked to do."""
        site = self.site
        return Order(
            exe=self.choice.exe,
            placement=self.started,
            binding=self.binding,
            is_here=self.is_here,
            master=(self.address.value, int(self.port.value)),
            hostfile=self.hostfile,
            version=self.choice.version,
            carried=carried,
            environ=self.user_environment(),
            site_args=site.launcher_args if site and self.flavour and self.flavour.is_meant_by(site.launcher) else (),
            user_args=self.launcher_args,
            site=site.name if site else "",
            devices=self.context.device_counts,
            scheduler=self.scheduler,
            reach=self.reach,
            program=tuple(program or self.command),
            forked=self.placement.counts if self.forks else (),
        )

    def flags(self, carried: tuple[str, ...] = (), program: Sequence[str] = ()) -> list[Flag]:
        """Return the words in front of the program, with reasons.

        Args:
            carried: Variables that some launchers carry to other hosts only where their lines name them.
            program: What follows, which some lines repeat; the user's command by default.
        """
        if self.flavour is None:
            options = ["-n", str(self.placement.world_size), *["--oversubscribe"] * self.placement.oversubscribed]
            return [Flag((*module_line("ezpz.launch"), *options, "--"), "ranks are started by ezpz itself")]
        flags = [Flag((f"{name}={value}",), "the job of this host") for name, value in self.job.items()]
        if flags:
            flags.insert(0, Flag(("env",), "this shell has no variable of the job"))
        return [*flags, *self.flavour.command(self.order(carried, program))]

    def rank_flags(self) -> list[Flag]:
        """Return the words in front of our shims as the launch runs them, with reasons."""
        return self.flags((*self.variables, *self.supervision.for_agents))

    def prefix(self) -> list[str]:
        """Return the plain words in front of a program, without the shim: what ``DIST_LAUNCH`` holds.

        They work in a shell that has none of our variables.
        """
        if self.forks and self.flavour:  # bare, its words would start one process per host
            hosts = [] if self.is_here or len(self.placement.hosts) > _MOST_NAMED else ["--hosts", self._listed()]
            named = ["--flavour", self.flavour.name, "--mpi", "no", "-n", str(self.placement.world_size)]
            return [*module_line("ezpz.launch"), *named, *hosts, "--"]
        line = words(self.flags())
        variables = [f"{name}={self.portable[name].value}" for name in _REMOTE if name in self.portable]
        return ["env", *variables, *line[bool(self.job) :]] if variables else line

    def _listed(self) -> str:
        return ",".join(self.placement.hosts)

    def argv(self) -> list[str]:
        """Return the whole line that is run; the shim in it translates for the rank behind it."""
        return self._argv((*self.variables, *self.supervision.for_agents))

    def _argv(self, carried: tuple[str, ...]) -> list[str]:
        if self.flavour is None:
            return list(self.command)
        if self.by_hosts:
            return [*self.prefix(), *self.command]
        program = self._behind_shim()
        return [*words(self.flags(carried, program)), *program]

    def _behind_shim(self) -> list[str]:
        """Return the command after the shim or the agent, quoted where it holds words that the launcher would take for
        its own.
        """
        is_misread = self.flavour is not None and self.flavour.misreads(self.command)
        command = ["--quoted", *map(quoted, self.command)] if is_misread else self.command
        ours = [AGENT, BY_LAUNCHER] if self.forks else [SHIM]
        return [sys.executable, "-I", "-S", *ours, *command]

    def agent_line(self) -> Callable[..., list[str]]:
        """Return a function of a host's index, with the options of `AgentFlavour.agent_line`, which returns the line
        that starts the agent there.
        """
        return partial(self.agents.agent_line, self.order())

    def agent_variables(self) -> dict[str, str]:
        """Return the variables that these lines need."""
        return _values(self.agents.agent_variables(self.order()))

    def user_environment(self) -> dict[str, str]:
        """Return the user's environment as ranks get it: without leftovers, and without what is to be unset."""
        kept = inherited(self.environ)
        return {name: value for name, value in kept.items() if name not in self.communication.unset}

    def launcher_environment(self) -> dict[str, str]:
        """Return the environment of the program that starts our shims."""
        given = {**self.user_environment(), **_values(self.variables), **self.supervision.for_agents}
        misleading = self.flavour.misleading(self.order()) if self.flavour else ()
        return {name: value for name, value in given.items() if name not in misleading}

    def agent_environment(self) -> dict[str, str]:
        """Return the environment of an agent that starts the ranks of its host itself."""
        return {**self.user_environment(), **_values(self.variables), **self.supervision.for_agents}

    def rank_environment(self, rank: int) -> dict[str, str]:
        """Return the whole environment of one rank of the local flavour."""
        return self._rank_environment(rank, self.variables)

    def _rank_environment(self, rank: int, variables: Mapping[str, Setting]) -> dict[str, str]:
        world = self.placement.world_size
        ranks = Ranks(rank, world, rank, world, 0, "contract")
        environ = {"OMP_NUM_THREADS": threads(world), **self.user_environment(), **_values(variables)}
        return {**environ, **rank_variables(ranks, 1, environ)}

    def cpus(self, rank: int) -> list[int] | None:
        """Return the CPUs of one rank of the local flavour; None where it is not bound."""
        text = ":".join(self.binding.cpus) or self.binding.text
        if text == "none" or not hasattr(os, "sched_getaffinity"):  # macOS binds nothing
            return None
        cpus, misfit = chosen_cpus(text, os.sched_getaffinity(0), rank, self.placement.world_size)
        return None if misfit else cpus

    def lines(self) -> list[str]:
        """Return the lines that ``--dry-run`` prints; pasted into a shell they start the same ranks, unsupervised."""
        if self.by_hosts:
            return self._lines_by_host()
        if self.flavour is not None:
            misleading = self.flavour.misleading(self.order())
            kept = [name for name in self.user_environment() if name not in misleading]
            values = _values(self.portable).items()
            assigned = [f"{name}={value}" for name, value in values if value or name in self.environ]
            unset = self._unset({*kept, *self.portable})
            return [shell_line(["env", *unset, *assigned, *self._argv(tuple(self.portable))])]
        lines = []
        for rank in range(self.placement.world_size):
            environ = self._rank_environment(rank, self.portable)
            # All of the contract is in the line: it then works in another shell, too.
            assigned = [f"{name}={environ[name]}" for name in self._changed(environ, always=CONTRACT)]
            lines.append(shell_line(["env", *self._unset(environ), *assigned, *self.command]) + " &")
        return [*lines, "wait"]

    def _lines_by_host(self) -> list[str]:
        """Return a line per host; its payload is the environment of the shell where it is pasted: no secret shows.

        It goes into a file where nothing passes it on, for as long as the lines run.
        """
        environ = {**self.user_environment(), **_values(self.portable), "EZPZ_STDIN": "none"}
        assigned = [f"{name}={environ[name]}" for name in self._changed(environ)]
        payload = ["env", *self._unset(environ), *assigned, sys.executable, "-I", "-S", PAYLOAD, *self.command]
        line = self.agent_line()
        hosts = range(len(self.placement.hosts))
        if self.agents.carries_input:
            return [*(f"{shell_line(payload)} | {shell_line(line(index))} &" for index in hosts), "wait"]
        folder = state_folder(self.environ)[0] or os.getcwd()
        file = os.path.join(folder, f"agents-{self.run_id}")
        quoted_file = shell_line([file])
        variables = [f"{name}={value}" for name, value in self.agent_variables().items()]
        env = ["env", *variables] if variables else []
        starts = [
            f"{shell_line(line(index))} < {quoted_file} &"
            if is_here(self.placement.hosts[index])
            else f"{shell_line([*env, *line(index, payload=file)])} &"
            for index in hosts
        ]
        return [
            f"{shell_line(['mkdir', '-p', folder])} && (umask 077; {shell_line(payload)} > {quoted_file})",
            *starts,
            "wait",
            f"rm -f {quoted_file}",
        ]

    def _unset(self, environ: Container[str]) -> list[str]:
        """Return the words of ``env`` that take away what a shell has and ranks do not get."""
        return [word for name in self.environ if name not in environ for word in ("-u", name)]

    def _changed(self, environ: Mapping[str, str], always: Container[str] = ()) -> list[str]:
        """Return the variables to assign: those that differ from the shell's, and ``always`` these."""
        return [name for name, value in environ.items() if name in always or self.environ.get(name, "") != value]


def _values(variables: Mapping[str, Setting]) -> dict[str, str]:
    return {name: setting.value for name, setting in variables.items()}
