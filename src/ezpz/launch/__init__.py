"""Start ranks and end them: placement, flavour, plan, supervision. Standard library only."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__)
