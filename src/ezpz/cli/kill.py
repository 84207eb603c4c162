"""Run ``ezpz kill``: end a launch, and what is left of one whose launcher is gone.

A process belongs to a launch by the index of running launches and by EZPZ_LAUNCH_ID in its environment, never by
a name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import SUPPRESS
from pathlib import Path

from ezpz.cli import make_verb_parser
from ezpz.cli.elsewhere import ask_elsewhere, host_of, job_of, launch_named, recorded, table_elsewhere, wait_for_end
from ezpz.cli.running import choose, left_behind, left_lines, table
from ezpz.cli_parser import option, run_verb
from ezpz.errors import EzpzError, UsageError
from ezpz.interpreter import module_line
from ezpz.launch.host import process_tree
from ezpz.launch.record import Index, is_running
from ezpz.visible import show
from ezpz.why.record import read_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Sequence
    from typing import Any

_OPTIONS = (
    option(
        "ids",
        nargs="*",
        metavar="ID",
        help="a launch of the list, by its id or the first characters of it, at least 4; or its job",
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
host, is asked by a file beside its record, which both hosts must see."""
_EXAMPLES = (
    ("ezpz kill", "what runs here"),
    ("ezpz kill 4f1c", "end the launch whose id begins so"),
    ("ezpz kill --job WHOLE-ID", "what is left of it on all hosts of the job"),
)
_EXITS = (("0", "nothing of it is left"), ("2", "no such launch"), ("125", "with the pids of what is left"))
_UNTIL_GONE = 5.0  # seconds for SIGKILL to be obeyed: a process that waits for its file system does not
_LONGEST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_PATIENCE, _TIDIES = 15.0, 5.0  # seconds: the launcher gives its ranks 10, and tidies up


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
    running = Index().running()
    others, left = _running_elsewhere(running), left_behind(running)
    parts = [table(running)] if running else [f"no launch of yours runs on {os.uname().nodename}"]
    parts += left_lines(left)
    parts += [f"on other hosts, by their records:\n{table_elsewhere(others)}"] if others else []
    any_here = bool(running or left)
    here = ", `ezpz kill --all` all on this host" if any_here and others else ", `ezpz kill --all` all" * any_here
    parts += [f"`ezpz kill ID` ends one of them{here}."] if any_here or others else []
    show("\n\n".join(parts))
    return 0


