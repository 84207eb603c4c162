"""Show this user's running launches on this host as a table, find one by the beginning of its id, and find what is left
of one whose launcher is gone.
"""

from __future__ import annotations

import os
import shlex
import time

from ezpz.cli.columns import aligned
from ezpz.errors import UsageError
from ezpz.visible import visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SHORTEST = 4  # characters of an id that may stand for it
_HEAD = ("ID", "AGE", "RANKS", "HOSTS", "COMMAND")


def choose(running: Sequence[dict[str, Any]], word: str) -> dict[str, Any] | None:
    """Return the launch whose id begins with ``word``; None when there is none.

    A launch inside a rank of another is reached by its whole id, ``outer/inner``.

    Raises:
        UsageError: The word is too short, or several launches are meant.
    """
    if len(word) < _SHORTEST:
        raise UsageError(
            f"{word!r} is too short for a launch (from the command line); expected at least {_SHORTEST} characters of "
            "its id. Run `ezpz kill` for the list."
        )
    matches = {str(entry["launch_id"]): entry for entry in running if str(entry["launch_id"]).startswith(word)}
    if word in matches:
        return matches[word]
    outer = [name for name in sorted(matches) if not any(name.startswith(f"{other}/") for other in matches)]
    if len(outer) > 1:
        raise UsageError(
            f"{word!r} begins the ids of {len(outer)} launches (from the command line): {', '.join(outer)}; "
            "expected one. Give more characters."
        )
    return matches[outer[0]] if outer else None


def left_behind(running: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the launches of which processes are left on this host although their launcher is gone, as entries of the
    index: ``launch_id`` and ``pids``.

    Args:
        running: The launches that run here.
    """
    from ezpz.launch.host import process_tree
    from ezpz.launch.host.connection import is_launcher_gone

    known = {str(entry["launch_id"]) for entry in running}
    found = []
    for launch, pids in process_tree.by_launch().items():
        if launch in known or launch.partition("/")[0] in known:
            continue
        control = next(filter(None, (process_tree.variable(pid, "EZPZ_CONTROL") for pid in pids)), "")
        if control and is_launcher_gone(control):  # else its launcher runs elsewhere
            found.append({"launch_id": launch, "pids": pids})
    return found


def left_lines(left: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each of these launches (`left_behind`), with its processes."""
    return [
        f"of launch {entry['launch_id']}, whose launcher is gone, processes are left: "
        f"{', '.join(map(str, entry['pids']))}; `ezpz kill {entry['launch_id']}` ends them"
        for entry in left
    ]


def table(running: Sequence[dict[str, Any]]) -> str:
    """Return a line per launch: id, age, ranks, hosts, command."""
    return "\n".join(aligned([_HEAD, *map(_row, running)]))


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    command = entry.get("command") or []
    text = command if isinstance(command, str) else shlex.join(map(str, command))
    hosts = entry.get("hosts") or [os.uname().nodename]
    took = age(time.time() - float(entry.get("started") or time.time()))
    return str(entry["launch_id"]), took, str(entry.get("world_size", "?")), str(len(hosts)), visible(text)


def age(seconds: float) -> str:
    """Return a span of time in one unit: ``42 s``, ``12 min``, ``3.2 h``, ``5 d``."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
