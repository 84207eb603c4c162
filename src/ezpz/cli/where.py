"""Run ``ezpz where``: show scheduler, hosts, devices and site, and where each answer came from."""

from __future__ import annotations

import os
import sys
import time

from ezpz.cli_parser import option, run_verb
from ezpz.cluster import probe
from ezpz.cluster.devices import describe, devices_on
from ezpz.cluster.network import route_to
from ezpz.launch import flavours
from ezpz.launch.launcher_choice import find_mpiexec
from ezpz.launch.options import parse
from ezpz.launch.survey import survey
from ezpz.tables import screen_width, wrapped
from ezpz.verbs import make_verb_parser
from ezpz.visible import LINES, painter, show, use_color, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    from ezpz.launch.survey import Survey

_OPTIONS = (option("--json", action="store_true", help="print one JSON object: every fact with its source"),)
_ABOUT = "Python, MPI and network of this shell are shown too. A source is a variable, a file or a command."
_EXAMPLES = (("ezpz where", "what is known here"), ("ezpz where --json", "for programs"))
_EXITS = (("0", "done"), ("2", "a variable or a file is wrong"), ("125", "there is a job that cannot be understood"))
_LABEL = 12  # columns of the names on the left


def main(argv: Sequence[str]) -> int:
    """Print what is known about this shell and return the exit code."""
    return run_verb(make_verb_parser("where", _OPTIONS, _ABOUT, examples=_EXAMPLES, exits=_EXITS), argv, _where)


def _where(options: Namespace) -> int:
    answer = facts()
    if options.json:
        import json

        show(json.dumps(answer, indent=2))
    else:
        show(_text(answer), colors=True)
    return 0


def facts() -> dict[str, Any]:
    """Return what `ezpz where --json` prints.

    Raises:
        EzpzError: There is a job that cannot be understood.
    """
    seen = survey(parse([], {}), more=True)
    allocation, devices, _, (site, site_origin), _ = seen
    mpi, mpi_path, mpi_origin = _mpi(seen)
    remote = next((host for host in allocation.hosts if not probe.is_here(host)), "")
    route = route_to(remote)
    return {
        "scheduler": None if allocation.scheduler == "none" else allocation.scheduler,
        "job_id": allocation.job_id or None,
        "end_time": allocation.end_time,
        "hosts": list(allocation.hosts),
        "slots": list(allocation.slots) if allocation.slots else None,
        "device": devices.kind,
        "devices_per_host": devices.count,
        "devices": devices_on(devices, allocation),
        "site": site.name if site else None,
        "python": sys.executable,
        "python_version": sys.version.split(maxsplit=1)[0],
        "mpi": mpi,
        "mpi_path": mpi_path,
        "interface": route.interface or None,
        "address": route.address or None,
        "origins": {
            **{name: allocation.origin.get(name) for name in ("scheduler", "job_id", "end_time", "hosts", "slots")},
            **dict.fromkeys(("device", "devices_per_host", "devices"), devices.origin),
            "site": site_origin,
            **dict.fromkeys(("python", "python_version"), "the interpreter of this command"),
            **dict.fromkeys(("mpi", "mpi_path"), mpi_origin),
            **dict.fromkeys(("interface", "address"), route.origin),
        },
        "notes": list(_notes(seen, route.interface)),
    }


def _notes(seen: Survey, interface: str) -> tuple[str, ...]:
    site = seen.site.site
    if not site or not site.interface or interface in site.interface:
        return seen.notes
    return (
        *seen.notes,
        f"site {site.name} advises the interface {' or '.join(site.interface)}, not {interface or 'none'}",
    )


def _mpi(seen: Survey) -> tuple[str | None, str | None, str]:
    """Return name and path of the ``mpiexec`` that a launch would use, as it names itself, and the source of that."""
    found = find_mpiexec(seen.allocation, seen.scheduler, os.environ, probe.tools(), seen.site.site)
    if not found.path:
        return None, None, found.lack
    if not found.identity.name:
        fails = f"{found.path} does not run: {found.identity.error}"
        return None, found.path, fails if found.identity.error else f"{found.path} --version gives no known name"
    version = ".".join(map(str, found.identity.version))
    title = flavours.flavour(found.identity.name).title
    title = title.removesuffix(f" {version.partition('.')[0]}")  # "Open MPI 5" is known by its version
    passed = f"; {found.passed_on} only passes on" if found.passed_on else ""
    return f"{title} {version}".strip(), found.path, f"{found.path} --version{passed}"


def _text(answer: dict[str, Any]) -> str:
    """Return a line per fact; on a terminal, lines longer than it is wide continue under their value."""
    origins = answer["origins"]
    hosts = answer["hosts"]
    listed = ", ".join(hosts[:4]) + (f", … {hosts[-1]}" if len(hosts) > 4 else "")
    rows = [
        ("scheduler", answer["scheduler"] or "none", origins["scheduler"]),
        ("job", answer["job_id"] or "none", origins["job_id"]),
        ("hosts", f"{len(hosts)}: {listed}", origins["hosts"]),
        ("slots", _slots(answer["slots"]), origins["slots"]),
        ("devices", describe(answer["device"], answer["devices"]), origins["devices_per_host"]),
        ("site", answer["site"] or "unknown", origins["site"]),
        ("python", f"{answer['python']} ({answer['python_version']})", origins["python"]),
        (
            "mpi",
            f"{answer['mpi'] or 'unknown'} ({answer['mpi_path']})" if answer["mpi_path"] else "none",
            origins["mpi"],
        ),
        ("network", f"{answer['interface'] or 'unknown'} {answer['address'] or ''}".strip(), origins["address"]),
    ]
    if answer["end_time"]:
        rows.insert(2, ("ends", _when(answer["end_time"]), origins["end_time"]))
    if not answer["scheduler"]:
        rows = [row for row in rows if row[0] not in {"job", "slots"}]
    lines = [_line(name, f"{value}  [{origin}]" if origin else value) for name, value, origin in rows]
    return "\n".join([*lines, *(_line("note", note, "doubtful") for note in answer["notes"])])


def _line(name: str, text: str, meaning: str = "minor") -> str:
    """Return a fact; on a terminal it is broken at the terminal's width, and its name has the colour of a meaning."""
    line = visible(f"{name:<{_LABEL}}{text}", LINES)
    width = screen_width(2 * _LABEL)
    if width is not None:
        line = "\n".join(wrapped(line, more=" " * _LABEL, width=width))
    return painter(use_color(sys.stdout))(name, meaning) + line[len(name) :]


def _slots(slots: list[int] | None) -> str:
    if not slots:
        return "none granted"
    if len(set(slots)) == 1:
        return f"{slots[0]} per host"
    return ", ".join(map(str, slots[:8])) + ", …" * (len(slots) > 8)


def _when(seconds: int) -> str:
    left = seconds - int(time.time())
    clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    return f"{clock}, in {left // 3600} h {left % 3600 // 60} min" if left > 0 else f"{clock}, over"
