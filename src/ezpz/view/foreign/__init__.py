"""Read runs that other tools recorded as if they were ours: `open_any`.

One file per tool, each with the format that it reads; none of their libraries is needed.
"""

from __future__ import annotations

from ezpz.view.foreign.opening import ForeignRun, open_any, open_foreign

__all__ = ["ForeignRun", "open_any", "open_foreign"]
