"""Keep ``run.json``, the record of a launch and of how it ended; docs/runs.md describes the fields.

    ~/.local/state/ezpz/launches/2026-11-21-191256-5f3a90c2/run.json

Written when ranks have been started and again at the end, each time as a whole. Nothing here may fail a launch: the
caller gets the reason why something could not be kept.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import time

from ezpz import register
from ezpz.errors import MachineError, UsageError
from ezpz.files import own_state_folder, private_folder, read_bytes, remove_folder, write_whole
from ezpz.records.stored_files import SCHEMA
from ezpz.redact import redact_argv, redact_config

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ezpz.launch.plan import LaunchPlan
    from ezpz.records.launch_record import LaunchRecord

_KEPT = 100  # launches
_LONGEST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_OURS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{6}-[^/]{1,8}")


def launch_folder(log_dir: str, launch_id: str, when: float) -> tuple[str, str]:
    """Return the folder for a launch's records, made when absent, and a note where it is not the usual one.

    `forget_old` keeps their number small; it is left to the caller, because it costs a launch milliseconds.

    Args:
        log_dir: Absolute path of ``--log-dir``, or empty.
        launch_id: The launch's id.
        when: When it began, in seconds since 1970-01-01 UTC.

    Returns:
        The path and a note; an empty path where nothing can be written.

    Raises:
        UsageError: ``log_dir`` cannot be made or written.
    """
    if log_dir:
        reason = _made(log_dir)
        if reason:
            raise UsageError(f"cannot use {log_dir} (from --log-dir): {reason}; expected a folder that you may write.")
        return log_dir, ""
    name = _name(launch_id, when)
    try:
        return own_state_folder(os.environ, register.IN_HOME, name), ""
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    try:
        folder = private_folder(register.IN_TEMPORARY, name)
    except MachineError as error:
        return "", f"no record of this launch is kept: {reason}; {error}"
    return folder, f"the record of this launch is in {folder} ({reason})"


def _made(folder: str) -> str:
    """Make a folder and return an empty text, or why it cannot be used."""
    try:
        os.makedirs(folder, mode=0o770, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"


def link(folder: str, launch_id: str, when: float) -> None:
    """Let a launch whose record is in ``--log-dir`` be found among all others, by a link.

    Args:
        folder: What `launch_folder` returned.
        launch_id: The launch's id.
        when: When it began, in seconds since 1970-01-01 UTC.
    """
    if not folder or _OURS.fullmatch(os.path.basename(folder)):
        return
    try:
        place = os.path.join(_folder_of_links(), _name(launch_id, when))
        os.symlink(folder, place)
        forget_old(place)
    except (OSError, MachineError):
        pass  # it is there already: an attempt of the same launch; or no folder of records can be written


def _folder_of_links() -> str:
    """Return the folder of records, as `launch_folder` chooses it.

    Raises:
        MachineError: There is none.
    """
    try:
        folder = own_state_folder(os.environ, register.IN_HOME)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass  # there is no home, or it cannot be written
    return private_folder(register.IN_TEMPORARY)


def _name(launch_id: str, when: float) -> str:
    return time.strftime("%Y-%m-%d-%H%M%S", time.localtime(when)) + f"-{launch_id.rpartition('/')[2][:8]}"


def forget_unused(folder: str) -> None:
    """Remove a launch's own folder when nothing was written there, because the launch ended before it began."""
    if folder and _OURS.fullmatch(os.path.basename(folder)):  # not a --log-dir
        try:
            os.rmdir(folder)
        except OSError:
            pass  # it holds a record


def forget_old(folder: str) -> None:
    """Remove all but the newest 100 folders beside a launch's own; those that run stay, a user's own are never read.

    Args:
        folder: What `launch_folder` returned.
    """
    base, newest = os.path.split(folder)
    if os.path.basename(base) not in {register.IN_HOME, register.IN_TEMPORARY} or not _OURS.fullmatch(
        newest
    ):  # a --log-dir
        return
    try:
        names = sorted(name for name in os.listdir(base) if _OURS.fullmatch(name) and name != newest)
    except OSError:
        return
    for name in names[: max(0, len(names) - _KEPT + 1)]:  # their names begin with the time
        old = os.path.join(base, name)
        if not _may_run(old):
            remove_folder(old)  # the link alone, of a --log-dir: that is the user's


def _may_run(folder: str) -> bool:
    """Tell whether a launch may still run, here or on another host with the same home."""
    path = os.path.join(folder, "run.json")
    try:
        is_running = b'"state": "running"' in read_bytes(path)
        return is_running and time.time() - os.stat(path).st_mtime < _LONGEST
    except OSError:  # none was written: it ended before its ranks started
        return False


