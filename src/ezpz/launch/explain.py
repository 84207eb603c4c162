"""What ``launch --explain`` and ``launch --json`` show: every word and variable of a launch, with its reason."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from ezpz.launch.contract import threads

if TYPE_CHECKING:
    from ezpz.launch.flavours.request import Setting
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.planning import Survey

__all__ = ["as_json", "as_text"]

_NARROWEST = 60


def as_json(found: Survey, plan: LaunchPlan, command: list[str]) -> str:
    """Return one JSON object; docs/launch.md describes its fields."""
    told: dict[str, Any] = {
        "hosts": list(plan.placement.hosts),
        "ranks_per_host": list(plan.placement.counts),
        "world_size": plan.placement.world_size,
        "flavour": plan.flavour_name,
        "program": plan.choice.exe or None,
        "reason": plan.choice.reason,
        "argv": plan.argv(command) if plan.flavour else None,
        "lines": plan.lines(command),
        "flags": [{"words": list(words), "reason": reason} for words, reason in plan.flags(ranks=True)],
        "variables": {name: {"value": value, "origin": origin} for name, (value, origin) in _variables(plan).items()},
        "unset": dict(plan.communication.unset),
        "inherited": {
            name: {"value": value, "origin": origin} for name, (value, origin) in plan.communication.inherited.items()
        },
        "binding": {"text": plan.binding.text, "cpus": list(plan.binding.cpus), "origin": plan.binding.origin},
        "notes": [*found.notes, *plan.notes()],
    }
    return json.dumps(told, indent=2)


def as_text(found: Survey, plan: LaunchPlan, command: list[str]) -> str:
    """Return the answers as a table for people, as wide as the terminal."""
    placement = plan.placement
    rows = [
        ("ranks", f"{placement.world_size}", placement.origin),
        (
            "hosts",
            ", ".join(placement.hosts[:8]) + ", …" * (len(placement.hosts) > 8),
            found.allocation.origin.get("hosts", ""),
        ),
        ("per host", placement.encode(), "blocks, hosts in order"),
        ("devices", f"{found.devices.count} {found.devices.kind} per host", found.devices.origin),
        ("flavour", f"{plan.flavour_name} {'.'.join(map(str, plan.choice.version))}".strip(), plan.choice.reason),
        ("binding", plan.binding.text, plan.binding.origin),
        ("threads", *_threads(plan)),
    ]
    if len(placement.hosts) > 1 and "GLOO_SOCKET_IFNAME" not in {*plan.kept(), *plan.shared()}:
        rows.append(
            ("interface", "the one that leads to rank 0, on each host", "GLOO_SOCKET_IFNAME, told to each rank")
        )
    parts = [("plan", rows)]
    parts.append(("line", [("", shlex.join(words), reason) for words, reason in plan.flags(ranks=True)]))
    parts[-1][1].append(("", shlex.join(command), "the program, behind ezpz's shim" if plan.flavour else "the program"))
    parts.append(("variables of all ranks", [(name, *setting) for name, setting in _variables(plan).items()]))
    if plan.communication.unset:
        parts.append(("unset", [(name, "", why) for name, why in plan.communication.unset.items()]))
    if plan.communication.inherited:
        parts.append(("inherited", [(name, *setting) for name, setting in plan.communication.inherited.items()]))
    notes = (*found.notes, *plan.notes())
    if notes:
        parts.append(("notes", [("", note, "") for note in notes]))
    return "\n\n".join(_part(title, rows) for title, rows in parts)


def _variables(plan: LaunchPlan) -> dict[str, Setting]:
    """Return the variables of all ranks, also those that a line pasted by hand does not need."""
    from ezpz.launch.starting import piped

    return plan.and_settings(piped(plan)).settings()


def _threads(plan: LaunchPlan) -> tuple[str, str]:
    """Return ``OMP_NUM_THREADS`` of a rank, and who chose it."""
    setting = plan.settings().get("OMP_NUM_THREADS")
    if setting:
        return setting
    if "OMP_NUM_THREADS" in plan.kept():
        return plan.kept()["OMP_NUM_THREADS"], "your environment"
    if plan.is_here:
        return threads(plan.placement.world_size), "cores of this host shared by its ranks"
    return "cores of a host / its ranks", "each host counts its own"


def _part(title: str, rows: list[tuple[str, str, str]]) -> str:
    width = max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 0
    label = max(len(name) for name, _, _ in rows)
    lines = [title]
    for name, value, origin in rows:
        head = f"  {name:<{label}}  " if label else "  "
        text = f"{value}  [{origin}]" if origin else value
        if not width:
            lines.append(head + text)
            continue
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [head]
    return "\n".join(lines)
