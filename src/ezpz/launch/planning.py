"""Build the plan of a launch from what was surveyed: choose the launcher, the binding and the variables."""

from __future__ import annotations

import os
import shlex
import sys
from types import MappingProxyType
from zlib import crc32

from ezpz.cluster import probe
from ezpz.cluster.administrator import default
from ezpz.cluster.devices import devices_on
from ezpz.cluster.launchers import NOT_STARTED
from ezpz.cluster.probe import is_here
from ezpz.cluster.scheduler import RemoteShellAccess
from ezpz.errors import MachineError
from ezpz.files import find_program, private_folder, write_lines
from ezpz.interpreter import script_of
from ezpz.launch.contract import packed
from ezpz.launch.cpu_binding import by_agents, choose_binding, chosen_cpus
from ezpz.launch.device_choice import mask_settings
from ezpz.launch.flavours import LOCAL
from ezpz.launch.flavours.base import AgentFlavour, MpiFlavour
from ezpz.launch.flavours.request import Setting
from ezpz.launch.launcher_choice import choose, choose_mpi
from ezpz.launch.plan import BY_ENV, NO_MASTER, Chosen, Context, LaunchPlan, Supervision
from ezpz.launch.rank_variables import (
    communication,
    flight_recorder,
    has_input,
    is_off,
    last_collectives,
    piped,
    sampling,
    without_devices,
)
from ezpz.local_socket import address

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.cluster import Site
    from ezpz.cluster.scheduler import Scheduler
    from ezpz.launch.master import ListenAddress, Rendezvous
    from ezpz.launch.options import LaunchOptions
    from ezpz.launch.placement import Placement
    from ezpz.launch.survey import Survey

_CONTAINERS = ("apptainer", "singularity")
_CLEANS = ("--cleanenv", "--containall", "-e", "-C")
_PARTING = 30.0  # seconds: Slurm's own KillWait, unless its slurm.conf says another
_SHARED_ID = 8  # characters of the id that all attempts of a launch have, as the name of its folder does
_LOADED = 3.0  # seconds until ranks are looked at that nothing may connect: shorter runs cost nothing more
_STARTED = 3.0  # seconds until somebody looks whether the program says what to save
_STAGES_OF_EACH = 4096  # ranks: in a larger world, run.json has the stages of hosts alone


