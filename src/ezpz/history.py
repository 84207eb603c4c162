"""Offer the names of the older module `ezpz.history`; `ezpz.compat.MODULES` says what each one is today."""

from __future__ import annotations

from ezpz.compat import offer

__getattr__, __dir__ = offer(__name__)
