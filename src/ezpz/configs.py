"""Offer the names of the older module `ezpz.configs`; the stub beside this file says what each one is today."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")
