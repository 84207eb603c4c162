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
from ezpz.files import private_folder
from ezpz.launch import record
from ezpz.launch.host import connection, process_tree
from ezpz.launch.host.connection import pair
from ezpz.launch.host.payload import pack
from ezpz.launch.host.rank_start import be
from ezpz.launch.host.start_agent import run_local
from ezpz.launch.messages import Settings
from ezpz.launch.run.child import Child
from ezpz.launch.run.failures import Failure, log_of
from ezpz.launch.run.supervisor import PORT_TAKEN, Supervisor

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.control import Control
    from ezpz.launch.run.failures import Limits, Outcome
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.wall import Wall

    Ends = tuple[socket.socket, socket.socket]


# Start ranks with ssh, one leader per host, and own the run until the last of them is gone.

_LAST_WORD = 2.0  # seconds for a leader to say that all is over when its ssh has ended
_SAID = 300  # characters of ssh's own words
_REFUSED = 125


def over_ssh(start: Start) -> tuple[Outcome, Supervisor]:
    """Run the plan to its end and return how it was.

    Raises:
        EzpzError: A program that is needed cannot be run.
    """
    plan = start.plan
    _make_room(len(plan.placement.hosts))
    logs = tempfile.mkdtemp(prefix="ezpz-ssh-")
    try:
        run = _Remote(plan, start.limits, start.control, start.screen, start.wall)
        run.prepare(start, logs)
        with _Parcels(plan) as parcels, run:
            for index in range(len(plan.placement.hosts)):
                run.start_host(index, parcels.open(with_input=start.input and index == 0))
            parcels.unlink()
            start.enter()
            return run.wait(), run
    finally:
        shutil.rmtree(logs, ignore_errors=True)


class _Parcels:
    """What goes into the agents: one file, opened once per host and then without a name: it holds the whole environment."""

    def __init__(self, plan: LaunchPlan) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="ezpz-")
        with open(descriptor, "wb") as file:
            file.write(pack(list(plan.command), plan.agent_environment()))
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

    _line: Callable[..., list[str]]
    _logs = ""

    def prepare(self, start: Start, logs: str) -> None:
        """Take what one start knows, and the folder for what ssh itself has to say."""
        start.fill(self)
        self._line, self._logs = self.plan.agent_line(), logs

    def start_host(self, index: int, stdin: int) -> None:
        """Start the leader of one host, which reads ``stdin``; it is closed here.

        Raises:
            LaunchError: The program that should start it cannot be run.
        """
        line = self._line(index, self._said_in(index))
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
            self.loop.after("launcher", _LAST_WORD, self.judge_launcher)
            return
        host = self.plan.placement.hosts[child.host]
        said = f"{self._words(child.host)} ended with {child.code}{self._said(child.host)}"
        trial = f"expected an agent that reports. Try `{self._trial(child.host)}`"
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
        return "EZPZ_SSH" if self.plan.environ.get("EZPZ_SSH") else "PATH"

    def _words(self, index: int) -> str:
        return os.path.basename(self._line(index)[0])

    def _trial(self, index: int) -> str:
        """Return a line by which a person finds out what is wrong."""
        line = self._line(index)
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


__all__ = ["Start"]


