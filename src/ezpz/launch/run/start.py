"""Start the ranks of a plan, in one of three ways, supervise them until the last one has ended, and keep the record."""

from __future__ import annotations

import os
import shlex
import time

from ezpz import register
from ezpz.errors import EzpzError, LaunchError
from ezpz.interrupt import Raising
from ezpz.launch import record
from ezpz.launch.host import connection
from ezpz.launch.host.rank_start import be
from ezpz.launch.host.start_agent import run_local
from ezpz.launch.limits import FILES_OF_HOST, FILES_OF_MPI, FILES_OF_RANK, FILES_OF_SSH, make_room, shortage
from ezpz.launch.run.failures import AGENT_SAID, LOST, UNREACHED, Failure, log_of
from ezpz.launch.run.launcher_child import Child
from ezpz.launch.run.supervisor import PORT_TAKEN, Supervisor
from ezpz.launch.shared_slots import Slots

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.control import Control
    from ezpz.launch.run.failures import Limits
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.run.world import World
    from ezpz.launch.wall import Wall

    Ends = tuple[socket.socket, socket.socket]
    Ranks = list[tuple[dict[str, str], list[int] | None]]

__all__ = ["Run", "run_of", "supervise"]

_LAST_REPORT = 2.0  # seconds for an agent to report that all is over when its ssh has ended
_QUOTED = 300  # characters of what ssh printed
_REFUSED = 125
_OF_SSH = 255  # ssh's own exit code: it has not reached the host


