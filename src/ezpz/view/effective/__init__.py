"""Read the configuration that is in effect from live objects."""

from __future__ import annotations

from ezpz.view.effective.changes import LiveSettings, generator_sums
from ezpz.view.effective.describing import describe

__all__ = ["LiveSettings", "describe", "generator_sums"]
