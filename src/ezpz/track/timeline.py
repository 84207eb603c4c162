"""How long a run took to its first step, stage by stage, since its process began."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

from ezpz.progress import reached

__all__ = ["began", "timeline"]


def began() -> float:
    """Return when this process began, in epoch seconds; now, where there is no ``/proc``.

    Field 22 of ``/proc/self/stat`` counts clock ticks since the host's start, which ``btime`` of ``/proc/stat`` tells (proc(5));
    that is whole seconds, so the host's uptime, to a hundredth, is subtracted from the clock instead.
    """
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        )
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time()
    return time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def timeline(**moments: float) -> dict[str, float]:
    """Return the stages of the start in their order, in seconds since the process began.

    Args:
        moments: Further stages, epoch seconds.
    """
    start = began()
    stages = {**{name: when for name, when in reached.items() if name != "step"}, **moments}
    return {name: round(max(0.0, when - start), 3) for name, when in sorted(stages.items(), key=lambda item: item[1])}
