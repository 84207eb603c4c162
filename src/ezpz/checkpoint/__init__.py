"""Checkpoints: complete or not there, of any strategy, and readable by another number of ranks.

Nothing here loads torch until a checkpoint is written or read.
"""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__)
