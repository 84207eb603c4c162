"""Offer the names of the older module `ezpz.log.config`; `ezpz.compat.MODULES` says what each one is today."""

from __future__ import annotations

__getattr__, __dir__ = __import__("ezpz.compat", fromlist=["offer"]).offer(__name__)  # by name: the log is below it
