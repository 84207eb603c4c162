"""The small core under the trainers. Nothing here loads torch until a function needs it."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")
