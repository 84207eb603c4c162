"""Start the ranks of a plan, each kind of flavour in its way, and own the run until it is over."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from ezpz.errors import LaunchError
from ezpz.launch import record
from ezpz.launch.contract import started_here
from ezpz.launch.flavours.request import Setting
from ezpz.launch.flavours.ssh import leader_line
from ezpz.launch.folder import private_folder
from ezpz.launch.host import connection, process_tree
from ezpz.launch.host.connection import pair
from ezpz.launch.host.payload import pack
from ezpz.launch.host.rank_start import be
from ezpz.launch.host.start_agent import lead_local
from ezpz.launch.master import addresses
from ezpz.launch.run.child import Child
from ezpz.launch.run.control import Control
from ezpz.launch.run.failures import Failure, log_of
from ezpz.launch.run.supervisor import PORT_TAKEN, Supervisor

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.failures import Limits, Outcome
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.wall import Wall

    Ends = tuple[socket.socket, socket.socket]
    from ezpz.launch.flavours.request import Order


# Start ranks with ssh, one leader per host, and own the run until the last of them is gone.

_LAST_WORD = 2.0  # seconds for a leader to say that all is over when its ssh has ended
_SAID = 300  # characters of ssh's own words
_REFUSED = 125


def over_ssh(start: Start) -> tuple[Outcome, Supervisor]:
    """Run the plan to its end and return how it was.

    Raises:
        EzpzError: A program that is needed cannot be run.
    """
    _make_room(len(start.plan.placement.hosts))
    control = Control(start.settings, addresses(start.plan.placement))
    plan = start.with_control(control)
    logs = tempfile.mkdtemp(prefix="ezpz-ssh-")
    try:
        run = _Remote(plan, start.limits, control, start.screen, start.wall)
        run.prepare(start, logs)
        with _Parcels(plan, start.command) as parcels, run:
            for index in range(len(plan.placement.hosts)):
                run.start_host(index, parcels.open(with_input=start.input and index == 0))
            parcels.unlink()
            start.enter()
            return run.wait(), run
    finally:
        control.close()
        shutil.rmtree(logs, ignore_errors=True)


class _Parcels:
    """What goes into the leaders: one file, opened once per host and then without a name, for it holds the whole environment."""

    def __init__(self, plan: LaunchPlan, command: list[str]) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="ezpz-")
        with open(descriptor, "wb") as file:
            file.write(pack(command, {**started_here(plan.kept()), **plan.shared()}))
        self._pump: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Parcels:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.unlink()
        if self._pump:
            self._pump.kill()  # it may wait for input that nobody reads any more
            self._pump.wait()

    def open(self, *, with_input: bool) -> int:
        """Return a descriptor to read the parcel from, and behind it the launcher's own input."""
        parcel = os.open(self._path, os.O_RDONLY)
        if not with_input:
            return parcel
        read, write = os.pipe()
        self._pump = subprocess.Popen(
            ["cat", f"/dev/fd/{parcel}", "-"],
            stdout=write,
            pass_fds=[parcel],
            start_new_session=True,
            preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509  # no thread runs in the launcher
        )
        for end in (parcel, write):
            os.close(end)
        return read

    def unlink(self) -> None:
        """Take the name away; whoever has opened the file keeps it."""
        if self._path:
            os.unlink(self._path)
            self._path = ""


