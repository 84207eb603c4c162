"""Run ``ezpz kill``: end a launch, and what is left of one whose launcher is gone.

A process belongs to a launch by its record or its socket (`ezpz.register`) and by EZPZ_LAUNCH_ID in its environment,
never by a name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from argparse import SUPPRESS
from contextlib import suppress
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.cluster.questions import SCHEDULER_LIMIT
from ezpz.errors import EzpzError, MachineError, UsageError
from ezpz.interpreter import module_line
from ezpz.jobs.job_handler import handler
from ezpz.jobs.job_state import QUEUED, RUNNING
from ezpz.jobs.queued_jobs import forget_jobs, my_jobs, scheduler_questions, user_name
from ezpz.jobs.running_launches import left_behind, left_lines, table
from ezpz.launch.ask_launch import ask
from ezpz.launch.host import process_tree
from ezpz.records.launch_record import LaunchRecord
from ezpz.register import Launch, folders_of, lives, named, recorded, running
from ezpz.track.named import JobAloneError, UnknownError, id_named, names_another, running_named, unknown
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Sequence

_OPTIONS = (
    option(
        "ids",
        nargs="*",
        metavar="ID",
        help=f"of the list: {LAUNCH_HELP}",
    ),
    option("--all", action="store_true", help="all launches of that list"),
    option(
        "--hosts",
        default="",
        metavar="LIST",
        help="end what is left of ID on these hosts too: for a launch whose launcher is gone; the whole ID is needed",
    ),
    option("--job", action="store_true", help="the same on every host of the job"),
    option(
        "--now",
        action="store_true",
        help="SIGKILL at once; else ranks save if they can, the launcher passes SIGTERM on, and has 15 seconds",
    ),
    option("--here", action="store_true", help=SUPPRESS),  # how this verb calls itself on other hosts
)
_ABOUT = """\
All its processes are ended. Without ID the launches of yours are listed. One on another host, as seen from a login
host, is asked by ssh, or by the scheduler's own way into its job."""
_EXAMPLES = (
    ("ezpz kill", "what runs here"),
    ("ezpz kill 4f1c", "end the launch whose id begins so"),
    ("ezpz kill --job WHOLE-ID", "what is left of it on all hosts of the job"),
)
_EXITS = (
    ("0", "nothing of it is left"),
    ("2", "no such launch: the line says which there are"),
    ("125", "with the pids of what is left"),
)
_GONE = " `ezpz kill` lists those that run. Where its launcher is gone: `ezpz kill --job WHOLE-ID`, or --hosts."
_UNTIL_GONE = 5.0  # seconds for SIGKILL to be obeyed: a process that waits for its file system does not
_PATIENCE, _TIDIES = 15.0, 5.0  # seconds: the launcher gives its ranks 10, and tidies up
_HEARD = 2.0  # seconds for a launcher of this host to take a word; else it gets a signal
_ID = r"[0-9a-f]{8,}(/[0-9a-f]{8,})*"  # the whole id of a launch
_SHOWN = 6  # names of what there is
_LOOK = 0.25  # seconds between two looks into a record


def main(argv: Sequence[str]) -> int:
    """List or end launches and return the exit code."""

    def kill(options: Namespace) -> int:
        _check(options)
        if options.here:
            return _end_here(options.ids)
        # Typed inside a launch: it shall not end itself, nor its helpers one another.
        if os.environ.pop("EZPZ_LAUNCH_ID", ""):
            os.environ[process_tree.SPARED] = "1"
            os.execv(sys.executable, [*module_line("ezpz"), "kill", *argv])
        return _end(options) if options.ids or options.all else _list()

    usage = "[ID ...] [options]"
    parser = make_verb_parser("kill", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, kill)


def _check(options: Namespace) -> None:
    """Refuse options that do not fit together.

    Raises:
        UsageError: They do not.
    """
    if options.hosts and options.job:
        raise UsageError("--hosts and --job both name the hosts (from the command line); expected one of them.")
    if (options.hosts or options.job) and not options.ids:
        name = "--job" if options.job else "--hosts"
        raise UsageError(
            f"{name} needs the ID of a launch (from the command line), and the whole one where its launcher is gone: "
            "it is in run.json and in EZPZ_LAUNCH_ID of its processes."
        )


