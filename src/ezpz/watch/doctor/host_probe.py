"""Ask hosts how they are: by one launch, or side by side, each by one of its own, so that no host waits for another.

Attempts probe their hosts in the latter way, and `ezpz doctor` those of a job of which some do not come up. What a host
answers is that of `ezpz.watch.doctor.examine`.
"""

from __future__ import annotations

import json
import os
import signal
import time

from ezpz.errors import MachineError
from ezpz.fields import Record
from ezpz.interpreter import module_line
from ezpz.launch.host.connection import CUT_OFF
from ezpz.records.launch_record import LaunchRecord

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import Any

    Facts = dict[str, Any]

__all__ = ["HostAnswer", "ask_each", "ask_together"]

_AT_ONCE = 128  # launches, of 12 MiB each: see docs/attempts.md
_PATIENCE = 20.0  # seconds for the other hosts to answer when half of them have
_LONGEST = 90.0  # seconds for that half
_TO_END = 5.0  # seconds for the launches to end, and for those that do not, once more
_LOOK = 0.05  # seconds
_OWN = "ezpz: "  # how each line begins that `launch` itself writes
_OF_NO_RANK = ("WORLD_SIZE", "CPU_BIND", "EZPZ_CHAIN")  # what the user sets for a training


class HostAnswer(Record):
    """What has come of asking a host.

    Attributes:
        facts: What `ezpz.watch.doctor.examine` has found there; None where that has not come.
        began: Whether a process has begun there, however far it came.
        words: Why its launch has failed.
        said: The last line of another program meanwhile, such as ssh, or of an agent that cannot reach the launcher.
    """

    facts: Mapping[str, Any] | None
    began: bool
    words: str = ""
    said: str = ""


def ask_together(request: Mapping[str, Any], folder: str, *options: str) -> tuple[list[Facts], int, str, list[str]]:
    """Ask hosts by one launch, in which they also try to reach the first.

    Args:
        request: As `ezpz.watch.doctor.examine.examine` takes it.
        folder: For the record of the launch; it is made.
        options: Of `launch`: hosts, limits.

    Returns:
        What hosts have found, in the order of ranks; the exit code; why it failed; and the hosts of the plan.
    """
    child = _start(request, folder, options)
    try:
        code = child.wait()
    finally:
        _end([child])
    found = sorted(_facts(folder), key=lambda facts: (facts.get("master") or {}).get("rank", 0))
    code = code or (0 if found else MachineError.exit_code)
    cause = _cause(folder) or f"`launch` ended with {code} and no word"
    return found, code, cause, [*LaunchRecord.read(os.path.join(folder, "run.json")).plan.hosts]


def ask_each(hosts: Sequence[str], request: Mapping[str, Any], folder: str, *options: str) -> dict[str, HostAnswer]:
    """Ask each host by a launch of its own, and return what has come of it.

    When half of the hosts have answered, the others have 20 s. A host that was not even asked by then, because too many
    before it hang, is left out.

    Args:
        hosts: Their names, each once.
        request: As `ezpz.watch.doctor.examine.examine` takes it.
        folder: For the records of the launches; whoever made it removes it.
        options: Of `launch`, such as the launcher.
    """
    children: dict[str, subprocess.Popen[bytes]] = {}
    begun: dict[str, float] = {}
    waiting, limit = list(hosts), ("--timeout", str(2 * _LONGEST))  # should this process be killed
    end, is_counting = time.monotonic() + _LONGEST, False
    try:
        while time.monotonic() < end:
            running = sum(child.poll() is None for child in children.values())
            if not waiting and not running:
                break
            for host in waiting[: _AT_ONCE - running]:
                begun[host] = time.monotonic()
                children[host] = _start(request, os.path.join(folder, host), [*limit, "--hosts", host, *options])
                waiting.remove(host)
            answered = sum(child.returncode == 0 for child in children.values())
            if not (is_counting or waiting) and 2 * answered >= len(hosts):
                end, is_counting = min(end, time.monotonic() + _PATIENCE), True
            time.sleep(_LOOK)
    finally:
        now = time.monotonic()
        waited = {host: now - begun[host] for host, child in children.items() if child.poll() is None}
        _end(list(children.values()))
    return {host: _answer(os.path.join(folder, host), waited.get(host)) for host in children}


def _start(request: Mapping[str, Any], folder: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the launch of a process on each host that looks at it; it is none of the user's."""
    import subprocess

    from ezpz.watch.doctor.examine import stale_variables

    os.mkdir(folder, 0o700)
    # Nothing is looked at before: this is the look, and ``--check full`` would ask it again.
    fixed = ("--ppn", "1", "--oversubscribe", "--check", "off", "--log-dir", folder)
    examine = [*module_line("ezpz.watch.doctor.examine"), json.dumps(request)]
    dropped = {*stale_variables(os.environ), *_OF_NO_RANK}
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    with open(os.path.join(folder, "answer"), "wb") as out, open(os.path.join(folder, "words"), "wb") as words:
        return subprocess.Popen(
            [*module_line("ezpz.launch"), *options, *fixed, "--", *examine],
            env={**environ, "XDG_STATE_HOME": folder, "EZPZ_HARDWARE": "0"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=words,
            start_new_session=True,
        )


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the launches that still run, and with them what they started.

    A second signal has a launch kill its ranks at once, so that it still writes its record.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        left = [child for child in children if child.poll() is None]
        for child in left:
            child.send_signal(number)
        end = time.monotonic() + _TO_END
        while any(child.poll() is None for child in left) and time.monotonic() < end:
            time.sleep(_LOOK)
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def _answer(folder: str, waited: float | None) -> HostAnswer:
    """Return what has come of a launch; ``waited`` are the seconds after which it was ended, None if it ended itself.

    What it says of the signal that ended it is nothing about the host.
    """
    facts = next(iter(_facts(folder)), None)
    began = bool(facts or LaunchRecord.read(os.path.join(folder, "run.json")).began)
    words = _cause(folder) if waited is None else f"nothing came within {waited:.0f} s"
    said = next((line for line in _lines(folder) if CUT_OFF in line or not line.startswith(_OWN)), "")
    return HostAnswer(facts=facts, began=began, words=words, said=said.removeprefix(_OWN))


def _facts(folder: str) -> list[Facts]:
    """Return what each host has found; its last line holds the most."""
    from ezpz.watch.doctor.examine import parse_answer

    with open(os.path.join(folder, "answer"), encoding="utf-8", errors="replace") as file:
        return [*{facts["host"]: facts for line in file if (facts := parse_answer(line))}.values()]


def _cause(folder: str) -> str:
    """Return what ended a launch: the cause in its record, else the last line that it wrote, without our name."""
    cause = LaunchRecord.read(os.path.join(folder, "run.json")).failure.text
    if cause:
        return cause
    return next(iter(_lines(folder)), "").removeprefix(_OWN).removeprefix("launch: ")


def _lines(folder: str) -> list[str]:
    """Return the lines on stderr of a launch, the last one first."""
    with open(os.path.join(folder, "words"), encoding="utf-8", errors="replace") as file:
        return [line.strip() for line in reversed(file.readlines()) if line.strip()]
