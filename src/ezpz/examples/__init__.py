"""Trainers to read top to bottom and to copy: they use public names only (docs/trainers.md)."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")  # what older scripts import from here
