"""``ezpz launch``: from the command line to the exit code of the run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from ezpz.errors import EzpzError, end_with
from ezpz.launch.contract import LONGEST_VARIABLE, cores, inherited, named_hosts
from ezpz.launch.folder import private_folder
from ezpz.launch.master import addresses, hold_port
from ezpz.launch.options import Wishes, parse
from ezpz.launch.planning import draw_up, survey
from ezpz.launch.supervise import Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.cluster.devices import Devices
    from ezpz.launch.plan import LaunchPlan

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``launch`` and return its exit code."""
    try:
        return _launch(parse(sys.argv[1:] if argv is None else argv, os.environ))
    except EzpzError as error:
        return end_with(error)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE


def _tell(text: str) -> None:
    """Speak on stderr: stdout belongs to the program."""
    try:
        print(f"ezpz: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more; the run goes on


def _launch(wishes: Wishes) -> int:
    found = survey(wishes)
    plan = draw_up(found)
    if not wishes.command or wishes.dry_run:
        return _show(plan, wishes)
    missing = _missing(plan, wishes.command[0])
    if missing:
        return missing
    for note in found.notes:
        _tell(f"note: {note}")
    return _run(plan, found.devices, list(wishes.command))


def _show(plan: LaunchPlan, wishes: Wishes) -> int:
    """Print what would run; the host file named in the line stays, so that the line can be pasted."""
    if plan.needs_hostfile:
        plan = plan.with_hostfile(private_folder(f"dry-run-{os.getpid()}"))
    plan = replace(plan, master=(plan.address, hold_port(plan.placement)[0]), run_id=os.urandom(4).hex())
    print("\n".join(plan.lines(list(wishes.command) or ["COMMAND"])))
    return 0


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


def _announce(plan: LaunchPlan, devices: Devices) -> None:
    placement = plan.placement
    ranks, first, several = placement.world_size, placement.hosts[0], len(placement.hosts) > 1
    who = f"{ranks} rank{'s'[: ranks > 1]} on {f'{len(placement.hosts)} hosts from {first} on' if several else first}"
    device = f"{devices.count} {devices.kind} devices per host" if devices.count else "cpu"
    _tell(f"{who} ({placement.origin}), {device}")
    _tell(f"{plan.flavour_name} launcher ({plan.reason}), rendezvous at {plan.master[0]}:{plan.master[1]}")
    if not devices.count and not several and ranks > cores():
        _tell(f"note: {ranks} ranks share {cores()} cores")


def _run(plan: LaunchPlan, devices: Devices, command: list[str]) -> int:
    port, held = hold_port(plan.placement)
    folder = tempfile.mkdtemp(prefix="ezpz-launch-") if plan.needs_hostfile else ""
    try:
        plan = plan.with_hostfile(folder)
        line = shlex.join([*plan.prefix(), *command])[:LONGEST_VARIABLE]
        extra = {**plan.extra, "EZPZ_HOSTS": named_hosts(plan.placement.hosts), "EZPZ_LAUNCH_CMD": line}
        plan = replace(plan, master=(plan.address, port), run_id=os.urandom(8).hex(), extra=extra)
        _announce(plan, devices)
        return _local(plan, command) if plan.flavour is None else _foreign(plan, command)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if held:
            held.close()


def _local(plan: LaunchPlan, command: list[str]) -> int:
    """Start the ranks ourselves; a single rank keeps the terminal, so that a debugger works."""
    world = plan.placement.world_size
    with Supervisor(_tell, own_session=world > 1) as run:
        for rank in range(world):
            stdin = None if rank == 0 and (world == 1 or _input()) else subprocess.DEVNULL
            try:
                run.start(command, plan.rank_environment(rank, os.environ), rank, stdin)
            except OSError as error:  # for example a script whose first line names no interpreter
                code = 127 if isinstance(error, FileNotFoundError) else 126
                return _refuse(command[0], str(error.strerror), code)
        return run.wait()


def _foreign(plan: LaunchPlan, command: list[str]) -> int:
    """Start ``mpiexec`` or ``srun``, and listen to the shims in front of the ranks."""
    from ezpz.launch.control import Control

    control = Control(addresses(plan.placement))
    has_input = _input()
    extra = {"EZPZ_CONTROL": control.variable, **({} if has_input else {"EZPZ_STDIN": "none"})}
    plan = replace(plan, extra={**plan.extra, **extra})
    environ = {**inherited(os.environ), **plan.shared()}
    try:
        with Supervisor(_tell, control) as run:
            run.start(plan.argv(command), environ, None, None if has_input else subprocess.DEVNULL)
            return run.wait()
    finally:
        control.close()


def _input() -> bool:
    """Tell whether there is input to pass on: a pipe or a file, and neither a terminal nor the null device."""
    try:
        return not os.isatty(0) and os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:  # closed
        return False