class PlanBuilder:
    """Collects what is decided once per launch, and builds a finished plan for each of its starts.

    Attributes:
        survey: Hosts, devices, site and placement.
        options: What the user asked for.
        environ: The environment of the launcher.
        stays: Whether agents stay for worlds that are begun on them, instead of starting ranks.
        launch_id: Name of the launch, the same for each of its starts; ``outer/inner`` inside a rank of another launch.
        is_here: Whether all ranks run on this host.
        check: What is looked at before ranks begin (``--check``), and who chose it.
        save_at_end: ``on`` or ``off``, whether ranks are asked to save before the job ends, and who chose it.
        own_devices: Whether each rank of a host has a device of its own.
        needs_hostfile: Whether the launcher reads the other hosts from a file.
        attempt: Its number, from 1 on.
        keeps_terminal: Whether the only rank gets the launcher's terminal, so that a debugger works in it.
        agent_settings: What the launcher sends to each agent that connects.
        notes: What the user should know before anything starts.
        moot: The one of them that changes nothing in this launch: of devices that were assumed, where the user has
            named the number of ranks. Empty without one.

    Raises:
        EzpzError: Nothing could start ranks there, or an option does not fit.
    """

    def __init__(
        self,
        survey: Survey,
        options: LaunchOptions,
        environ: Mapping[str, str] | None = None,
        *,
        attempt: int = 1,
        first_id: str = "",
        stays: bool = False,
    ) -> None:
        self.survey, self.options, self.stays = survey, options, stays
        self.environ = dict(os.environ if environ is None else environ)
        placement = survey.placement
        self.is_here = len(placement.hosts) == 1 and is_here(placement.hosts[0])
        checked = options.check and Setting(options.check, "--check")
        self.check = checked or Setting(*default("launch.check", self.environ, "fast"))
        unsaved = options.no_save_at_end and Setting("off", "--no-save-at-end")
        self.save_at_end = unsaved or Setting(*default("launch.save_at_end", self.environ, "on"))
        self._sampling, sampler = sampling(self.environ)
        self._sampled = Setting(f"each {self._sampling:g} s" if self._sampling else "never", sampler)
        self.own_devices = survey.devices.count > 0 and not options.oversubscribe
        scheduler = survey.scheduler
        self._chosen = chosen = _choose(survey, options, self.environ, is_here=self.is_here)
        self._is_local = chosen.choice.flavour is None
        self._daemon = scheduler.signalling_daemon if scheduler.signals_ranks(self.environ, probe.read) else ""
        self._hostfile = ""
        self._listening: ListenAddress | None = None
        outer, inner = self.environ.get("EZPZ_LAUNCH_ID"), os.urandom(8).hex()
        self.attempt = attempt
        if first_id:  # of the same beginning, by which its folder is found
            inner = first_id.rpartition("/")[2][:_SHARED_ID] + inner[_SHARED_ID:]
        self.launch_id = f"{outer}/{inner}" if outer else inner
        self.needs_hostfile = not self._is_local and not self.is_here
        self.keeps_terminal = self._is_local and placement.world_size == 1 and os.isatty(0)
        self.agent_settings = self._for_agents(inner)
        self.notes = (
            *survey.notes,
            *options.notes,
            *_unread(chosen, placement),
            *_advice(chosen),
            *(() if options.flavour else _unreached(scheduler, chosen, self.environ, placement.hosts[0])),
            *_in_front(scheduler),
            *_cleaned(options.command, self.environ),
        )
        self.moot = "" if options.ranks is None and options.per_host is None else survey.devices.assumed

    def _for_agents(self, inner: str) -> dict[str, Any]:
        """Return what the agents are told, besides their ranks.

        Args:
            inner: The own part of the launch's id.
        """
        options, survey = self.options, self.survey
        log_dir = os.path.abspath(options.log_dir) if options.log_dir else ""
        return {
            "log_dir": os.path.join(log_dir, f"attempt-{self.attempt}")
            if log_dir and options.attempts > 1
            else log_dir,
            "idle": options.idle_timeout,
            "input": self.keeps_terminal or has_input(),
            "recorder": _recorder(options, log_dir, inner),
            "collectives": os.path.join(private_folder(), f"last-{inner}"),
            "parting": _PARTING if survey.scheduler.signalling_daemon else 0.0,
            "by_rank": survey.placement.world_size <= _STAGES_OF_EACH,
            "live": not self.keeps_terminal and os.isatty(1) and self._may_draw(),
            "stays": self.stays,
            "watchers": [*self._watchers()],
        }

    def _may_draw(self) -> bool:
        """Tell whether a live line belongs on the terminal of the launcher."""
        from ezpz.live_line import may_draw

        return may_draw(self.environ)

    def _watchers(self) -> Iterator[tuple[str, str, float, str, str, str]]:
        """Yield the watchers that are on, as rows of `ezpz.launch.agent_messages.Settings`."""
        looks = self.check.value != "off" and not self.is_here  # here, the launcher looks itself
        yield "preflight", "", 0.0 if looks else -1.0, self._looked_at(), "", ""
        if self._sampling and sys.platform == "linux":
            yield "hardware", "", self._sampling, str(self._sampling), "", ""
        yield "stragglers", "", -1.0, "", "", ""
        for name in ("hangs", "progress"):
            yield name, "", -1.0, "", "", ""
        at_end = self.save_at_end.value == "on"
        may_tell = at_end and bool(self.survey.allocation.job_id)  # that nothing is saved before the job ends
        yield "saving", "", _STARTED if may_tell else -1.0, "at the end" if at_end else "", "", ""
        if self.survey.placement.world_size > 1 and sys.platform == "linux" and not is_off(self.environ, "EZPZ_ALONE"):
            yield "unconnected", "", _LOADED, "", "", ""
        if self.attempt > 1:
            yield "leftovers", "", 0.0, "", "", ""
        if self.environ.get("EZPZ_WATCHERS"):
            from ezpz.launch.watchers import chosen

            yield from chosen(self.environ)

    def _looked_at(self) -> str:
        """Return what is to be looked at before ranks begin (`ezpz.watch.preflight.messages.Look`)."""
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = ""
        command = self.options.command
        return "\0".join(("own" * self.own_devices, folder, command[0] if command else "", script_of(command)))

    def write_hostfile(self, folder: str) -> None:
        """Write the host file of the plans to come into ``folder``; nothing where none is needed."""
        flavour, placement = self._chosen.choice.flavour, self.survey.placement
        if flavour is None or not self.needs_hostfile:
            return
        if self._chosen.mpi.value == "no" and not flavour.starts_agents:
            placement = placement.of_agents()
        lines = [flavour.hostfile_line(*pair) for pair in zip(placement.hosts, placement.counts, strict=True)]
        # A name for these lines: other plans may have their files in the same folder.
        name = f"hosts-{flavour.title}-{crc32(os.fsencode(''.join(lines))):08x}".replace(" ", "-")
        path = os.path.join(folder, name)
        try:
            self._hostfile = write_lines(path, lines)
        except OSError as error:
            raise MachineError(
                f"cannot write the host file {path} (from TMPDIR): {error.strerror}; expected room for it. Set TMPDIR "
                "to another folder."
            ) from None

    def choose_rendezvous(self, *, must_know: bool) -> Rendezvous:
        """Return where the ranks of one start meet; the port is held until it is closed.

        Args:
            must_know: Refuse a first host whose name is unknown here; else it brings a note.

        Raises:
            EzpzError: No address or port can be used.
        """
        # With sockets, which the words of a launch line need not.
        from ezpz.launch.master import choose_rendezvous, refuse_without_loopback

        options = self.options
        if must_know and self.is_here and self.survey.placement.world_size > 1 and self.check.value != "off":
            refuse_without_loopback()
        return choose_rendezvous(
            self.survey.placement,
            self.environ,
            self.survey.site.site,
            must_know=must_know,
            wanted=(options.master_addr, options.master_port),
        )

    def listening(self) -> ListenAddress | None:
        """Return where the launcher listens for its agents; None where it forks its only agent."""
        if self._listening is None and not self._is_local:
            from ezpz.launch.master import listening

            self._listening = listening(self.survey.placement)
        return self._listening

    def build(self, rendezvous: Rendezvous | None = None, control: str = "") -> LaunchPlan:
        """Return a finished plan, for one start.

        Args:
            rendezvous: Where its ranks meet; None where only the launcher's words are wanted, and no host is looked up.
            control: Where its agents connect, as ``EZPZ_CONTROL`` has it; empty where nothing will be started.
        """
        survey, options = self.survey, self.options
        run_id = os.urandom(8).hex()
        listens = self.listening() if rendezvous else None
        open_to_all = (
            (f"agents are awaited on all interfaces: {listens.origin}",) if listens and listens.exposed else ()
        )
        return LaunchPlan(
            survey.placement,
            self._chosen,
            options.command or ("COMMAND",),
            hostfile=self._hostfile,
            master=(rendezvous.address, rendezvous.port) if rendezvous else NO_MASTER,
            run_id=run_id,
            more=self._more_variables(),
            supervision=Supervision(
                self.launch_id,
                MappingProxyType(self._supervised_variables(run_id)),
                MappingProxyType(self._agent_variables(control)),
                MappingProxyType(self.agent_settings),
                self.keeps_terminal,
                listens,
            ),
            job=missing_job_variable(survey.scheduler, survey.allocation.job_id),
            scheduler=survey.scheduler,
            environ=self.environ,
            context=self._context((*self.notes, *open_to_all)),
        )

    def _context(self, notes: tuple[str, ...]) -> Context:
        allocation, devices = self.survey.allocation, self.survey.devices
        counts = dict(zip(allocation.hosts, devices_on(devices, allocation), strict=True))
        used = tuple(counts[host] for host in self.survey.placement.hosts)
        chosen = (self.check, self._sampled, self.save_at_end)
        return Context(devices, used, allocation.origin.get("hosts", ""), notes, *chosen)

    def _more_variables(self) -> dict[str, Setting]:
        allocation, why = self.survey.allocation, "where this launch is"
        more = {"EZPZ_OVERSUBSCRIBE": Setting("1", "--oversubscribe")} if self.options.oversubscribe else {}
        flavour = self._chosen.choice.flavour
        scheduler = self.survey.scheduler if flavour and flavour.sets_masks else None
        if self.options.attempts > 1:
            more["EZPZ_ATTEMPT"] = Setting(str(self.attempt), f"--attempts {self.options.attempts}")
        return {
            **more,
            **mask_settings(self.environ, self.survey.devices, self.options.devices, scheduler),
            **without_devices(self.environ, self.survey.devices, self.survey.placement.world_size),
            "EZPZ_SCHEDULER": Setting(allocation.scheduler, why),
            "EZPZ_JOBID": Setting(allocation.job_id, why),
            **{name: Setting(value, BY_ENV) for name, value in self.options.env},
        }

    def _supervised_variables(self, run_id: str) -> dict[str, Setting]:
        socket = address(run_id, private_folder("sockets") if sys.platform != "linux" else "")
        recorder = self.agent_settings["recorder"]
        by_itself = f"{self._daemon} signals ranks itself"
        return {
            "EZPZ_SOCKET": Setting(socket, "this launch"),
            **({"EZPZ_LAUNCH_ID": Setting(self.launch_id, "this launch")} if self._is_local else {}),
            **({"EZPZ_IGNORED_AT_START": Setting("SIGUSR1 SIGUSR2", by_itself)} if self._daemon else {}),
            **({} if self.keeps_terminal else piped(self.environ)),
            **last_collectives(self.agent_settings["collectives"], self.environ),
            **(flight_recorder(recorder, self.environ) if recorder else {}),
        }

    def _agent_variables(self, control: str) -> dict[str, str]:
        if self._is_local:  # its only agent is forked off, and knows
            return {}
        from ezpz.launch.host.rank_start import ignored

        stdin = {} if self.agent_settings["input"] else {"EZPZ_STDIN": "none"}
        ignores = " ".join(map(str, ignored()))
        more = {**stdin, **({"EZPZ_IGNORED": ignores} if ignores else {})}
        if self._daemon:
            more["EZPZ_SIGNALLED_BY"] = self._daemon
        flavour = self._chosen.choice.flavour
        odd = flavour.not_carried(self.environ) if flavour and not self.is_here else []
        odd = [name for name in odd if name not in self._chosen.communication.unset]
        if odd:
            more["EZPZ_PACKED"] = packed(self.environ, odd)
        return {"EZPZ_CONTROL": control, "EZPZ_LAUNCH": self.launch_id, **more}