class _Remote(Supervisor):
    """A supervisor whose children are the ``ssh`` of each host: what ssh said is part of the cause when a host fails."""

    _order: Order
    _logs = ""

    def prepare(self, start: Start, logs: str) -> None:
        """Take what one start knows, and the folder for what ssh itself has to say."""
        start.fill(self)
        self._order, self._logs = self.plan.order(), logs

    def start_host(self, index: int, stdin: int) -> None:
        """Start the leader of one host, which reads ``stdin``; it is closed here.

        Raises:
            LaunchError: The program that should start it cannot be run.
        """
        line = leader_line(self._order, index, self._said_in(index))
        try:
            self.children.add(Child.start(line, os.environ, stdin, index))
        except OSError as error:
            raise LaunchError(
                f"cannot run {line[0]} (from {self._program_from()}): {error.strerror}; expected ssh, or a program that is called like it."
            ) from None
        finally:
            os.close(stdin)

    def child_ended(self, child: Child) -> None:
        """Judge the end of a host's ssh: after its leader is done it says nothing new."""
        if child.host in self.control.done or self.stopping:
            return
        self.listen()  # two connections: the leader's word may come behind the end of ssh
        if child.host in self.control.done:
            return
        if child.host in self.control.heard:
            self.timers.setdefault("launcher", time.monotonic() + _LAST_WORD)
            return
        host = self.plan.placement.hosts[child.host]
        said = f"{self._words(child.host)} ended with {child.code}{self._said(child.host)}"
        trial = f"expected a leader that reports. Try `{self._trial(child.host)}`"
        self.fail(Failure(f"cannot start ranks on {host}:", f"{said}; {trial}", _REFUSED, time.time(), host=host))

    def judge_launcher(self) -> None:
        """An ssh has ended before its leader said that all is over there."""
        gone = [child for child in self.children.all if not child.alive and child.host not in self.control.done]
        if gone and not self.stopping:
            child, host = gone[0], self.plan.placement.hosts[gone[0].host]
            said = f"{self._words(child.host)} ended with {child.code}{self._said(child.host)}"
            self.blame(Failure(f"host {host}", f"is lost: {said}", _REFUSED, time.time(), host=host))

    def hint(self) -> str:
        """Return the line by which a person finds out what is wrong with the first host that says nothing."""
        silent = [index for index in range(len(self.plan.placement.hosts)) if index not in self.control.heard]
        return f". Try `{self._trial(silent[0])}`{self._said(silent[0])}" if silent else ""

    def _said_in(self, index: int) -> str:
        return os.path.join(self._logs, str(index))

    def _program_from(self) -> str:
        return "EZPZ_SSH" if self._order.environ.get("EZPZ_SSH") else "PATH"

    def _words(self, index: int) -> str:
        return os.path.basename(leader_line(self._order, index)[0])

    def _trial(self, index: int) -> str:
        """Return a line by which a person finds out what is wrong."""
        line = leader_line(self._order, index)
        return shlex.join([*line[:-1], "true"] if len(line) > 1 and line[-1].startswith("exec ") else line)

    def _said(self, index: int) -> str:
        """Return the last line that ssh wrote to its log."""
        try:
            with open(self._said_in(index), encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f", saying {last[:_SAID]!r}" if last else ""


def _make_room(hosts: int) -> None:
    """Raise the soft limit of open files where it is below what the hosts need: two connections and two pipes each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 5 * hosts + 256
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


__all__ = ["Start", "piped"]


class Start:
    """One start of a launch.

    Args:
        plan: Where the ranks go and meet.
        command: What they run.
        launch: Id of the launch.
        limits: What the user allows the run.
        screen: Where output goes.
        log_dir: Folder for a file per rank, or empty.
        folder: Folder of run.json, or empty.
        wall: When the end of the job's wall time is to be announced.
        began: When the launch began, in seconds since 1970.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        command: Sequence[str],
        launch: str,
        limits: Limits,
        screen: Screen,
        *,
        log_dir: str = "",
        folder: str = "",
        wall: Wall | None = None,
        began: float = 0.0,
    ) -> None:
        self.command, self.launch, self.limits, self.screen = list(command), launch, limits, screen
        self.folder, self.wall, self.began = folder, wall, began
        self.index = record.Index()
        self.told: dict[str, Any] = {}
        self.input = has_input()
        self.alone = keeps_terminal(plan)
        self.settings = {"log_dir": log_dir, "idle": limits.idle, "input": self.input or self.alone, "recorder": ""}
        ours = piped(plan)
        if limits.run is not None or limits.idle is not None:
            ours |= self._recorded(plan, log_dir)
        where = connection.address(plan.run_id, private_folder("sockets") if sys.platform != "linux" else "")
        self.plan = plan.and_settings({"EZPZ_SOCKET": Setting(where, "this launch"), **ours})

    def _recorded(self, plan: LaunchPlan, log_dir: str) -> dict[str, Setting]:
        """Return what lets torch keep a record of the last collectives, for a run that may be ended because it hangs."""
        from ezpz.launch.host import rank_start

        folder = os.path.join(log_dir or private_folder("recorder"), f"recorder-{plan.run_id}")
        self.settings["recorder"] = folder
        told = {"EZPZ_RECORDER": folder, **rank_start.settings(folder, plan.environ)}
        return {name: Setting(value, "--timeout or --idle-timeout") for name, value in told.items()}

    def run(self) -> int:
        """Run to the end, keep a record of it, and return the exit code of the launch.

        Raises:
            EzpzError: The ranks could not even be started.
        """
        try:
            outcome, run = self._started()
        finally:
            self.index.leave()
        if outcome.code != PORT_TAKEN:
            reason = record.write(self.folder, _completed(self.told, run))
            if reason:
                run.say(f"note: {reason}")
        return outcome.code

    def enter(self) -> None:
        """Keep a first record, now that the ranks have time to start, and let `ezpz kill` and `ezpz stacks` know the launch."""
        self.told = record.started(self.plan, self.command, launch_id=self.launch, when=self.began)
        plan = self.told["plan"]
        entry = {"started": self.began, "command": self.told["command"], "hosts": plan["hosts"], "folder": self.folder}
        self.index.enter(
            self.launch, {**entry, "world_size": plan["world_size"], "socket": asking_address(self.launch)}
        )
        record.write(self.folder, self.told)
        record.forget_old(self.folder)

    def _started(self) -> tuple[Outcome, Supervisor]:
        if self.plan.by_hosts:
            return over_ssh(self)
        return self._local() if self.plan.flavour is None else self._foreign()

    def supervisor(self, control: Control) -> Supervisor:
        """Return who owns the run."""
        run = Supervisor(self.plan, self.limits, control, self.screen, self.wall, shares_terminal=self.alone)
        self.fill(run)
        return run

    def fill(self, run: Supervisor) -> None:
        """Tell the run where its records go, and where it can be asked."""
        run.launch, run.folder, run.began = self.launch, self.folder, self.began
        run.hangs.socket = asking_address(self.launch)

    def _local(self) -> tuple[Outcome, Supervisor]:
        """Start the ranks ourselves, through a leader that is forked off; a single rank keeps the terminal."""
        plan = self.plan.and_settings({"EZPZ_LAUNCH_ID": Setting(self.launch, "this launch")})
        ranks = [(plan.rank_environment(rank), plan.cpus(rank)) for rank in range(plan.placement.world_size)]
        ours, its = pair()
        control = Control(self.settings)
        with self.supervisor(control) as run:
            pid = os.fork()
            if not pid:
                be(lambda: self._lead(ours, its, ranks))
            for end in its:
                end.close()
            control.adopt(0, os.uname().nodename, *ours)
            run.children.add(Child(pid, "the leader of this host", 0))
            self.enter()
            outcome = run.wait()
        control.close()
        return outcome, run

    def _lead(self, ours: Ends, its: Ends, ranks: list[tuple[dict[str, str], list[int] | None]]) -> int:
        """Be the leader: the launcher's ends are closed here, or its end would never be noticed."""
        for end in ours:
            end.close()
        return lead_local(its, self.launch, self.command, ranks, self.settings, terminal=self.alone)

    def _foreign(self) -> tuple[Outcome, Supervisor]:
        """Start ``mpiexec`` or ``srun``, whose shims bring up a leader per host."""
        control = Control(self.settings, addresses(self.plan.placement))
        plan = self.with_control(control)
        environ = {**plan.kept(), **plan.shared()}
        try:
            with self.supervisor(control) as run:
                run.children.add(
                    Child.start(plan.argv(self.command), environ, None if self.input else subprocess.DEVNULL)
                )
                control.get_ready()
                self.enter()
                return run.wait(), run
        finally:
            control.close()

    def with_control(self, control: Control) -> LaunchPlan:
        """Return the plan with what shims and leaders need to know."""
        told = {"EZPZ_CONTROL": control.variable, "EZPZ_LAUNCH": self.launch}
        if not self.input:
            told["EZPZ_STDIN"] = "none"
        return self.plan.and_settings({name: Setting(value, "this launch") for name, value in told.items()})


