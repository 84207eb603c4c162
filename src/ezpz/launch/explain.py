"""Print a plan for ``launch --explain`` and ``launch --json``: every word and variable of it, with its reason."""

from __future__ import annotations

import sys

from ezpz.cluster.devices import describe
from ezpz.launch.contract import threads
from ezpz.ranks import FAMILIES
from ezpz.visible import shell_line

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

    from ezpz.launch.plan import LaunchPlan

_NARROWEST = 60
_MPI = {
    "yes": "yes: the launcher starts each rank, and an MPI finds them all",
    "no": "no: an agent per host forks the ranks, and ends one that starts an MPI",
    "none": "none: an MPI that is started in a rank finds it alone",
}
_SAVING = {
    "on": "on: ranks that can save do so before the job ends, and before they get a SIGTERM from outside",
    "off": "off: no rank is asked to save, but by a file",
}


def as_json(plan: LaunchPlan) -> str:
    """Return one JSON object; docs/launch.md describes its fields."""
    listens = plan.supervision.listening
    fields: dict[str, Any] = {
        "hosts": list(plan.placement.hosts),
        "ranks_per_host": list(plan.placement.counts),
        "world_size": plan.placement.world_size,
        "flavour": plan.flavour_name,
        "program": plan.choice.exe or None,
        "reason": plan.choice.reason,
        "argv": plan.argv() if plan.flavour else None,
        "lines": plan.lines(),
        "flags": [{"words": list(words), "reason": reason} for words, reason in plan.rank_flags()],
        "variables": {name: {"value": value, "origin": origin} for name, (value, origin) in plan.variables.items()},
        "names_of_ranks": {
            name: {"set": is_set, "origin": why} for name, (is_set, why) in plan.names_of_ranks().items()
        },
        "unset": dict(plan.communication.unset),
        "inherited": {
            name: {"value": value, "origin": origin} for name, (value, origin) in plan.communication.inherited.items()
        },
        "mpi": {"value": plan.mpi.value, "origin": plan.mpi.origin},
        "binding": {"text": plan.binding.text, "cpus": list(plan.binding.cpus), "origin": plan.binding.origin},
        "listening": listens and {"address": listens.address or "0.0.0.0", "origin": listens.origin},  # noqa: S104
        **{
            name: {"value": setting.value, "origin": setting.origin}
            for name, setting in (
                ("check", plan.context.check),
                ("sampling", plan.context.sampling),
                ("save_at_end", plan.context.save_at_end),
            )
        },
        "notes": list(plan.context.notes),
    }
    import json

    return json.dumps(fields, indent=2)


def as_text(plan: LaunchPlan) -> str:
    """Return the answers as a table for people, as wide as the terminal."""
    parts = [("plan", _decisions(plan))]
    ours = "agent of each host, which forks the ranks" if plan.forks else "shim"
    program = f"the program, behind ezpz's {ours}" if plan.flavour else "the program"
    line = [("", shell_line(words), reason) for words, reason in plan.rank_flags()]
    parts.append(("line", [*line, ("", shell_line(plan.command), program)]))
    parts.append(("variables of all ranks", [(name, *setting) for name, setting in plan.variables.items()]))
    parts.append(("names of ranks", _names(plan)))
    if plan.communication.unset:
        parts.append(("unset", [(name, "", why) for name, why in plan.communication.unset.items()]))
    if plan.communication.inherited:
        parts.append(("inherited", [(name, *setting) for name, setting in plan.communication.inherited.items()]))
    if plan.context.notes:
        parts.append(("notes", [("", note, "") for note in plan.context.notes]))
    return "\n\n".join(_part(title, rows) for title, rows in parts)


def _decisions(plan: LaunchPlan) -> list[tuple[str, str, str]]:
    placement = plan.placement
    hosts = ", ".join(placement.hosts[:8]) + ", …" * (len(placement.hosts) > 8)
    rows = [
        ("ranks", f"{placement.world_size}", placement.origin),
        ("hosts", hosts, plan.context.hosts_origin),
        ("per host", placement.encode(), "blocks, hosts in order"),
    ]
    devices = plan.context.devices
    if devices:
        rows.append(("devices", describe(devices.kind, plan.context.device_counts), devices.origin))
    version = ".".join(map(str, plan.choice.version))
    rows += [
        ("flavour", f"{plan.flavour_name} {version}".strip(), plan.choice.reason),
        ("mpi", _MPI[plan.mpi.value], plan.mpi.origin),
        ("binding", plan.binding.text, plan.binding.origin),
        ("threads", *_threads(plan)),
        ("check", *plan.context.check),
        ("sampling", *plan.context.sampling),
        ("saving", _SAVING[plan.context.save_at_end.value], plan.context.save_at_end.origin),
    ]
    listens = plan.supervision.listening
    if listens:
        rows.append(("listening", listens.address or "all interfaces", listens.origin))
    if len(placement.hosts) > 1 and "GLOO_SOCKET_IFNAME" not in {*plan.user_environment(), *plan.variables}:
        rows.append(
            ("interface", "the one that leads to rank 0, on each host", "GLOO_SOCKET_IFNAME, set for each rank")
        )
    return rows


def _names(plan: LaunchPlan) -> list[tuple[str, str, str]]:
    """Return a row per origin of the names that are set, and one of each launcher's first name that is not."""
    rows: dict[tuple[bool, str], list[str]] = {}
    for name, (is_set, why) in plan.names_of_ranks().items():
        if is_set or any(name == family.variables[0] for family in FAMILIES):
            rows.setdefault((is_set, why), []).append(name)
    return [
        ("set" if is_set else "unset", " ".join([*names, *([] if is_set else ["and their like"])]), why)
        for (is_set, why), names in rows.items()
    ]


def _threads(plan: LaunchPlan) -> tuple[str, str]:
    """Return ``OMP_NUM_THREADS`` of a rank, and who chose it."""
    setting = plan.variables.get("OMP_NUM_THREADS")
    if setting:
        return setting.value, setting.origin
    own = plan.user_environment().get("OMP_NUM_THREADS")
    if own is not None:
        return own, "your environment"
    if plan.is_here:
        return threads(plan.placement.world_size), "cores of this host shared by its ranks"
    return "cores of a host / its ranks", "each host counts its own"


def _part(title: str, rows: list[tuple[str, str, str]]) -> str:
    width = 0
    if sys.stdout.isatty():
        import shutil
        import textwrap

        width = max(_NARROWEST, shutil.get_terminal_size().columns)
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