def _list() -> int:
    here, elsewhere = running()
    left = left_behind(here)
    lost = _lost(elsewhere)
    elsewhere = [launch for launch in elsewhere if launch.launch_id not in lost]
    parts = [table(here)] if here else [f"no launch of yours runs on {os.uname().nodename}"]
    parts += left_lines(left)
    parts += [f"on other hosts, by their records:\n{table(elsewhere, elsewhere=True)}"] if elsewhere else []
    parts += ["\n".join(lost.values())] if lost else []
    any_here = bool(here or left)
    all_here = (
        ", `ezpz kill --all` all on this host" if any_here and elsewhere else ", `ezpz kill --all` all" * any_here
    )
    parts += [f"`ezpz kill ID` ends one of them{all_here}."] if any_here or elsewhere else []
    show("\n\n".join(parts))
    return 0


def _lost(launches: Sequence[Launch]) -> dict[str, str]:
    """Return the launches whose schedulers do not know their jobs, by their ids, each with a line about it."""
    in_jobs = [launch for launch in launches if launch.job]
    if not in_jobs:
        return {}
    since = max(launch.started for launch in in_jobs)
    jobs = my_jobs(os.environ, user_name(), scheduler_questions(SCHEDULER_LIMIT), since)
    forgot = ((each, jobs.who_forgot(each.scheduler, each.job, each.started)) for each in in_jobs)
    return {
        each.launch_id: f"launch {each.launch_id} on {each.host} recorded no end, and {who} does not know its job "
        f"{each.job}: `ezpz status {each.launch_id}` says what is known"
        for each, who in forgot
        if who
    }


def _end(options: Namespace) -> int:
    """End what was named; first it is made sure that every name means something."""
    here, elsewhere = running()
    left_here = [Launch(entry["launch_id"]) for entry in left_behind(here)]
    on_hosts = bool(options.hosts or options.job)
    meant = {launch.launch_id: launch for launch in ((*here, *left_here) if options.all else ())}
    asked: list[Launch] = []
    find = _on_hosts if on_hosts else _known
    for word in options.ids:
        try:
            launch = find(word, [*here, *elsewhere], left_here)
        except UnknownError as error:
            raise _with_jobs(error, [*here, *elsewhere]) from None
        if launch in elsewhere and not on_hosts:
            asked.append(launch)
        else:
            meant[launch.launch_id] = launch
    hosts = _hosts(options) if on_hosts else None
    for launch in (*asked, *meant.values()):
        _stop_chain(_record_of(launch))
    codes = [_end_elsewhere(launch, now=options.now) for launch in asked]
    left: dict[str, dict[str, list[int]]] = {}
    unseen = {name for name in meant if on_hosts and not _is_known(name, [*here, *elsewhere, *left_here])}
    for name, launch in meant.items():
        _stop(launch, 0.0 if options.now else _PATIENCE)
        left[name] = {os.uname().nodename: process_tree.kill_all(name, everything=True)}
    try:
        if hosts is not None:
            for name, host, pids, is_seen in _on_others(list(meant), hosts):
                left[name][host] = pids
                unseen -= {name} if is_seen else set()
    finally:  # what is known is reported in any case
        code = _report({name: of_hosts for name, of_hosts in left.items() if name not in unseen})
    forget_jobs(os.environ)
    for name in sorted(unseen):
        on = ", ".join(sorted(left[name]))
        raise _with_jobs(unknown(name, more=f" No process of it was found on {on}."), [*here, *elsewhere])
    return max([code, *codes])


def _is_known(name: str, runs: Sequence[Launch]) -> bool:
    """Tell whether there is a launch of this id, by its record or its processes on this host."""
    is_listed = any(launch.launch_id == name for launch in runs)
    return is_listed or bool(folders_of(name)) or bool(process_tree.tagged(name, everything=True))


