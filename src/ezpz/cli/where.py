"""``ezpz where``: where am I, and who says so."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ezpz.cluster import count_devices, detect, probe
from ezpz.errors import EzpzError, end_with

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print one line per fact with its origin and return the exit code."""
    if argv:
        wanted = {"-h", "--help"} & set(argv)
        print(
            "usage: ezpz where\n\nShow scheduler, hosts and devices, and where each answer came from.",
            file=sys.stdout if wanted else sys.stderr,
        )
        return 0 if wanted else 2
    try:
        allocation = detect()
        devices = count_devices(os.environ, probe.read, probe.run)
    except EzpzError as error:
        return end_with(error)
    facts = {
        "scheduler": allocation.scheduler,
        "job_id": allocation.job_id or "none",
        "hosts": f"{len(allocation.hosts)} ({', '.join(allocation.hosts[:4])}{', …' * (len(allocation.hosts) > 4)})",
        "slots": ",".join(map(str, allocation.slots)) if allocation.slots else "none granted",
    }
    for name, value in facts.items():
        print(f"{name:<12}{value:<40} from {allocation.origin.get(name, 'nobody')}")
    print(f"{'devices':<12}{f'{devices.count} {devices.kind} per host':<40} from {devices.origin}")
    return 0
