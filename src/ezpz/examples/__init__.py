"""Trainers to read top to bottom and to copy: they use public names only (docs/trainers.md)."""

from __future__ import annotations

from ezpz.compat import offer

__getattr__, __dir__ = offer(__name__)  # what older scripts import from here
