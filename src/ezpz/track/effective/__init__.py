"""The configuration that is in effect, read from live objects."""

from __future__ import annotations

from ezpz.track.effective.describing import describe

__all__ = ["describe"]