class Start:
    """One start of a finished plan.

    Args:
        plan: What is started.
        control: Where its agents connect; closed when the run is over.
        limits: What the user allows the run.
        screen: Where output goes.
        folder: Folder of run.json, or empty.
        wall: When the end of the job's wall time is to be announced.
        began: When the launch began, in seconds since 1970.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        control: Control,
        limits: Limits,
        screen: Screen,
        *,
        folder: str = "",
        wall: Wall | None = None,
        began: float = 0.0,
    ) -> None:
        self.plan, self.control, self.limits, self.screen = plan, control, limits, screen
        self.folder, self.wall, self.began = folder, wall, began
        self.input: bool = plan.agent_settings["input"]
        self.index = record.Index()
        self.record: dict[str, Any] = {}

    def run(self) -> int:
        """Run to the end, keep a record of it, and return the exit code of the launch.

        Raises:
            EzpzError: The ranks could not even be started.
        """
        try:
            outcome, run = self._started()
        finally:
            self.index.leave()
            self.control.close()
        if outcome.code != PORT_TAKEN:
            reason = record.write(self.folder, _completed(self.record, run))
            if reason:
                run.say(f"note: {reason}")
        return outcome.code

    def enter(self) -> None:
        """Keep a first record, now that the ranks have time to start, and let `ezpz kill` and `ezpz stacks` know the launch."""
        self.record = record.started(self.plan, self.began)
        plan = self.record["plan"]
        entry = {
            "started": self.began,
            "command": self.record["command"],
            "hosts": plan["hosts"],
            "folder": self.folder,
        }
        self.index.enter(
            self.plan.launch_id,
            {**entry, "world_size": plan["world_size"], "socket": asking_address(self.plan.launch_id)},
        )
        record.write(self.folder, self.record)
        record.forget_old(self.folder)

    def _started(self) -> tuple[Outcome, Supervisor]:
        if self.plan.by_hosts:
            return over_ssh(self)
        return self._local() if self.plan.flavour is None else self._foreign()

    def supervisor(self) -> Supervisor:
        """Return who owns the run."""
        alone = self.plan.keeps_terminal
        run = Supervisor(self.plan, self.limits, self.control, self.screen, self.wall, shares_terminal=alone)
        self.fill(run)
        return run

    def fill(self, run: Supervisor) -> None:
        """Give the run the folder of its records and the address where it can be asked."""
        run.launch, run.folder, run.began = self.plan.launch_id, self.folder, self.began
        run.address = asking_address(self.plan.launch_id)

    def _local(self) -> tuple[Outcome, Supervisor]:
        """Start the ranks ourselves, through an agent that is forked off; a single rank keeps the terminal."""
        plan = self.plan
        ranks = [(plan.rank_environment(rank), plan.cpus(rank)) for rank in range(plan.placement.world_size)]
        ours, its = pair()
        with self.supervisor() as run:
            pid = os.fork()
            if not pid:
                be(lambda: self._lead(ours, its, ranks))
            for end in its:
                end.close()
            self.control.adopt(0, os.uname().nodename, *ours)
            run.children.add(Child(pid, "the agent of this host", 0))
            self.enter()
            return run.wait(), run

    def _lead(self, ours: Ends, its: Ends, ranks: list[tuple[dict[str, str], list[int] | None]]) -> int:
        """Be the agent: the launcher's ends are closed here, or its end would never be noticed."""
        plan = self.plan
        for end in ours:
            end.close()
        settings = Settings(**plan.agent_settings)
        return run_local(its, plan.launch_id, plan.command, ranks, settings, terminal=plan.keeps_terminal)

    def _foreign(self) -> tuple[Outcome, Supervisor]:
        """Start ``mpiexec`` or ``srun``, whose shims bring up an agent per host."""
        stdin = None if self.input else subprocess.DEVNULL
        with self.supervisor() as run:
            run.children.add(Child.start(self.plan.argv(), self.plan.launcher_environment(), stdin))
            self.control.get_ready()
            self.enter()
            return run.wait(), run


def asking_address(launch: str) -> str:
    """Return where `ezpz stacks` asks a launch."""
    name = f"launch-{launch.replace('/', '+')}"
    return connection.address(name, private_folder("sockets") if sys.platform != "linux" else "")


def _completed(begun: dict[str, Any], run: Supervisor) -> dict[str, Any]:
    """Return what run.json says of a launch that is over, from what it said at the beginning."""
    outcome = run.outcome
    entries = [
        record.failure(
            one.text,
            rank=one.rank,
            host=one.host,
            pid=one.pid,
            code=one.status,
            log=log_of(one, run.control.settings.log_dir, run.folder) or None,
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
    return record.ended({**begun, **more}, outcome.code, time.time(), stopped=outcome.stopped)