def asking_address(launch: str) -> str:
    """Return where `ezpz stacks` asks a launch."""
    name = f"launch-{launch.replace('/', '+')}"
    return connection.address(name, private_folder("sockets") if sys.platform != "linux" else "")


def has_input() -> bool:
    """Tell whether there is input to pass on: a pipe or a file, and neither a terminal nor the null device."""
    try:
        return not os.isatty(0) and os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:  # closed
        return False


def keeps_terminal(plan: LaunchPlan) -> bool:
    """Tell whether the only rank gets the launcher's terminal, so that a debugger works in it."""
    return plan.flavour is None and plan.placement.world_size == 1 and os.isatty(0)


def piped(plan: LaunchPlan) -> dict[str, Setting]:
    """Return variables that let ranks behave behind our pipes as they would on what the launcher itself writes to."""
    if keeps_terminal(plan):
        return {}
    why = "ranks write into a pipe"
    told = {} if plan.environ.get("PYTHONUNBUFFERED") else {"PYTHONUNBUFFERED": Setting("1", why)}
    if os.isatty(1) and os.isatty(2):
        size = shutil.get_terminal_size()
        wanted = {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
        if "NO_COLOR" not in plan.environ and plan.environ.get("TERM", "dumb") != "dumb":
            wanted["FORCE_COLOR"] = "1"
        told |= {
            name: Setting(value, f"{why}, and it is shown on a terminal")
            for name, value in wanted.items()
            if name not in plan.environ
        }
    return told


def _completed(told: dict[str, Any], run: Supervisor) -> dict[str, Any]:
    """Return what run.json says of a launch that is over, from what it said at the beginning."""
    outcome = run.outcome
    entries = [
        record.failure(
            one.text,
            rank=one.rank,
            host=one.host,
            pid=one.pid,
            code=one.status,
            log=log_of(one, run.control.settings["log_dir"], run.folder) or None,
            words=one.words or None,
        )
        for one in ([outcome.cause] if outcome.cause else [])
        + [one for one in outcome.failures if one is not outcome.cause]
    ]
    more = {
        "stages": run.stages.summary(),
        "cause": entries[0] if outcome.cause else None,
        "failures": entries[1:] if outcome.cause else entries,
        "hang": outcome.hang,
        "notes": outcome.notes,
        "launcher_words": run.children.afterwards.decode(errors="replace"),
    }
    return record.ended({**told, **more}, outcome.code, time.time(), stopped=outcome.stopped)
