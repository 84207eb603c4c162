"""Describe a kind of launcher: the questions that all of `ezpz.launch` asks of one, with the ordinary answers."""

from __future__ import annotations

import os
import shlex
import sys

from ezpz.errors import UsageError
from ezpz.files import find_program
from ezpz.interpreter import module_line
from ezpz.launch.flavours.request import Flag, Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.cluster.scheduler import RemoteShellAccess, Scheduler
    from ezpz.launch.flavours.request import Order

AGENT = os.path.abspath(f"{__file__}/../../host/start_agent.py")  # starts the agent of a host
# Takes ssh's arguments and does what EZPZ_REMOTE_SHELL says.
REMOTE_SHELL = os.path.abspath(f"{__file__}/../../../bin/remote_shell")


class Flavour:
    """One kind of launcher; each file beside this one holds an instance of a class of its own, called ``FLAVOUR``.

    Attributes:
        name: For ``--flavour`` and site tables, e.g. ``openmpi5``; also the name of its file.
        title: What the user reads, e.g. ``Open MPI 5``.
        family: Whose variables tell its ranks who they are (`ezpz.ranks.FAMILIES`); empty where it has none of its own.
        binds: Whether it binds ranks to CPUs itself; else the shim in front of a rank does.
        is_mpi: Whether it is the ``mpiexec`` of an MPI, which one rank can make abort all the others.
        gives_mpi: Whether an MPI that is started in its ranks finds them all.
        tells_version: Whether ``EXE --version`` is asked before its line is written.
        ends_ranks_itself: Whether it is to learn how ranks ended: the scheduler's accounting shows it, and it ends them
            silently.
        sets_masks: Whether it sets the masks of devices anew for each rank, to all that the job has.
        starts_agents: Whether it starts an agent of ours on each host, which starts the ranks there (`AgentFlavour`).
        by_scheduler: Whether it works by the scheduler's remote shell alone.
        may_start_agents: Whether its own line can start one agent per host in place of the ranks (``--mpi no``).
        per_rank: Pattern of how words for it begin that give each rank a part of its host.
    """

    name = ""
    title = ""
    family = ""
    binds = False
    is_mpi = False
    gives_mpi = True
    tells_version = False
    ends_ranks_itself = False
    sets_masks = False
    starts_agents = False
    by_scheduler = False
    may_start_agents = False
    per_rank = r"--?(bind-to|map-by|rank-by|cpu-set|cpu-bind)\b"

    def program(self, environ: Mapping[str, str]) -> str:
        """Return the path of its program; empty where there is none."""
        return find_program(self.name, environ.get("PATH"))

    def recognises(self, text: str) -> bool:
        """Tell whether an ``mpiexec`` that prints this to ``--version`` or ``--help`` is of this kind."""
        del text
        return False

    def is_meant_by(self, launcher: str) -> bool:
        """Tell whether the table of a site means it: by its name, with or without the version."""
        return launcher in {self.name, self.name.rstrip("0123456789")}

    def misreads(self, command: Sequence[str]) -> bool:
        """Tell whether it would take words of a program's command line for its own."""
        return ":" in command

    def command(self, order: Order) -> list[Flag]:
        """Return the words in front of the program, each with its reason.

        Raises:
            LaunchError: It cannot place ranks in this way.
            UsageError: The user's own options for it are unusable.
        """
        raise NotImplementedError

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the variables that the launcher itself needs, each with its reason."""
        del order
        return {}

    def not_carried(self, names: Iterable[str]) -> list[str]:
        """Return which of the user's variables it cannot carry to other hosts by their names."""
        del names
        return []

    def misleading(self, order: Order) -> tuple[str, ...]:
        """Return the variables of the job that contradict its line; it is started without them."""
        del order
        return ()

    def for_each_rank(self, words: Sequence[str]) -> str:
        """Return the first of the words for it that gives each rank a part of its host, which an agent would then have
        alone; empty without one.
        """
        import re

        for at, word in enumerate(words):
            if re.match(self.per_rank, word) and "none" not in {word.partition("=")[2], *words[at + 1 : at + 2]}:
                return word
        return ""

    def hostfile_line(self, host: str, count: int) -> str:
        """Return the line of its host file for one host and its ranks."""
        del count
        return host

    def failed_hosts(self, words: str) -> tuple[str, ...]:
        """Return the hosts of which its own words say that the scheduler has given them up."""
        del words
        return ()

    def job_lost_a_host(self, words: str) -> bool:
        """Tell whether its own words say that the scheduler has ended the job because of a host, whichever it is."""
        del words
        return False


class AgentFlavour(Flavour):
    """A way to start an agent of ours on each host, which starts the ranks there.

    Attributes:
        carries_input: Whether it passes its input on to the agent; else the agent reads its payload from a file.
        way: What starts the agents, for people.
    """

    gives_mpi = False
    starts_agents = True
    carries_input = True
    way = ""

    def command(self, order: Order) -> list[Flag]:
        """Return ``python3 -m ezpz.launch --flavour ssh -n 3 --hostfile FILE --``: no program but ours starts ranks
        so.
        """
        why = f"ezpz starts an agent per host with {self.way}"
        flags = [
            Flag((*module_line("ezpz.launch"), "--flavour", self.name), why),
            Flag(("-n", str(order.placement.world_size)), order.placement.origin),
        ]
        if order.hostfile:
            flags.append(Flag(("--hostfile", order.hostfile), "hosts, and ranks on each"))
        if order.user_args:
            flags.append(Flag((f"--launcher-args={shlex.join(order.user_args)}",), "--launcher-args"))
        return [*flags, Flag(("--",), "the program follows")]

    def hostfile_line(self, host: str, count: int) -> str:
        """Return ``n01:2``."""
        return f"{host}:{count}"

    def agent(self, index: int, payload: str = "") -> list[str]:
        """Return the command line of the agent itself; without a file it reads its payload from its input."""
        return [sys.executable, "-I", "-S", AGENT, str(index), *([payload] if payload else [])]

    def agent_line(self, order: Order, index: int, *, log: str = "", payload: str = "") -> list[str]:
        """Return the command line that starts the agent of one host.

        Args:
            order: Hosts, program and the user's options.
            index: Which host.
            log: File for the launcher's own messages, apart from those of the ranks; empty for none.
            payload: File of the payload, for agents that get no input.
        """
        raise NotImplementedError

    def agent_variables(self, order: Order) -> Mapping[str, Setting]:
        """Return the variables that this command line needs."""
        del order
        return {}

    def meaning(self, code: int, payload: str) -> str:
        """Return what it means that the command line ended with a code before its agent reported; empty where
        nothing is known.
        """
        del code, payload
        return ""


