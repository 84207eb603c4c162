"""Hold one call of ``launch``: what the user asked for, the folder of its record, and what ``run.json`` holds besides.

What a launch is part of, a chain of jobs or a series of attempts, adds to the session; `Session.run` runs the ranks of
a plan to their end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from ezpz.errors import EzpzError, LaunchError, UsageError
from ezpz.interrupt import Deferring
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ezpz.launch.options import LaunchOptions
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.planning import PlanBuilder
    from ezpz.launch.run.control import Control

__all__ = ["Session", "say"]

_MOST_STARTS = 5  # of a launch whose port is taken on another host each time


def say(text: str) -> None:
    """Print a line of ours on stderr: stdout belongs to the program."""
    try:
        show(f"ezpz: {text}", sys.stderr)
    except OSError:
        pass  # it is not read any more; the run continues


class Session:
    """One call of ``launch``.

    Attributes:
        options: What the user asked for.
        folder: Of the record, inside `recorded`; empty where none can be kept.
        fields: What ``run.json`` holds besides what the launch itself knows.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self.options = options
        self.folder = ""
        self.fields: dict[str, Any] = {}

    @contextlib.contextmanager
    def recorded(self, launch_id: str) -> Iterator[None]:
        """Make the folder of the record; one in which nothing was written is removed behind the block.

        Args:
            launch_id: Of the launch, or of the first of its attempts.

        Raises:
            UsageError: ``--log-dir`` cannot be made or written.
        """
        from ezpz.launch import record

        log_dir = os.path.abspath(self.options.log_dir) if self.options.log_dir else ""
        with contextlib.ExitStack() as at_end:  # also when Ctrl-C comes in between
            with Deferring():
                self.folder, note = record.launch_folder(log_dir, launch_id, time.time())
                at_end.callback(record.forget_unused, self.folder)
            if note:
                say(f"note: {note}")
            yield

    def run(self, builder: PlanBuilder) -> int:
        """Run ranks to their end, and return the exit code; whatever breaks, ``run.json`` tells the end.

        Args:
            builder: Of their plans.

        Raises:
            EzpzError: They could not be started.
        """
        from ezpz.launch import internal_error, record

        began = time.time()
        plans: list[LaunchPlan] = []  # of each start
        try:
            return self._run(builder, began, plans)
        except EzpzError as error:
            if plans and record.says_running(self.folder, plans[-1]):
                record.complete(self.folder, plans[-1], began, str(error), code=error.exit_code)
            raise
        except Exception as error:  # a mistake of ours, whatever it is
            if not plans:
                raise
            raise internal_error.completed(error, self.folder, began, plans[-1]) from error

    def _run(self, builder: PlanBuilder, began: float, plans: list[LaunchPlan]) -> int:
        from ezpz.launch.run.failures import Limits
        from ezpz.launch.run.start import supervise
        from ezpz.launch.run.terminal import Screen
        from ezpz.launch.wall import Wall

        options = builder.options
        limits = Limits(
            options.start_timeout,
            options.timeout,
            options.idle_timeout,
            options.exit_timeout,
            options.attempts > 1,
        )
        with contextlib.ExitStack() as at_end:
            if builder.needs_hostfile:
                from ezpz.launch.temporary import TemporaryFolder

                with Deferring():
                    hostfiles = at_end.enter_context(TemporaryFolder("hosts"))
                builder.write_hostfile(hostfiles)
            wall = Wall(builder.survey.allocation, builder.environ)
            at_end.callback(wall.close)
            screen = Screen(builder.survey.placement.world_size, label=options.label)
            at_end.callback(screen.close)

            def start(plan: LaunchPlan, control: Control) -> int:
                plans.append(plan)
                return supervise(
                    plan, control, limits, screen, folder=self.folder, wall=wall, began=began, more=self.fields
                )

            return _start_until_met(builder, start)


def _announce(plan: LaunchPlan) -> None:
    from ezpz.cluster.network import route_to
    from ezpz.launch.contract import cores

    placement, devices = plan.placement, plan.context.devices
    ranks, first, several = placement.world_size, placement.hosts[0], len(placement.hosts) > 1
    hosts = f"{len(placement.hosts)} hosts from {first} on" if several else first
    counts = dict.fromkeys(plan.context.device_counts)  # each number once: there may be thousands of hosts
    device = f"{' or '.join(map(str, counts))} {devices.kind} devices per host" if devices and any(counts) else "cpu"
    say(f"{ranks} rank{'s'[: ranks > 1]} on {hosts} ({placement.origin}), {device}")
    through = ""
    if several:
        route = route_to(plan.address.value)
        through = f" through {route.interface}" if route.interface not in {"", "lo"} else ""
    site = f", site {plan.site.name}" if plan.site else ""
    forks = f", ranks forked by an agent per host ({plan.variables['EZPZ_NO_MPI'].value})" if plan.forks else ""
    log_dir = plan.supervision.agent_settings["log_dir"]
    logs = f", logs in {log_dir}" if log_dir else ""
    meeting = f"rendezvous at {plan.address.value}:{plan.port.value}{through}"
    say(f"{plan.flavour_name} launcher ({plan.choice.reason}), {meeting}{forks}{site}{logs}")
    if device == "cpu" and not several and ranks > cores():
        say(f"note: {ranks} ranks share {cores()} cores")


def _start_until_met(builder: PlanBuilder, start: Callable[[LaunchPlan, Control], int]) -> int:
    """Start the ranks; again, with another plan, where another program holds the port on the first host."""
    from ezpz.cluster.probe import is_here
    from ezpz.launch.agent_messages import Settings
    from ezpz.launch.run.control import Control
    from ezpz.launch.run.supervisor import PORT_TAKEN

    allocation = builder.survey.allocation
    # A scheduler vouches for its hosts where this one is none of them.
    must_know = not allocation.job_id or any(map(is_here, allocation.hosts))
    for attempt in range(_MOST_STARTS):
        with builder.choose_rendezvous(must_know=must_know) as rendezvous:
            control = Control(
                Settings(**builder.agent_settings), builder.listening(), len(builder.survey.placement.hosts)
            )
            plan = builder.build(rendezvous, control.variable)
            if not attempt:
                _announce(plan)
                if builder.options.verbose:
                    from ezpz.launch.explain import as_text

                    show(as_text(plan), sys.stderr)
                for note in plan.context.notes[len(builder.notes) :]:
                    say(f"note: {note}")
                if rendezvous.note:
                    say(f"note: {rendezvous.note}")
            code = start(plan, control)
        if code != PORT_TAKEN:
            return code
        port, origin = plan.port
        first = plan.placement.hosts[0]
        if origin in {"MASTER_PORT", "--master-port"}:
            undo = "Leave --master-port out" if origin.startswith("-") else "Run `unset MASTER_PORT`"
            raise UsageError(
                f"cannot use port {port} (from {origin}): it is taken on {first}; expected a free one. "
                f"{undo}, or set another."
            )
        say(f"port {port} is taken on {first}; starting again with another")
    raise LaunchError(
        f"no free port on {builder.survey.placement.hosts[0]} in {_MOST_STARTS} starts (ports below 32000); "
        "expected one. Set MASTER_PORT to a free one."
    )