def _with_jobs(error: UnknownError, runs: Sequence[Launch]) -> UnknownError:
    """Return the error with what there is: the launches that run, and the jobs that wait or run."""
    if isinstance(error, JobAloneError):
        known = handler(error.job.scheduler)
        cancel = f" `{shlex.join([*known.cancelling, error.job.job])}` cancels it." if known else ""
        return UnknownError(f"{error}{cancel if error.job.state in {QUEUED, RUNNING} else ''}")
    jobs = my_jobs(os.environ, user_name(), scheduler_questions(SCHEDULER_LIMIT)).jobs
    launches = [f"{each.launch_id} (job {each.job})" if each.job else each.launch_id for each in runs]
    listed = [f"{job.job} ({job.state})" for job in jobs if job.state in {QUEUED, RUNNING}]
    parts = [f" {what}: {_few(names)}." for what, names in (("Launches that run", launches), ("Jobs", listed)) if names]
    return UnknownError(f"{error}{''.join(parts)}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _named(word: str, runs: Sequence[Launch], left: Sequence[Launch]) -> Launch | None:
    """Return the launch whose job or id a word is, or begins where it is no name of runs."""
    # The record of one whose launcher is gone still tells its whole id.
    launch = named([*runs, *left], word) or named(recorded(running=True), word)
    return None if launch and names_another(word, launch) else launch


def _known(word: str, runs: Sequence[Launch], left: Sequence[Launch]) -> Launch:
    """Return the launch that a word means, of those that run and those that have left processes on this host.

    Raises:
        UsageError: There is none.
    """
    launch = _named(word, runs, left)
    if launch in runs or process_tree.tagged(launch.launch_id if launch else word, everything=True):
        return launch or Launch(word)
    launch = running_named(word, runs)
    if launch is None:
        raise unknown(word, more=_GONE)
    return launch


def _on_hosts(word: str, runs: Sequence[Launch], left: Sequence[Launch]) -> Launch:
    """Return the launch that a word means, which may be known by its whole id on other hosts alone.

    Raises:
        UsageError: There is none.
    """
    launch = _named(word, runs, left)
    name = launch.launch_id if launch else id_named(word) or word
    if not re.fullmatch(_ID, name, re.ASCII) and not process_tree.tagged(name, everything=True):
        raise unknown(word, more=_GONE)
    return launch or Launch(name)


def _record_of(launch: Launch) -> LaunchRecord:
    """Return the record of a launch; an empty one where there is none, or that of another in the same --log-dir."""
    record = LaunchRecord.read(Path(launch.folder, "run.json")) if launch.folder else LaunchRecord()
    return record if record.launch_id == launch.launch_id else LaunchRecord()


def _stop_chain(record: LaunchRecord) -> None:
    """Have the chain of jobs to which a launch belongs end with it: its next job would go on with what is ended here.

    It is asked for before the launch is, which cancels the job that waits.
    """
    from ezpz.jobs.job_chain import stop_chain_of

    try:
        path = stop_chain_of(record, f"`ezpz kill` on {os.uname().nodename} has ended a job")
    except OSError as error:
        show(f"ezpz: note: the chain of jobs is not told to stop: {error.strerror}", sys.stderr)
    else:
        if path:
            show(f"no further job of its chain trains: {path} asks for it; remove it to go on")


def _end_elsewhere(launch: Launch, *, now: bool) -> int:
    """Have a launch on another host end itself, and return the exit code."""
    name, host = launch.launch_id, launch.host
    ask(launch, "kill" if now else "end")
    after = _wait_for_end(launch, _UNTIL_GONE + _PATIENCE)
    if not now and after.state == "running" and after.ends_within:  # it saves
        after = _wait_for_end(launch, after.ends_within)
    if after.state == "running":
        show(
            f"ezpz: launch {name} on {host} was asked to end and has recorded no end; expected one within "
            f"{_UNTIL_GONE + _PATIENCE:.0f} s. "
            + (f"Cancel its job, {launch.job}." if launch.job else f"Run `ezpz kill` on {host}."),
            sys.stderr,
        )
        return 125
    show(f"launch {name} on {host}: ended with {after.exit_code}")
    return 0


def _wait_for_end(launch: Launch, patience: float) -> LaunchRecord:
    """Wait until the record of a launch tells its end, and return what it says by then."""
    end = time.monotonic() + patience
    while True:
        after = _record_of(launch)
        if (after.raw and after.state != "running") or time.monotonic() >= end:
            return after
        time.sleep(_LOOK)


def _stop(launch: Launch, patience: float) -> None:
    """End a launcher, which takes its ranks on all hosts with it; SIGKILL ends one that does not hear, or is late.

    Args:
        launch: Nothing is done where it does not run here.
        patience: Seconds that it has; without any its ranks are killed at once.
    """
    if not launch.is_here or not lives(launch):
        return
    began = time.monotonic()
    try:
        ask(launch, "end" if patience else "kill", _HEARD)
        patience = patience or _UNTIL_GONE
    except MachineError:  # it begins, is stopped, or of another version
        _signal(launch, signal.SIGTERM if patience else signal.SIGKILL)
    if patience and not _is_gone_by(launch, began + patience):
        _is_gone_by(launch, began + (_record_of(launch).ends_within or 0.0) + _TIDIES)
    _signal(launch, signal.SIGKILL)
    _is_gone_by(launch, time.monotonic() + _UNTIL_GONE)


def _signal(launch: Launch, number: int) -> None:
    if launch.pid and lives(launch):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(launch.pid, number)


def _is_gone_by(launch: Launch, end: float) -> bool:
    """Wait for the end of a launcher, and tell whether it came in time."""
    while lives(launch):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _report(left: dict[str, dict[str, list[int]]]) -> int:
    code = 0
    for name, hosts in left.items():
        stay = "; ".join(f"{', '.join(map(str, pids))} on {host}" for host, pids in sorted(hosts.items()) if pids)
        if stay:
            show(
                f"ezpz: of launch {name} these processes would not go: {stay}; expected none. They wait for a file "
                "system or a device that does not answer, or are another user's.",
                sys.stderr,
            )
            code = 125
        else:
            show(f"launch {name}: nothing is left on {', '.join(sorted(hosts))}")
    return code


def _hosts(options: Namespace) -> list[str]:
    """Return the options that send a launch to the hosts that were named."""
    if options.hosts:
        return ["--hosts", options.hosts]
    from ezpz.cluster import detect
    from ezpz.cluster.scheduler import schedulers

    found = detect(os.environ)
    if not found.job_id:
        for note in found.notes:
            show(f"ezpz: note: {note}", sys.stderr)
        known = ", ".join(one.title for one in schedulers())
        raise UsageError(f"no job around this shell (for --job); expected one of {known}. Use --hosts LIST.")
    return []


def _on_others(ids: list[str], hosts: list[str]) -> Iterable[tuple[str, str, list[int], bool]]:
    """Run this verb on other hosts, one process on each; yield launch, host, what would not go, whether there was any.

    Raises:
        UsageError: The hosts cannot be used.
        EzpzError: Not every host has answered.
    """
    import subprocess  # 3 ms that a kill on this host alone need not pay for

    start = [*module_line("ezpz.launch"), "--ppn", "1", "--oversubscribe", *hosts, "--"]
    line = [*start, *module_line("ezpz"), "kill", "--here", *ids]
    # This launch is no training of a chain of jobs.
    environ = {name: value for name, value in os.environ.items() if name != "EZPZ_CHAIN"}
    done = subprocess.run(line, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    for text in done.stdout.splitlines():
        try:
            answer = json.loads(text)
            seen = answer.get("seen", answer["left"])
            yield from [(name, answer["host"], pids, name in seen) for name, pids in answer["left"].items()]
        except (ValueError, TypeError, KeyError, AttributeError):  # a line of the launcher's own
            continue
    if done.returncode:
        error = EzpzError(
            f"not every host has answered: `{' '.join(start)} …` ended with {done.returncode}; see above."
        )
        error.exit_code = 2 if done.returncode == 2 else 125
        raise error


def _end_here(ids: Sequence[str]) -> int:
    """Kill what carries these ids, and print what would not go; 0 in any case, so that no host stops the others."""
    seen = [name for name in ids if process_tree.tagged(name, everything=True)]
    left = {name: process_tree.kill_all(name, everything=True) for name in ids}
    print(json.dumps({"host": os.uname().nodename, "left": left, "seen": seen}), flush=True)
    return 0
