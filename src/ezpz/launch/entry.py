"""Run ``ezpz launch``: read the options, build the plan, start it, and return the exit code of the run.

What only a plan needs is imported when the options are read, and what only ranks need when the plan is made:
``--help``, a mistake and ``--dry-run`` cost no more than they must.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.errors import EzpzError, LaunchError, MachineError, UsageError, end_with
from ezpz.files import private_folder, why_not_run
from ezpz.interpreter import open_standard_files
from ezpz.interrupt import FOR_RANKS, Deferring, Raising, end_now
from ezpz.launch.limits import shortage
from ezpz.launch.options import LaunchOptions, parse
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.planning import PlanBuilder
    from ezpz.launch.run.control import Control

_PASTED_WITHIN = 86400.0  # seconds: printed lines work for a day
_MOST_STARTS = 5  # of a launch whose port is taken on another host each time


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``launch`` and return its exit code."""
    try:
        _open_standard_files()
        with Raising(), Deferring(FOR_RANKS):  # these wait for the supervisor
            options = sys.argv[1:] if argv is None else argv
            return ending_with_the_reader(lambda: _launch(parse(options, os.environ)))
    except EzpzError as error:
        return end_with(error)
    except Exception as error:  # noqa: BLE001  # whatever it is, it has killed the ranks, and one line reports it
        from ezpz.launch import broken

        return broken.tell(error)
    except KeyboardInterrupt:  # before anything runs, or when only a slow reader is waited for
        return end_now()


def _open_standard_files() -> None:
    """Do as `open_standard_files`, and see to it that there is what takes and gives nothing, which every rank needs.

    Raises:
        MachineError: It cannot be opened.
    """
    try:
        open_standard_files()
    except OSError as error:
        wanted = "`mknod -m 666 /dev/null c 1 3`, as root, makes it"
        if error.errno != errno.ENOENT:
            wanted = shortage(error) or "`chmod 666 /dev/null`, as root, opens it to all"
        raise MachineError(
            f"cannot open {os.devnull}: {error.strerror} (from this host); expected the empty device. {wanted}."
        ) from None