def write(folder: str, fields: Mapping[str, Any], name: str = "run.json") -> str:
    """Write ``run.json``, or another file of the record, as a whole, readable by this user alone and without secrets,
    whoever has added them.

    Returns:
        An empty text, or why it could not be written.
    """
    import json  # once ranks run: it costs a launch 3 ms

    if not folder:
        return ""
    path = os.path.join(folder, name)
    try:
        write_whole(path, json.dumps(redact_config(fields), indent=1) + "\n", private=True)
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def started(plan: LaunchPlan, when: float, socket: str = "") -> dict[str, Any]:
    """Return the fields of ``run.json`` for a launch that has begun.

    Args:
        plan: The plan, with the scheduler's name and job among its variables.
        when: When it began, in seconds since 1970-01-01 UTC.
        socket: Where it is asked.
    """
    shown = redact_argv(plan.command)
    scheduler, job = (plan.more[name].value if name in plan.more else "" for name in ("EZPZ_SCHEDULER", "EZPZ_JOBID"))
    return {
        "schema": SCHEMA,
        "launch_id": plan.supervision.launch_id,
        "state": "running",
        "started": round(when, 3),  # in front of what may be long, for `ezpz.register`
        "launcher": register.launcher(socket),
        "command": shown,
        "cwd": _cwd(),
        "host": os.uname().nodename,
        "output": _output(),
        "ended": None,
        "seconds": None,
        "plan": {
            "hosts": list(plan.placement.hosts),
            "ranks_per_host": list(plan.placement.counts),
            "world_size": plan.placement.world_size,
            "flavour": plan.flavour_name,
            "program": plan.choice.exe or None,
            "reason": plan.choice.reason,
            "mpi": plan.mpi.value,
            "line": shlex.join([*redact_argv(plan.prefix()), *shown]),
            "scheduler": None if scheduler in {"", "none"} else scheduler,
            "job_id": job or None,
            "master": f"{plan.address.value}:{plan.port.value}",
        },
        "stages": {},
        "silent": [],
        "lost": [],
        "blames": {},
        "step": None,
        "began": False,
        "job_ends": None,
        "ends_within": None,
        "asked_to_save": None,
        "verdict": None,
        "exit_code": None,
        "cause": None,
        "failures": [],
        "hang": None,
        "causes": [],
        "run_folder": None,
        "notes": [],
    }


def ended(fields: Mapping[str, Any], began: float, code: int, when: float, *, stopped: bool = False) -> dict[str, Any]:
    """Return the fields of ``run.json`` for a launch that is over.

    Args:
        fields: What `started` returned, with what was learnt since.
        began: When it began, in seconds since 1970-01-01 UTC.
        code: Exit code of the launch.
        when: When it ended, in seconds since 1970-01-01 UTC.
        stopped: Whether it was ended from outside: by a signal or a limit that the user set.
    """
    state = "stopped" if stopped else "failed" if code else "finished"
    seconds = round(when - began, 3)
    return {**fields, "state": state, "ended": round(when, 3), "seconds": seconds, "exit_code": code}


def complete(folder: str, plan: LaunchPlan, began: float, text: str, *, code: int) -> None:
    """Write the end of a launch into its ``run.json``, where the supervisor could not.

    Args:
        folder: Of the record; nothing is written without one.
        plan: The plan of its last start.
        began: When it began, in seconds since 1970-01-01 UTC.
        text: What ended it.
        code: Exit code of the launch.
    """
    known = _read(folder, plan)
    fields = known.raw or started(plan, began)  # it may break before that was written
    earlier = [*([fields["cause"]] if known.cause else ()), *fields["failures"]]
    begun = {**fields, "cause": failure(text), "failures": earlier}
    write(folder, ended(begun, known.started or began, code, time.time()))


def says_running(folder: str, plan: LaunchPlan) -> bool:
    """Tell whether the record of this launch lacks its end."""
    return _read(folder, plan).state == "running"


def _read(folder: str, plan: LaunchPlan) -> LaunchRecord:
    """Return this launch's record; an empty one where there is none, or that of another."""
    from ezpz.records.launch_record import LaunchRecord

    known = LaunchRecord.read(os.path.join(folder, "run.json")) if folder else LaunchRecord()
    return known if known.launch_id == plan.supervision.launch_id else LaunchRecord()


def failure(
    text: str,
    *,
    rank: int | None = None,
    host: str | None = None,
    pid: int | None = None,
    code: int | None = None,
    log: str | None = None,
    words: str | None = None,
    why: str | None = None,
    step: int | None = None,
    kernel: Mapping[str, Any] | None = None,
    room: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return one entry for ``cause`` or ``failures``.

    Args:
        text: Its line on stderr.
        rank: The rank that failed, where it is known.
        host: Its host.
        pid: Its process.
        code: Its exit code, or minus the signal that killed it.
        log: Path of the file with its output.
        words: The last that it wrote.
        why: What its code does not explain, such as a connection that ended.
        step: The last step that the rank told.
        kernel: What the kernel of its host has counted of memory.
        room: Of file systems, where it could not write.
    """
    name = None
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        code = None
    return {
        "text": text,
        "rank": rank,
        "host": host,
        "pid": pid,
        "code": code,
        "signal": name,
        "log": log,
        "words": words,
        "why": why,
        "step": step,
        "kernel": kernel,
        "room": list(room),
    }


def _output() -> str | None:
    """Return the file that stdout is, as in a job; None where it is none."""
    try:
        if not stat.S_ISREG(os.fstat(1).st_mode):
            return None
        path = os.readlink("/proc/self/fd/1")
        return path if os.path.samestat(os.stat(path), os.fstat(1)) else None
    except OSError:  # it is closed or was removed; or this is macOS
        return None


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None
