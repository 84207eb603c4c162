"""What a benchmark ran on: hosts, processor, memory, devices, site and versions, found without torch.

/proc/cpuinfo    model name	: Intel(R) Xeon(R) Platinum 8480+      a line per core; proc(5)
/proc/meminfo    MemTotal:       24606036 kB
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from ezpz.launch.contract import cores
from ezpz.track.environment import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ezpz.launch.planning import Survey

__all__ = ["describe", "facts", "versions"]

_LISTED = 4  # hosts that are named; of more, the first and their number


def describe(found: Survey, read: Callable[[str], str] = read_text) -> dict[str, Any]:
    """Return the machine as JSON holds it; None where something is not known.

    Args:
        found: Hosts, devices and placement of the launch.
        read: Returns a file's text, empty where there is none.
    """
    devices, site = found.devices, found.site.site
    return {
        "hosts": list(found.placement.hosts),
        "ranks": found.placement.world_size,
        "devices_per_host": devices.count,
        "device": devices.kind,
        "site": site.name if site else None,
        "scheduler": found.allocation.scheduler,
        "job_id": found.allocation.job_id or None,
        "processor": _after(read("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gib": _gib(_after(read("/proc/meminfo"), "MemTotal")),
        "system": f"{platform.system()} {platform.release()}",
    }


def _after(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), "")


def _gib(text: str) -> float | None:
    number = text.partition(" ")[0]
    return round(int(number) / 2**20, 1) if number.isdecimal() else None


def versions() -> dict[str, str | None]:
    """Return the versions of ezpz, torch and Python; torch is asked for its number only, not loaded."""
    from importlib import metadata

    import ezpz

    try:
        torch: str | None = metadata.version("torch")
    except metadata.PackageNotFoundError:  # the ranks' Python may be another
        torch = None
    return {"ezpz": ezpz.__version__, "torch": torch, "python": platform.python_version()}


def facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that people read, in order: name and text.

    Args:
        told: What ``benchmark.json`` holds.
    """
    return [(name, text) for name, text in _facts(told) if text]


def _facts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, known = told["machine"], told["versions"]
    hosts = machine["hosts"]
    more = f", … ({len(hosts)} hosts)" if len(hosts) > _LISTED else ""
    yield "hosts", ", ".join(hosts[: 1 if more else _LISTED]) + more
    count = machine["devices_per_host"]
    yield "devices", f"{count} {machine['device']} per host" if count else "none (cpu)"
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    yield "processor", f"{machine['processor']}, {machine['cores']} cores{memory}"
    yield "site", machine["site"] or ""
    yield "job", f"{machine['scheduler']} {machine['job_id']}" if machine["job_id"] else ""
    yield "system", machine["system"]
    yield "versions", ", ".join(f"{name} {version}" for name, version in known.items() if version)
    yield "commit", told["git_commit"] or ""
    yield "started", told["started"]
