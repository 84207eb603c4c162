"""Models that the trainers share, each in a file that a person reads in one sitting."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__)