def _choose(survey: Survey, options: LaunchOptions, environ: Mapping[str, str], *, is_here: bool) -> Chosen:
    """Return what starts the ranks, and how.

    Args:
        survey: Hosts, devices, site and placement.
        options: What the user asked for.
        environ: The environment of the launcher.
        is_here: Whether all ranks run on this host.

    Raises:
        EzpzError: Nothing could start ranks there, or an option does not fit.
    """
    allocation, scheduler, site = survey.allocation, survey.scheduler, survey.site.site
    reached = RemoteShellAccess() if is_here else reach(scheduler, allocation.job_id, environ, site)
    run, asked = probe.tools(), options.flavour
    choice = choose(allocation, scheduler, environ, run, is_here=is_here, requested=asked, site=site, reach=reached)
    mpi = choose_mpi(options.mpi, choice, site, options.launcher_args)
    binding = choose_binding(
        options.cpu_bind, site, max(survey.placement.counts), survey.devices.count, origin=options.cpu_bind_origin
    )
    if choice.flavour and choice.flavour.binds and mpi.value == "no":
        binding = by_agents(binding, choice.flavour.title)
    variables = communication(
        {**environ, **dict(options.env)},
        site,
        allocation,
        use_site=options.comm_env == "site",
        unset=options.unset,
    )
    return Chosen(choice, mpi, binding, variables, reached, site, options.launcher_args)