def supervise(
    plan: LaunchPlan,
    control: Control,
    limits: Limits,
    screen: Screen,
    *,
    folder: str = "",
    wall: Wall | None = None,
    began: float = 0.0,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Start a finished plan, own its processes to their end, and return the exit code of the launch.

    Args:
        plan: What is started.
        control: Where its agents connect; closed when the run is over.
        limits: What the user allows the run.
        screen: Where output goes.
        folder: Folder of run.json, or empty.
        wall: When the end of the job's wall time is to be announced.
        began: When the launch began, in seconds since 1970.
        more: Further fields of run.json.

    Raises:
        EzpzError: The ranks could not even be started.
    """
    _make_room(plan)
    run = run_of(plan)(plan, limits, control, screen, wall, shares_terminal=plan.supervision.keeps_terminal)
    run.launch_id, run.folder, run.began = plan.supervision.launch_id, folder, began
    run.address = register.address(run.launch_id)
    run.more = dict(more or {})
    run.world.watch.prepare()
    return run.run()


def run_of(plan: LaunchPlan) -> type[Run]:
    """Return the supervisor that starts what brings up the ranks of a plan, or its hosts."""
    return _AgentsRun if plan.by_hosts else _LocalRun if plan.flavour is None else _LauncherRun


class Run(Supervisor):
    """A supervisor that starts the programs of its plan; each kind knows how."""

    _begun: dict[str, Any]  # what run.json holds so far
    more: dict[str, Any]  # what it holds besides
    _of_start: dict[str, Any]  # what watchers add to it at the start,
    _watched: dict[str, Any]  # and at the end

    def start_programs(self) -> None:
        """Start what brings up the ranks."""
        raise NotImplementedError

    def run(self) -> int:
        """Run to the end, keep a record of it, and return the exit code of the launch.

        Raises:
            EzpzError: The ranks could not even be started.
            KeyboardInterrupt: Ctrl-C came before.
        """
        with self.signals:  # until the record is complete
            try:
                Raising.raise_dropped()  # from now on each is heard by the supervisor
                with self:
                    if self.plan.is_here:
                        self._ask_watchers()
                    self.start_programs()
                    self._begun = self._keep_first_record()
                    outcome = self.wait()
            finally:
                self.control.close()
            if outcome.code != PORT_TAKEN:
                fields = self._completed(self._begun)
                reason = record.write(self.folder, fields)
                line = self._explain(fields)
                if line:
                    self.say(line)
                if reason:
                    self.say(f"note: {reason}")
        return outcome.code

    def _ask_watchers(self) -> None:
        """Ask watchers whether ranks may begin on this host, the only one, before anything is started.

        Raises:
            EzpzError: They may not.
        """
        refusal = self.world.refusal()
        if refusal:
            self._begun = self._keep_first_record()
            raise refusal if isinstance(refusal, EzpzError) else LaunchError(f"cannot start: {refusal}")

    def all_train(self, world: World) -> None:
        """Write the stages of the start into run.json while the ranks train, for `ezpz startup`."""
        known = {"run_folder": world.run_folder or None, "job_ends": self.job_ends()}
        self._begun = {**self._begun, **known, "stages": world.stages.summary()}
        record.write(self.folder, self._begun)

    def note_ends_within(self, seconds: float) -> None:
        """Write into run.json how long the end takes at most, for `ezpz kill`."""
        self._begun = {**self._begun, "ends_within": seconds}
        record.write(self.folder, self._begun)

    def launcher_words(self) -> str:
        """Return what the program that starts the ranks has written itself."""
        return self.children.words.decode(errors="replace")

    def _keep_first_record(self) -> dict[str, Any]:
        """Write run.json while the ranks start, by which all verbs find the launch (`ezpz.register`)."""
        fields = {**record.started(self.plan, self.began, self.address), **self.more}
        if fields["plan"]["job_id"]:
            from ezpz.launch import wall

            started = wall.starts(os.environ)  # a chain of jobs has asked the scheduler where no variable says it
            fields["job_started"] = fields.get("job_started") if started is None else started
        self._of_start = self.world.watch.parts("of_start", fields)
        fields.update(self._of_start)
        record.write(self.folder, fields)
        record.link(self.folder, self.launch_id, self.began)
        record.forget_old(self.folder)
        return fields

    def _completed(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of run.json for a launch that is over, from those of its beginning."""
        world, outcome = self.world, self.outcome
        causes = [outcome.cause] if outcome.cause else []
        entries = [
            record.failure(
                one.text,
                rank=one.rank,
                host=one.host,
                pid=one.pid,
                code=one.status,
                log=log_of(one, self.control.settings.log_dir, self.folder) or None,
                words=one.all_words or None,
                why=one.why or None,
                step=one.step if one.step >= 0 else None,
                kernel=one.kernel,
                room=one.room,
            )
            for one in [*causes, *(one for one in outcome.failures if one is not outcome.cause)]
        ]
        more = {
            "stages": world.stages.summary(),
            "silent": world.roll.silent(),
            "lost": outcome.lost,
            "blames": outcome.blames(),
            "step": outcome.step,
            "began": world.begun,
            "job_ends": self.job_ends(),
            "ends_within": None,
            "cause": entries[0] if causes else None,
            "failures": entries[len(causes) :],
            "causes": [],
            "run_folder": world.run_folder or None,
            "notes": outcome.notes,
            "launcher_words": self.launcher_words(),
        }
        known = {name: value for name, value in {**begun, **more}.items() if name not in self._of_start}
        more.update(world.watch.parts("of_start", known))
        self._watched = world.watch.parts("end", {**begun, **more}, outcome)
        more.update(self._watched)
        return record.ended({**begun, **more}, self.began, outcome.code, time.time(), stopped=outcome.stopped)

    def _explain(self, fields: dict[str, Any]) -> str:
        """Write the causes of the end into run.json, and return a line where they say more than the failure did.

        A mistake of ours in them must not spoil an end whose record is complete.
        """
        if not (fields["exit_code"] or self.world.run_folder or self._watched):  # nothing could say more
            return ""
        from ezpz.records.launch_record import LaunchRecord
        from ezpz.why import Facts, diagnose, last_line

        try:
            facts = Facts.read(self.folder, self.world.run_folder)
            facts.launch = LaunchRecord.of(fields)  # the file may not have been written
            self.world.watch.all("explain", facts, failed=bool(fields["exit_code"]))
            causes = diagnose(facts)
            if causes:
                record.write(self.folder, {**fields, "causes": [cause.as_json() for cause in causes]})
            return last_line(causes, failed=bool(fields["exit_code"]))
        except Exception as error:  # as above
            if os.environ.get("EZPZ_DEBUG") == "1":
                raise
            return f"note: no causes were found: {type(error).__name__}: {error}"


class _LocalRun(Run):
    """Ranks of this host, started by an agent that is forked off; a single rank keeps the terminal."""

    def start_programs(self) -> None:
        """Fork the agent."""
        plan = self.plan
        count = 0 if self.stays else plan.placement.world_size
        ranks = [(plan.rank_environment(rank), plan.cpus(rank)) for rank in range(count)]
        ours, its = connection.pair()
        slots = None if plan.supervision.keeps_terminal else Slots.inherited()
        try:
            pid = os.fork()
        except OSError as error:
            what = shortage(error, starting=True) or "expected a new process"
            raise LaunchError(f"cannot start the agent of this host: {error.strerror}; {what}.") from None
        if not pid:
            be(lambda: self._be_agent(ours, its, ranks, slots))
        for end in its:
            end.close()
        self.control.adopt(0, os.uname().nodename, *ours, slots)
        if self.control.settings.input and not plan.supervision.keeps_terminal:
            from ezpz.launch.run.passed_stdin import leave_stdin

            leave_stdin()  # the rank has it
        self.children.add(Child(pid, "the agent of this host", 0))

    def _be_agent(self, ours: Ends, its: Ends, ranks: Ranks, slots: Slots | None) -> int:
        """Run the agent: the launcher's ends are closed here, or its end would never be noticed."""
        plan = self.plan
        for end in ours:
            end.close()
        terminal = plan.supervision.keeps_terminal
        return run_local(
            its, self.launch_id, plan.command, ranks, self.control.settings, slots=slots, terminal=terminal
        )


class _LauncherRun(Run):
    """Ranks that ``mpiexec`` or ``srun`` starts, whose shims bring up an agent per host."""

    def start_programs(self) -> None:
        """Start the launcher's program."""
        line = self.plan.argv()
        try:
            self.children.add(Child.start(line, self.plan.launcher_environment(), None))
        except OSError as error:
            raise _not_run(line[0], self.plan.choice.reason, error, self.plan.flavour_name) from None
        self.control.get_ready()


class _AgentsRun(Run):
    """Ranks whose agents are started with ssh, or what does its work, one per host; what that printed is part of the
    cause of a failure.
    """

    _logs = ""

    def run(self) -> int:
        """Run to the end, with a folder for what ssh itself prints.

        Raises:
            EzpzError: A program that is needed cannot be run.
        """
        from ezpz.launch.temporary import TemporaryFolder

        self._line = self.plan.agent_line()
        self._environ = {**os.environ, **self.plan.agent_variables()}
        shared = "" if self.plan.agents.carries_input else self._shared_folder()
        with TemporaryFolder("agents") as self._logs, _Payload(self.plan, shared or self._logs) as self._payload:
            return super().run()

    def start_programs(self) -> None:
        """Start the agent of each host."""
        for index in range(len(self.plan.placement.hosts)):
            self._start_host(index, self._payload.open())
        self._forget_payload()

    def listen(self) -> None:
        """Take what the agents have sent."""
        super().listen()
        self._forget_payload()

    def _shared_folder(self) -> str:
        """Return a folder that other hosts see, as far as is known: that of this launch's record.

        Raises:
            LaunchError: There is none.
        """
        if self.folder:
            return self.folder
        raise LaunchError(
            f"cannot start agents with {self.plan.flavour_name}: there is no folder for what they read (from "
            "XDG_STATE_HOME or HOME); expected one that all hosts of the job share. Choose it with `launch --log-dir "
            "DIR`."
        )

    def _forget_payload(self) -> None:
        """Remove the payload as soon as its name is not needed any more: it holds the whole environment."""
        if self.plan.agents.carries_input or len(self.control.heard) == len(self.plan.placement.hosts):
            self._payload.unlink()

    def _start_host(self, index: int, stdin: int) -> None:
        """Start the agent of one host, which reads ``stdin``; it is closed here.

        Raises:
            LaunchError: The program that should start it cannot be run.
        """
        line = self._line(index, log=self._log_of(index), payload=self._payload.path)
        try:
            self.children.add(Child.start(line, self._environ, stdin, index))
        except OSError as error:
            source = "EZPZ_SSH" if self.plan.environ.get("EZPZ_SSH") else "PATH"
            raise _not_run(line[0], source, error, self.plan.flavour_name) from None

    def child_ended(self, child: Child) -> None:
        """Judge the end of what started a host's agent; after its agent is done it means nothing new."""
        if child.host in self.control.done or self.stopping:
            return
        self.listen()  # two connections: the agent's report may come after the end of ssh
        if child.host in self.control.done:
            return
        if child.host in self.control.heard:
            self.loop.after("launcher", _LAST_REPORT, self.judge_launcher)
            return
        host = self.plan.placement.hosts[child.host]
        meaning = self.plan.agents.meaning(child.code or 0, self._payload.path)
        if child.code == _REFUSED and not meaning:
            meaning = "its agent came up there, and its own line says why it ended"
        trial = f"expected an agent that reports. Try `{self._trial(child.host)}`"
        text = f"{self._ending(child)}{f': {meaning}' if meaning else f'; {trial}'}"
        said = self.children.agent_said(child)
        why = UNREACHED if child.code == _OF_SSH else f"{AGENT_SAID}{said}" if said else ""
        self.world.fail(Failure(f"cannot start ranks on {host}:", text, _REFUSED, time.time(), host=host, why=why))

    def judge_launcher(self) -> None:
        """An ssh has ended before its agent, which had come, reported that all is over there."""
        came = set(self.control.heard) - self.control.done
        gone = [child for child in self.children.all if not child.alive and child.host in came]
        if self.stays:  # worlds on other hosts go on
            for child in gone:
                self.note(f"{self.plan.placement.hosts[child.host]}: {self._ending(child)}")
                self.hosts.lose(child.host)
        elif gone and not self.stopping:
            child, host = gone[0], self.plan.placement.hosts[gone[0].host]
            why = LOST if (child.code or 0) >= 0 else ""  # a signal killed ssh here, and says nothing of the host
            if why:
                self.outcome.lost.append(host)
            text = f"is lost: {self._ending(child)}"
            self.world.blame(Failure(f"host {host}", text, _REFUSED, time.time(), host=host, why=why))

    def launcher_words(self) -> str:
        """Return what ssh wrote of each host of which nothing was heard."""
        hosts = self.plan.placement.hosts
        silent = set(self.world.roll.silent())
        said = ((host, self._last_line(index)) for index, host in enumerate(hosts) if host in silent)
        return "".join(f"{host}: {line}\n" for host, line in said if line)

    def hint(self) -> str:
        """Return the line by which a person finds out what is wrong with the first host that is silent."""
        silent = [index for index in range(len(self.plan.placement.hosts)) if index not in self.control.heard]
        return f". Try `{self._trial(silent[0])}`{self._quoted(silent[0])}" if silent else ""

    def _ending(self, child: Child) -> str:
        program = os.path.basename(self._line(child.host)[0])
        return f"{program} ended with {child.code}{self._quoted(child.host)}"

    def _trial(self, index: int) -> str:
        """Return a line by which a person finds out what is wrong."""
        line = self._line(index, payload=self._payload.path)
        variables = [f"{name}={value}" for name, value in self.plan.agent_variables().items()]
        trial = [*line[:-1], "true"] if len(line) > 1 and line[-1].startswith("exec ") else line
        return shlex.join([*(["env", *variables] if variables else []), *trial])

    def _log_of(self, index: int) -> str:
        return os.path.join(self._logs, str(index))

    def _quoted(self, index: int) -> str:
        last = self._last_line(index)
        return f", saying {last!r}" if last else ""

    def _last_line(self, index: int) -> str:
        """Return the last line that ssh wrote to its log, for a message."""
        try:
            with open(self._log_of(index), encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:_QUOTED]


class _Payload:
    """What the agents read, in one file of this user alone: all open it, and then it loses its name.

    It holds the whole environment.

    Args:
        plan: What the agents are to start.
        folder: One that other hosts see, where agents open the file themselves; else a temporary one.

    Attributes:
        path: Of the file.
    """

    def __init__(self, plan: LaunchPlan, folder: str) -> None:
        from ezpz.launch.host.payload import pack

        payload = pack(list(plan.command), plan.agent_environment())
        self.path = os.path.join(folder, f"agents-{os.urandom(4).hex()}")
        self._has_name = False
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._has_name = True
            with open(descriptor, "wb") as file:
                file.write(payload)
        except OSError as error:
            self.unlink()
            raise LaunchError(
                f"cannot write into {folder} what the agents of the hosts are to read: {error.strerror}; expected room "
                "for it. Set TMPDIR, or choose a folder with `launch --log-dir DIR`."
            ) from None

    def __enter__(self) -> _Payload:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.unlink()

    def open(self) -> int:
        """Return a descriptor to read the payload from."""
        return os.open(self.path, os.O_RDONLY)

    def unlink(self) -> None:
        """Take the name away; whoever has opened the file keeps it."""
        if self._has_name:
            self._has_name = False
            try:
                os.unlink(self.path)
            except OSError:
                pass  # an agent that could not reach this process has removed it


def _not_run(program: str, source: str, error: OSError, title: str) -> LaunchError:
    """Return the error for a program that should start ranks or agents, and cannot be run."""
    wanted = shortage(error, starting=True) or f"expected {title}, or a program that is called like it"
    return LaunchError(f"cannot run {program} (from {source}): {error.strerror}; {wanted}.")


def _make_room(plan: LaunchPlan) -> None:
    """See to it that as many files may be open as the hosts of a plan need, or its ranks where all of them run here.

    Raises:
        LaunchError: Fewer may be open.
    """
    hosts = len(plan.placement.hosts)
    if plan.by_hosts:
        make_room("hosts", FILES_OF_SSH, hosts, "--nhosts")
    elif plan.is_here:  # its agent, and what starts its ranks, have the limits of this process
        each = FILES_OF_RANK + bool(plan.supervision.agent_settings["log_dir"])
        make_room("ranks", each if plan.flavour is None else max(each, FILES_OF_MPI), plan.placement.world_size, "-n")
    else:
        make_room("hosts", FILES_OF_HOST, hosts, "--nhosts")