def _refuse_removed_folder() -> None:
    """Refuse to start ranks in a folder that is not there any more.

    Raises:
        MachineError: The working folder was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise MachineError(
            f"the working folder {os.environ.get('PWD', '')} was removed: {error.strerror} (from the shell); "
            "expected one that is there. `cd` to another."
        ) from None


def _say(text: str) -> None:
    """Print a line of ours on stderr: stdout belongs to the program."""
    try:
        show(f"ezpz: {text}", sys.stderr)
    except OSError:
        pass  # it is not read any more; the run continues


def _launch(options: LaunchOptions) -> int:
    # A launch inside a rank of another one has nothing to do with the job.
    if not os.environ.get("EZPZ_CHAIN") or "EZPZ_LAUNCH_ID" in os.environ or not options.starts_ranks:
        return _launch_alone(options)
    from ezpz.launch.chain import run_in_chain

    return run_in_chain(os.environ, lambda more, tell: _launch_alone(options, more, tell), _say)


def _launch_alone(
    options: LaunchOptions, more: Mapping[str, Any] | None = None, tell: Callable[[str], None] | None = None
) -> int:
    """Launch without a chain, or what it allows.

    Args:
        options: What the user asked for.
        more: What run.json holds besides.
        tell: Takes the folder of the launch's records.
    """
    from ezpz.launch.planning import PlanBuilder, survey

    if options.attempts > 1:
        from ezpz.launch.attempts import refuse_inside_torchrun

        refuse_inside_torchrun(os.environ, options)
    if (options.starts_ranks and options.check != "off") or (options.log_dir and not os.path.isabs(options.log_dir)):
        _refuse_removed_folder()
    builder = PlanBuilder(survey(options), options)
    if not options.starts_ranks:
        return _show(builder, options)
    missing = _missing(builder, options.command[0])
    if missing:
        return missing
    for note in builder.notes:
        if note != builder.moot:
            _say(f"note: {note}")
    if options.attempts > 1:
        from ezpz.launch.attempts import run_attempts

        def run(builder: PlanBuilder, folder: str, fields: Mapping[str, Any]) -> int:
            return _run(builder, folder, {**(more or {}), **fields}, tell)

        return run_attempts(builder, options, run, _say)
    return _run(builder, more=more, tell=tell)


def _show(builder: PlanBuilder, options: LaunchOptions) -> int:
    """Print the plan that would be started; the host file named in its lines stays, so that they can be pasted."""
    if builder.needs_hostfile:
        builder.write_hostfile(_folder_of_shown())
    with builder.choose_rendezvous(must_know=False) as rendezvous:
        plan = builder.build(rendezvous)
    if rendezvous.note:
        _say(f"note: {rendezvous.note}")
    if options.json or options.explain:
        from ezpz.launch.explain import as_json, as_text  # a launch needs neither json nor textwrap

        show(as_json(plan) if options.json else as_text(plan))
    else:
        for note in plan.context.notes:
            _say(f"note: {note}")
        show("\n".join(plan.lines()))
    return 0


def _folder_of_shown() -> str:
    """Return the folder for host files that printed lines name, without those of yesterday."""
    folder = private_folder("dry-run")
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another launch was faster
            if entry.stat().st_mtime < time.time() - _PASTED_WITHIN:
                os.unlink(entry.path)
    return folder


def _missing(builder: PlanBuilder, program: str) -> int:
    """Return 127 or 126 when the program cannot run here, where it can be known before anything starts."""
    reason, code = why_not_run(program) if builder.is_here else ("", 0)
    if code:
        hint = f" Try `launch python3 {program}`." if program.endswith(".py") else ""
        _say(f"cannot run {program} (from the command line): {reason}; expected a program.{hint}")
    return code


def _announce(plan: LaunchPlan) -> None:
    from ezpz.cluster.network import route_to
    from ezpz.launch.contract import cores

    placement, devices = plan.placement, plan.context.devices
    ranks, first, several = placement.world_size, placement.hosts[0], len(placement.hosts) > 1
    hosts = f"{len(placement.hosts)} hosts from {first} on" if several else first
    counts = dict.fromkeys(plan.context.device_counts)  # each number once: there may be thousands of hosts
    device = f"{' or '.join(map(str, counts))} {devices.kind} devices per host" if devices and any(counts) else "cpu"
    _say(f"{ranks} rank{'s'[: ranks > 1]} on {hosts} ({placement.origin}), {device}")
    through = ""
    if several:
        route = route_to(plan.address.value)
        through = f" through {route.interface}" if route.interface not in {"", "lo"} else ""
    site = f", site {plan.site.name}" if plan.site else ""
    forks = f", ranks forked by an agent per host ({plan.variables['EZPZ_NO_MPI'].value})" if plan.forks else ""
    log_dir = plan.supervision.agent_settings["log_dir"]
    logs = f", logs in {log_dir}" if log_dir else ""
    meeting = f"rendezvous at {plan.address.value}:{plan.port.value}{through}"
    _say(f"{plan.flavour_name} launcher ({plan.choice.reason}), {meeting}{forks}{site}{logs}")
    if device == "cpu" and not several and ranks > cores():
        _say(f"note: {ranks} ranks share {cores()} cores")


def _run(
    builder: PlanBuilder,
    folder: str | None = None,
    more: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
) -> int:
    """Run to the end, and return the exit code of the launch; whatever breaks, run.json tells the end.

    Args:
        builder: Of its plans.
        folder: Of its records; None makes one.
        more: What run.json holds besides.
        tell: Takes the folder of its records.
    """
    from ezpz.launch import broken, record

    began = time.time()
    plans: list[LaunchPlan] = []  # of each start
    with contextlib.ExitStack() as at_end:  # all of it is done, also when Ctrl-C comes in between
        if folder is None:
            with Deferring():
                folder, note = record.launch_folder(builder.agent_settings["log_dir"], builder.launch_id, began)
                at_end.callback(record.forget_unused, folder)
            if note:
                _say(f"note: {note}")
        if tell:
            tell(folder)
        try:
            return _run_recorded(builder, folder, began, plans, more)
        except EzpzError as error:
            if plans and record.says_running(folder, plans[-1]):
                record.complete(folder, plans[-1], began, str(error), code=error.exit_code)
            raise
        except Exception as error:  # a mistake of ours, whatever it is: run.json tells the end all the same
            if not plans:
                raise
            raise broken.completed(error, folder, began, plans[-1]) from error


def _run_recorded(
    builder: PlanBuilder, folder: str, began: float, plans: list[LaunchPlan], more: Mapping[str, Any] | None
) -> int:
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
            return supervise(plan, control, limits, screen, folder=folder, wall=wall, began=began, more=more)

        return _start_until_met(builder, start)


def _start_until_met(builder: PlanBuilder, start: Callable[[LaunchPlan, Control], int]) -> int:
    """Start the ranks; again, with another plan, where another program holds the port on the first host."""
    from ezpz.cluster.probe import is_here
    from ezpz.launch.messages import Settings
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
                    _say(f"note: {note}")
                if rendezvous.note:
                    _say(f"note: {rendezvous.note}")
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
        _say(f"port {port} is taken on {first}; starting again with another")
    raise LaunchError(
        f"no free port on {builder.survey.placement.hosts[0]} in {_MOST_STARTS} starts (ports below 32000); "
        "expected one. Set MASTER_PORT to a free one."
    )