def _running_elsewhere(running: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the launches that have recorded no end and are not among those of this host."""
    here = {str(entry["launch_id"]) for entry in running}
    host = os.uname().nodename
    return [
        fields
        for fields in recorded(running=True)
        if fields["launch_id"] not in here
        and host_of(fields) != host
        and time.time() - (fields.get("started") or 0.0) < _LONGEST
    ]


def _end(options: Namespace) -> int:
    """End what was named; first it is made sure that every name means something."""
    running = Index().running()
    left_here = left_behind(running)
    elsewhere = bool(options.hosts or options.job)
    named = {str(entry["launch_id"]): entry for entry in ((*running, *left_here) if options.all else ())}
    asked: list[dict[str, Any]] = []
    others = recorded(running=True) if options.ids else []
    for typed in options.ids:
        known = launch_named(others, typed)
        word = str(known["launch_id"]) if known else typed
        entry = choose([*running, *left_here], word)
        if entry is None and known is not None and not elsewhere and host_of(known) != os.uname().nodename:
            asked.append(known)
            continue
        if entry is None and not elsewhere and not process_tree.tagged(word, everything=True):
            raise UsageError(
                f"no launch {word!r} (from the command line) on {os.uname().nodename}; expected one of the list of "
                "`ezpz kill`. Where its launcher is gone: `ezpz kill --job WHOLE-ID`, or --hosts."
            )
        named[str(entry["launch_id"]) if entry else word] = entry or {}
    hosts = _hosts(options) if elsewhere else None
    for fields in [*asked, *(_record_of(entry) for entry in named.values())]:
        _stop_chain(fields)
    codes = [_end_elsewhere(fields, now=options.now) for fields in asked]
    left: dict[str, dict[str, list[int]]] = {}
    for name, entry in named.items():
        _stop(entry, 0.0 if options.now else _PATIENCE)
        left[name] = {os.uname().nodename: process_tree.kill_all(name, everything=True)}
    try:
        if hosts is not None:
            for name, host, pids in _on_others(list(named), hosts):
                left[name][host] = pids
    finally:  # what is known is reported in any case
        code = _report(left)
    return max([code, *codes])


def _record_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return ``run.json`` of a launch of this host; empty where there is none."""
    return read_launch(Path(str(entry["folder"]), "run.json")) if entry.get("folder") else {}


def _stop_chain(fields: dict[str, Any]) -> None:
    """Have the chain of jobs to which a launch belongs end with it: its next job would go on with what is ended here.

    It is asked for before the launch is, which cancels the job that waits.
    """
    from ezpz.launch.chain import stop_chain_of
    from ezpz.records.launch import LaunchRecord

    try:
        path = stop_chain_of(LaunchRecord.of(fields), f"`ezpz kill` on {os.uname().nodename} has ended a job")
    except OSError as error:
        show(f"ezpz: note: the chain of jobs is not told to stop: {error.strerror}", sys.stderr)
    else:
        if path:
            show(f"no further job of its chain trains: {path} asks for it; remove it to go on")


def _ends_within(record: dict[str, Any]) -> float:
    """Return how many seconds a launch has said that its end takes at most, because its ranks save; else 0."""
    return record.get("ends_within") or 0.0


def _end_elsewhere(fields: dict[str, Any], *, now: bool) -> int:
    """Have a launch on another host end itself, and return the exit code."""
    name, host = fields["launch_id"], host_of(fields)
    ask_elsewhere(fields, "kill" if now else "end", 0.0 if now else _PATIENCE)
    after = wait_for_end(fields, _UNTIL_GONE + _PATIENCE)
    if not now and after.get("state") == "running" and _ends_within(after):  # it saves
        after = wait_for_end(fields, _ends_within(after))
    if after.get("state") == "running":
        job = job_of(fields)
        show(
            f"ezpz: launch {name} on {host} was asked to end and has recorded no end; expected one within "
            f"{_UNTIL_GONE + _PATIENCE:.0f} s. "
            + (f"Cancel its job, {job}." if job else f"Run `ezpz kill` on {host}."),
            sys.stderr,
        )
        return 125
    show(f"launch {name} on {host}: ended with {after.get('exit_code')}")
    return 0


def _stop(entry: dict[str, Any], patience: float) -> None:
    """End a launcher, which takes its ranks on all hosts with it: by SIGKILL without patience, or when that is over."""
    began = time.monotonic()
    end = began + patience
    number = signal.SIGTERM if patience else signal.SIGKILL
    try:
        if is_running(entry):
            os.kill(entry["pid"], number)
        while is_running(entry) and time.monotonic() < end + _UNTIL_GONE:
            if number != signal.SIGKILL and time.monotonic() > end:
                end = max(end, began + _ends_within(_record_of(entry)) + _TIDIES)
            if number != signal.SIGKILL and time.monotonic() > end:
                number = signal.SIGKILL
                os.kill(entry["pid"], number)
            time.sleep(0.05)
    except ProcessLookupError:
        pass  # it ended meanwhile


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


def _on_others(ids: list[str], hosts: list[str]) -> Iterable[tuple[str, str, list[int]]]:
    """Run this verb on other hosts, one process on each, and yield launch, host and what would not go.

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
            yield from [(name, answer["host"], pids) for name, pids in answer["left"].items()]
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
    left = {name: process_tree.kill_all(name, everything=True) for name in ids}
    print(json.dumps({"host": os.uname().nodename, "left": left}), flush=True)
    return 0
