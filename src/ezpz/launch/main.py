"""``ezpz launch``: from the command line to the exit code of the run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ezpz.cluster.network import route_to
from ezpz.cluster.probe import is_here
from ezpz.errors import EzpzError, LaunchError, UsageError, end_with
from ezpz.launch import record
from ezpz.launch.contract import LONGEST_VARIABLE, cores, named_hosts
from ezpz.launch.flavours.request import Setting
from ezpz.launch.folder import private_folder
from ezpz.launch.master import choose_address, choose_port
from ezpz.launch.options import Wishes, parse
from ezpz.launch.planning import draw_up, survey
from ezpz.launch.run.failures import Limits
from ezpz.launch.run.supervisor import PORT_TAKEN
from ezpz.launch.run.terminal import Screen
from ezpz.launch.starting import Start
from ezpz.launch.wall import Wall

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.planning import Survey

__all__ = ["main"]

_MOST_STARTS = 5  # of a launch whose port is taken on another host each time


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``launch`` and return its exit code."""
    try:
        return _launch(parse(sys.argv[1:] if argv is None else argv, os.environ))
    except EzpzError as error:
        return end_with(error)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # before anything runs, or when only a slow reader is waited for
        return 128 + signal.SIGINT


def _tell(text: str) -> None:
    """Speak on stderr: stdout belongs to the program."""
    try:
        print(f"ezpz: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more; the run goes on


def _launch(wishes: Wishes) -> int:
    found = survey(wishes)
    plan = draw_up(found, wishes)
    if not wishes.command or wishes.dry_run or wishes.explain or wishes.json:
        return _show(found, plan, wishes)
    missing = _missing(plan, wishes.command[0])
    if missing:
        return missing
    for note in (*found.notes, *plan.notes()):
        _tell(f"note: {note}")
    return _run(plan, found, wishes)


def _show(found: Survey, plan: LaunchPlan, wishes: Wishes) -> int:
    """Print what would run; the host file named in the line stays, so that the line can be pasted."""
    if plan.needs_hostfile:
        plan = plan.with_hostfile(private_folder(f"dry-run-{os.getpid()}"))
    plan, held, note = _met(replace(plan, run_id=os.urandom(4).hex()), must_know=False)
    if held:
        held.close()
    command = list(wishes.command) or ["COMMAND"]
    if note:
        _tell(f"note: {note}")
    if wishes.json or wishes.explain:
        from ezpz.launch.explain import as_json, as_text  # a launch needs neither json nor textwrap

    if wishes.json:
        print(as_json(found, plan, command))
    elif wishes.explain:
        print(as_text(found, plan, command))
    else:
        print("\n".join(plan.lines(command)))
    return 0


def _met(plan: LaunchPlan, *, must_know: bool) -> tuple[LaunchPlan, socket.socket | None, str]:
    """Return the plan with the address and port where the ranks meet, the socket that holds the port, and a note."""
    address = choose_address(plan.placement, plan.environ, plan.site, must_know=must_know)
    port, origin, held = choose_port(plan.placement, plan.environ)
    master = (Setting(address.address, address.origin), Setting(str(port), origin))
    return replace(plan, master=master), held, address.note


def _missing(plan: LaunchPlan, program: str) -> int:
    """Return 127 or 126 when the program cannot run here, where it can be known before anything starts."""
    if not plan.is_here or shutil.which(program):
        return 0
    if os.path.exists(program) or shutil.which(program, mode=os.F_OK):
        return _refuse(program, "it is not executable", 126)
    return _refuse(program, "it is not found on PATH", 127)


def _refuse(program: str, reason: str, code: int) -> int:
    hint = f" Try `launch python3 {program}`." if program.endswith(".py") else ""
    _tell(f"cannot run {program} (from the command line): {reason}; expected a program.{hint}")
    return code


def _announce(plan: LaunchPlan, found: Survey, log_dir: str) -> None:
    placement, devices = plan.placement, found.devices
    ranks, first, several = placement.world_size, placement.hosts[0], len(placement.hosts) > 1
    who = f"{ranks} rank{'s'[: ranks > 1]} on {f'{len(placement.hosts)} hosts from {first} on' if several else first}"
    device = f"{devices.count} {devices.kind} devices per host" if devices.count else "cpu"
    _tell(f"{who} ({placement.origin}), {device}")
    address, port = plan.master
    through = ""
    if several:
        route = route_to(address.value)
        through = f" through {route.interface}" if route.interface not in {"", "lo"} else ""
    more = (f", site {plan.site.name}" if plan.site else "") + (f", logs in {log_dir}" if log_dir else "")
    _tell(
        f"{plan.flavour_name} launcher ({plan.choice.reason}), rendezvous at {address.value}:{port.value}{through}{more}"
    )
    if not devices.count and not several and ranks > cores():
        _tell(f"note: {ranks} ranks share {cores()} cores")


def _run(plan: LaunchPlan, found: Survey, wishes: Wishes) -> int:
    """Run to the end; again with another port when the one that was chosen is taken on the first host."""
    began, command = time.time(), list(wishes.command)
    launch = os.urandom(8).hex()
    outer = plan.environ.get("EZPZ_LAUNCH_ID")
    launch = f"{outer}/{launch}" if outer else launch
    log_dir = os.path.abspath(wishes.log_dir) if wishes.log_dir else ""
    kept, note = record.launch_folder(log_dir, launch, began)
    if note:
        _tell(f"note: {note}")
    folder = tempfile.mkdtemp(prefix="ezpz-launch-") if plan.needs_hostfile else ""
    limits = Limits(wishes.start_timeout, wishes.timeout, wishes.idle_timeout, wishes.exit_timeout)
    screen = Screen(plan.placement.world_size, label=wishes.label)
    wall = Wall(found.allocation, plan.environ)
    try:
        plan = plan.with_hostfile(folder)
        line = shlex.join([*plan.prefix(), *command])[:LONGEST_VARIABLE]
        hosts = named_hosts(plan.placement.hosts)
        plan = plan.and_settings(
            {"EZPZ_HOSTS": Setting(hosts, "the plan"), "EZPZ_LAUNCH_CMD": Setting(line, "this launch")}
        )
        return _until_met(
            plan,
            found,
            log_dir,
            lambda met: Start(
                met, command, launch, limits, screen, log_dir=log_dir, folder=kept, wall=wall, began=began
            ),
        )
    finally:
        screen.close()
        wall.close()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _until_met(plan: LaunchPlan, found: Survey, log_dir: str, start: Callable[[LaunchPlan], Start]) -> int:
    """Start the ranks, again where another program has taken the port on a host that is not this one."""
    # A scheduler vouches for its hosts where this one is none of them.
    must_know = not found.allocation.job_id or any(map(is_here, found.allocation.hosts))
    for attempt in range(_MOST_STARTS):
        met, held, note = _met(replace(plan, run_id=os.urandom(8).hex()), must_know=must_know)
        if not attempt:
            _announce(met, found, log_dir)
            if note:
                _tell(f"note: {note}")
        try:
            code = start(met).run()
        finally:
            if held:
                held.close()
        if code != PORT_TAKEN:
            return code
        port, origin = met.master[1]
        if origin == "MASTER_PORT":
            raise UsageError(
                f"cannot use port {port} (from MASTER_PORT): it is taken on {met.placement.hosts[0]}; expected a free one. "
                "Run `unset MASTER_PORT`, or set another."
            )
        _tell(f"port {port} is taken on {met.placement.hosts[0]}; starting again with another")
    raise LaunchError(
        f"no free port on {plan.placement.hosts[0]} in {_MOST_STARTS} starts (ports below 32000); expected one. "
        "Set MASTER_PORT to a free one."
    )
