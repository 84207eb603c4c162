"""Show this user's running launches as tables, and find what is left of one whose launcher is gone."""

from __future__ import annotations

import shlex
import time

from ezpz.tables import Column
from ezpz.tables import table as _table

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ezpz.register import Launch


def left_behind(running: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return the launches of which processes are left on this host although their launcher is gone: each with its
    ``launch_id`` and ``pids``.

    Args:
        running: The launches that run here.
    """
    from ezpz.launch.host import process_tree
    from ezpz.launch.host.connection import is_launcher_gone

    known = {launch.launch_id for launch in running}
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


def table(launches: Sequence[Launch], *, elsewhere: bool = False) -> str:
    """Return a line per launch: id, job and host where it is elsewhere, age, ranks, hosts where it is here, command."""
    columns = (
        Column("ID", lambda each: each.launch_id),
        *((Column("JOB", lambda each: each.job or "-"), Column("HOST", lambda each: each.host)) if elsewhere else ()),
        Column("AGE", lambda each: age(time.time() - each.started) if each.started else "?"),
        Column("RANKS", lambda each: "?" if each.ranks is None else str(each.ranks)),
        *(() if elsewhere else (Column("HOSTS", lambda each: str(len(each.hosts) or 1)),)),
        Column("COMMAND", lambda each: shlex.join(each.command)),
    )
    return "\n".join(line for lines in _table(columns, launches) for line in lines)


def age(seconds: float) -> str:
    """Return a span of time in one unit: ``42 s``, ``12 min``, ``3.2 h``, ``5 d``."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
