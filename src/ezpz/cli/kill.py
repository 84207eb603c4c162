"""``ezpz kill``: end a launch, and what is left of one whose launcher is gone.

Who belongs to a launch is decided by the index of running launches and by EZPZ_LAUNCH_ID in a process's environment,
never by a name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from ezpz.cli.running import choose, table
from ezpz.cli_parser import VerbParser
from ezpz.errors import EzpzError, UsageError, end_with
from ezpz.launch.host import process_tree
from ezpz.launch.record import Index, is_running

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

__all__ = ["main"]

_HELP = """\
usage: ezpz kill [ID ...] [--all] [--hosts LIST | --job] [--now]

End a launch of yours and all its processes; without ID list those that run on this host. ID is an id of that list, or its first
characters, at least 4.

  --all         all launches of that list
  --hosts LIST  end what is left of ID on these hosts too: for a launch whose launcher is gone; the whole ID is needed
  --job         the same on every host of the job
  --now         SIGKILL at once; else the launcher passes SIGTERM on, and has 15 seconds

Exit code 0 when nothing of it is left, 125 with the pids of what is.
"""
_UNTIL_GONE = 5.0  # seconds for SIGKILL to be obeyed: a process that waits for its file system does not
_PATIENCE = 15.0  # seconds: the launcher gives its ranks 10, and tidies up


def main(argv: Sequence[str]) -> int:
    """List or end launches and return the exit code."""
    try:
        wishes = _parse(argv)
        if wishes.help:
            print(_HELP, end="")
            return 0
        if wishes.here:
            return _end_here(wishes.ids)
        if os.environ.pop(
            "EZPZ_LAUNCH_ID", ""
        ):  # typed inside a launch: it shall not end itself, nor its helpers one another
            os.execv(sys.executable, [sys.executable, "-m", "ezpz", "kill", *argv])
        return _end(wishes) if wishes.ids or wishes.all else _list()
    except EzpzError as error:
        return end_with(error)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = VerbParser("ezpz kill")
    parser.add_argument("ids", nargs="*")
    for name in ("--all", "--job", "--now", "--here"):  # --here is how this verb calls itself on other hosts
        parser.add_argument(name, action="store_true")
    parser.add_argument("--hosts", default="")
    parser.add_argument("-h", "--help", action="store_true")
    wishes = parser.parse_intermixed_args(list(argv))
    if wishes.hosts and wishes.job:
        raise UsageError("--hosts and --job both name the hosts (from the command line); expected one of them.")
    if (wishes.hosts or wishes.job) and not wishes.ids and not wishes.help:
        option = "--job" if wishes.job else "--hosts"
        raise UsageError(
            f"{option} needs the ID of a launch (from the command line), and the whole one where its launcher is gone: it "
            "stands in run.json and in EZPZ_LAUNCH_ID of its processes."
        )
    return wishes


def _list() -> int:
    running = Index().running()
    if not running:
        print(f"no launch of yours runs on {os.uname().nodename}")
        return 0
    print(f"{table(running)}\n\n`ezpz kill ID` ends one of them, `ezpz kill --all` all.")
    return 0


def _end(wishes: argparse.Namespace) -> int:
    """End what was named; first it is made sure that every name means something."""
    running = Index().running()
    elsewhere = bool(wishes.hosts or wishes.job)
    named = {str(entry["launch_id"]): entry for entry in (running if wishes.all else ())}
    for word in wishes.ids:
        entry = choose(running, word)
        if entry is None and not elsewhere and not process_tree.tagged(word, everything=True):
            raise UsageError(
                f"no launch {word!r} (from the command line) on {os.uname().nodename}; expected one of the list of `ezpz kill`. "
                f"Where its launcher is gone: `ezpz kill --job WHOLE-ID`, or --hosts."
            )
        named[str(entry["launch_id"]) if entry else word] = entry or {}
    hosts = _hosts(wishes) if elsewhere else None
    left = {}
    for name, entry in named.items():
        _stop(entry, 0.0 if wishes.now else _PATIENCE)
        left[name] = {os.uname().nodename: process_tree.kill_all(name, everything=True)}
    try:
        if hosts is not None:
            for name, host, pids in _on_others(list(named), hosts):
                left[name][host] = pids
    finally:  # what is known is told in any case
        code = _told(left)
    return code


def _stop(entry: dict[str, Any], patience: float) -> None:
    """End a launcher, which takes its ranks on all hosts with it; without patience, or when that is over, by SIGKILL."""
    end = time.monotonic() + patience
    number = signal.SIGTERM if patience else signal.SIGKILL
    try:
        if is_running(entry):
            os.kill(entry["pid"], number)
        while is_running(entry) and time.monotonic() < end + _UNTIL_GONE:
            if number != signal.SIGKILL and time.monotonic() > end:
                number = signal.SIGKILL
                os.kill(entry["pid"], number)
            time.sleep(0.05)
    except ProcessLookupError:
        pass  # it ended meanwhile


def _told(left: dict[str, dict[str, list[int]]]) -> int:
    code = 0
    for name, hosts in left.items():
        stay = "; ".join(f"{', '.join(map(str, pids))} on {host}" for host, pids in sorted(hosts.items()) if pids)
        if stay:
            print(
                f"ezpz: of launch {name} these processes would not go: {stay}; expected none. They wait for a file system or "
                "a device that does not answer, or are another user's.",
                file=sys.stderr,
            )
            code = 125
        else:
            print(f"launch {name}: nothing is left on {', '.join(sorted(hosts))}")
    return code


def _hosts(wishes: argparse.Namespace) -> list[str]:
    """Return the options that send a launch to the hosts that were named."""
    if wishes.hosts:
        return ["--hosts", wishes.hosts]
    from ezpz.cluster import detect
    from ezpz.cluster.scheduler import schedulers

    if not detect(os.environ).job_id:
        known = ", ".join(one.title for one in schedulers())
        raise UsageError(f"no job around this shell (for --job); expected one of {known}. Use --hosts LIST.")
    return []


def _on_others(ids: list[str], hosts: list[str]) -> Iterable[tuple[str, str, list[int]]]:
    """Run this verb on other hosts, one process on each, and yield launch, host and what would not go.

    Raises:
        UsageError: The hosts cannot be used.
        EzpzError: Not every host has answered.
    """
    start = [sys.executable, "-m", "ezpz.launch", "--ppn", "1", "--oversubscribe", *hosts, "--"]
    line = [*start, sys.executable, "-m", "ezpz", "kill", "--here", *ids]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    for text in done.stdout.splitlines():
        try:
            told = json.loads(text)
            yield from [(name, told["host"], pids) for name, pids in told["left"].items()]
        except (ValueError, TypeError, KeyError, AttributeError):  # a line of the launcher's own
            continue
    if done.returncode:
        error = EzpzError(
            f"not every host has answered: `{' '.join(start)} …` ended with {done.returncode}; see above."
        )
        error.exit_code = 2 if done.returncode == 2 else 125
        raise error


def _end_here(ids: Sequence[str]) -> int:
    """Kill what carries these ids, and say on stdout what would not go; 0 in any case, so that no host stops the others."""
    left = {name: process_tree.kill_all(name, everything=True) for name in ids}
    print(json.dumps({"host": os.uname().nodename, "left": left}), flush=True)
    return 0
