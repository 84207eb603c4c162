"""Offer `ezpz.dist` under the longer name that some scripts import: ``ezpz.distributed.setup_torch()``."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")