def _recorder(options: LaunchOptions, log_dir: str, inner: str) -> str:
    """Return the folder for whole dumps of torch's flight recorder; empty where no time limit can end a hang."""
    may_hang = options.timeout is not None or options.idle_timeout is not None
    return os.path.join(log_dir or private_folder("recorder"), f"recorder-{inner}") if may_hang else ""


def reach(scheduler: Scheduler, job: str, environ: Mapping[str, str], site: Site | None) -> RemoteShellAccess:
    """Tell whether the scheduler's remote shell is to start programs on the hosts of a job.

    Args:
        scheduler: The scheduler.
        job: The job's id.
        environ: The environment of the launcher.
        site: The machine, if it is known.
    """
    if _knows_its_way(site, scheduler):
        return RemoteShellAccess(f"site {site.name} starts ranks with {site.launcher}" if site else "")
    return scheduler.reach(environ, job)


def _knows_its_way(site: Site | None, scheduler: Scheduler) -> bool:
    """Tell whether a site names its launcher, where the scheduler brings none: that finds its hosts itself."""
    return bool(site and site.launcher and not scheduler.own_launcher)


def _unreached(scheduler: Scheduler, chosen: Chosen, environ: Mapping[str, str], first: str) -> tuple[str, ...]:
    """Return a note where ssh reaches other hosts because the scheduler cannot be asked to, as it can on the first."""
    why, site, flavour = chosen.reach.problem, chosen.site, chosen.choice.flavour
    if not (why and scheduler.agent_flavour):
        return ()
    program = scheduler.remote_shell[0]
    if isinstance(flavour, AgentFlavour):
        way = f"; where ssh is closed, run this on {first}, in a shell of the job"
        way = "" if _knows_its_way(site, scheduler) or not find_program(program, environ.get("PATH")) else way
        return (f"{flavour.title} starts the agents, and not {program}: {why}{way}",)
    # The user may have set how an MPI starts its daemons.
    named = (*environ, *(site.launcher_args if site else ()), *chosen.launcher_args)
    if not isinstance(flavour, MpiFlavour) or not flavour.shell_options or flavour.starts_as_told(named):
        return ()
    if _knows_its_way(site, scheduler):
        return ()
    return (f"{flavour.title} starts its daemons in a way of its own, mostly ssh, and not by {program}: {why}",)


