"""Start the ranks of a plan, each kind of flavour in its way, and own the run until it is over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from ezpz.launch import local_socket, record
from ezpz.launch.causes import log_of
from ezpz.launch.child import Child
from ezpz.launch.control import Control
from ezpz.launch.folder import private_folder
from ezpz.launch.leading import lead_local
from ezpz.launch.link import pair
from ezpz.launch.master import addresses
from ezpz.launch.order import Setting
from ezpz.launch.rank_start import be
from ezpz.launch.supervise import PORT_TAKEN, Supervisor

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from ezpz.launch.outcome import Limits, Outcome
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.screen import Screen
    from ezpz.launch.wall import Wall

    Ends = tuple[socket.socket, socket.socket]

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
        where = local_socket.address(plan.run_id, private_folder("sockets") if sys.platform != "linux" else "")
        self.plan = plan.and_settings({"EZPZ_SOCKET": Setting(where, "this launch"), **ours})

    def _recorded(self, plan: LaunchPlan, log_dir: str) -> dict[str, Setting]:
        """Return what lets torch keep a record of the last collectives, for a run that may be ended because it hangs."""
        from ezpz.launch import recorder

        folder = os.path.join(log_dir or private_folder("recorder"), f"recorder-{plan.run_id}")
        self.settings["recorder"] = folder
        told = {"EZPZ_RECORDER": folder, **recorder.settings(folder, plan.environ)}
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
            from ezpz.launch.remote import over_ssh

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
    return local_socket.address(name, private_folder("sockets") if sys.platform != "linux" else "")


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
