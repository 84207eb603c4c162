"""Runs that other tools recorded, read back as if they were ours: `open_foreign`.

One file per tool, each with the format that it reads; none of their libraries is needed.
"""

from __future__ import annotations

from ezpz.track.foreign.opening import ForeignRun, open_foreign

__all__ = ["ForeignRun", "open_foreign"]