def _unread(chosen: Chosen, placement: Placement) -> tuple[str, ...]:
    """Return which options change nothing, because ezpz starts the ranks of this host itself."""
    choice, binding = chosen.choice, chosen.binding
    if choice.flavour is not None:
        return ()
    notes = []
    if chosen.launcher_args:
        notes.append(
            f"--launcher-args {shlex.join(chosen.launcher_args)} has no effect: no mpiexec or srun starts these "
            f"ranks, but ezpz itself ({choice.reason})"
        )
    if binding.text not in {"none", "auto"} and not binding.cpus and hasattr(os, "sched_getaffinity"):
        _, misfit = chosen_cpus(binding.text, os.sched_getaffinity(0), 0, placement.world_size)
        notes += [f"each rank {misfit} (from {binding.origin})"] * bool(misfit)
    return tuple(notes)


def _in_front(scheduler: Scheduler) -> tuple[str, ...]:
    """Return what would be lost because a script has called the launcher."""
    script = scheduler.script_in_front()
    if not script:
        return ()
    end = (
        f"the job's script (pid {script}) ends of the first signal that the scheduler sends, and takes all ranks along"
    )
    return (
        f"{end} before they can save; write `exec ezpz launch …` as its last line, or source utils.sh for `launch`",
    )


def _advice(chosen: Chosen) -> tuple[str, ...]:
    """Return what the site says against this choice."""
    site, flavour = chosen.site, chosen.choice.flavour
    if site is None:
        return ()
    against = [
        f"site {site.name} advises against {word} (from --launcher-args)"
        for word in chosen.launcher_args
        if word.split("=", 1)[0] in site.launcher_forbids
    ]
    if site.launcher and site.launcher in NOT_STARTED:
        used = flavour.title if flavour else LOCAL
        against.append(f"site {site.name} advises {site.launcher}, which ezpz does not start; {used} is used")
    return tuple(against)


def _cleaned(command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note where a container would start its program without the ranks' variables.

    Long options are known anywhere, short ones up to the first word that is no option: others have values.
    """
    runtimes = [at for at, word in enumerate(command) if os.path.basename(word) in _CONTAINERS]
    if not runtimes:
        return ()
    words = command[runtimes[0] + 1 :]
    found = [word for word in words if word in _CLEANS[:2]]
    for word in words[1:]:  # behind `exec` or `run`
        if not word.startswith("-"):
            break
        found += [word] * (word in _CLEANS[2:])
    names = (f"{runtime}_{option}" for runtime in ("APPTAINER", "SINGULARITY") for option in ("CLEANENV", "CONTAINALL"))
    found += [f"{name}={environ[name]}" for name in names if environ.get(name, "0").lower() not in {"", "0", "false"}]
    note = (
        "keeps the ranks' variables out of the container: each rank would train alone; leave it out, and take away "
        "what the program shall not see with `launch --unset NAME`"
    )
    return tuple(f"{word} {note}" for word in found[:1])


def missing_job_variable(scheduler: Scheduler, job: str) -> dict[str, str]:
    """Return the variable of a job that this host's name led to: the launcher needs it, and this shell lacks it."""
    return {} if not job or scheduler.is_marked(os.environ) else {scheduler.job_variables[0]: job}