class MpiFlavour(Flavour):
    """The ``mpiexec`` of an MPI, which is known by what it prints and not by its name.

    Attributes:
        sorts_hosts: Whether it numbers ranks in the scheduler's order of hosts where the scheduler starts its daemons.
        bootstrap_option: Names to a relative of Hydra the scheduler that starts its daemons; empty for other MPIs.
        shell_options: Words in front of a program that starts its daemons and is called as ssh is.
        shell_forced: Words in front of these that keep it from a way of its own through the scheduler.
        remote_choices: How variables and options begin by which users say themselves how its daemons are started.
    """

    is_mpi = True
    may_start_agents = True
    sorts_hosts = True
    bootstrap_option = ""
    shell_options = ""
    shell_forced = ""
    remote_choices: tuple[str, ...] = ()

    def remote_flags(self, order: Order) -> list[Flag]:
        """Return the options by which its daemons are started on other hosts; none where it finds out by itself.

        That is the scheduler as far as the MPI knows it, else a program of ours that has the scheduler start a command
        on one host.
        """
        if order.placement.parts and order.scheduler.component_option and not self._is_chosen(order):
            raise UsageError(
                f"{self.title} cannot start ranks in several components of a heterogeneous job (from --hosts or "
                f"--hostfile): it knows of none. Use `--flavour {order.scheduler.own_launcher}`, or name hosts of one "
                "component with `--hosts LIST`."
            )
        why = f"{order.scheduler.title} reaches the hosts"
        if self._needs_shell(order):
            forced = self.shell_forced if self._is_misled(order) else ""
            return [Flag((*forced.split(), *self.shell_options.split(), REMOTE_SHELL), why)]
        known = order.scheduler.bootstrap if order.hostfile and not self._is_chosen(order) else ""
        return [Flag((self.bootstrap_option, known), why)] if known and self.bootstrap_option else []

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the scheduler's words for the program of `remote_flags`."""
        if not self._needs_shell(order):
            return {}
        return remote_settings(order, f"{order.scheduler.title} starts the daemons of {self.title}")

    def _needs_shell(self, order: Order) -> bool:
        around = order.scheduler
        if not order.hostfile or not around.remote_shell or order.reach.problem or self._is_chosen(order):
            return False
        return not around.bootstrap or self._is_misled(order)

    def _is_misled(self, order: Order) -> bool:
        """Tell whether it would go wrong where the scheduler starts its daemons in a way that it knows itself."""
        # No MPI knows of components of a job: those that it has the scheduler start are looked for in component 0.
        is_sorted = self.sorts_hosts and not order.placement.is_ordered
        return is_sorted or bool(order.placement.component)

    def _is_chosen(self, order: Order) -> bool:
        return self.starts_as_told((*order.environ, *order.site_args, *order.user_args))

    def starts_as_told(self, words: Iterable[str]) -> bool:
        """Tell whether names of variables and options say how its daemons are to be started."""
        return any(word.startswith(self.remote_choices) for word in words)

    def hostfile_line(self, host: str, count: int) -> str:
        """Return ``n01:2``, as all relatives of Hydra read it."""
        return f"{host}:{count}"


def remote_settings(order: Order, why: str, more: Sequence[str] = ()) -> dict[str, Setting]:
    """Return the variables by which `REMOTE_SHELL` has the scheduler start a command on another host.

    Variables of the job that are secret are none of them: it takes these itself, from a process of the job.

    Args:
        order: The scheduler, and how it can be used.
        why: What is started.
        more: Words of the user for the scheduler's program.
    """
    component = order.placement.component
    chosen = [f"{order.scheduler.component_option}={component}"] if component else []
    none_of_it = "this shell is none of the job: a process of it, and what it has"
    origins = {"EZPZ_REMOTE_SHELL": why, "EZPZ_REMOTE_AS": none_of_it}
    variables = remote_variables(order.scheduler, order.reach, chosen, more)
    return {name: Setting(value, origins[name]) for name, value in variables.items()}


def remote_variables(
    scheduler: Scheduler, reach: RemoteShellAccess, chosen: Sequence[str] = (), more: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables by which `REMOTE_SHELL` has a scheduler start a command on another host.

    Args:
        scheduler: The scheduler.
        reach: Whether, and as whom, its remote shell can be used.
        chosen: Words for its program in front of the usual ones.
        more: Words behind them.
    """
    program, *options = scheduler.remote_shell
    variables = {"EZPZ_REMOTE_SHELL": " ".join([program, *chosen, *options, *more])}
    if reach.process:
        variables["EZPZ_REMOTE_AS"] = ",".join([str(reach.process), *scheduler.remote_needs])
    return variables
