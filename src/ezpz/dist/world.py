"""Rank and world size, before and after the process group exists."""

from __future__ import annotations

import os

from ezpz.ranks import Ranks, from_environ

__all__ = ["get_local_rank", "get_rank", "get_world_size", "told"]


def told() -> Ranks:
    """Return who the launcher says this process is.

    Raises:
        RankError: The environment contradicts itself.
    """
    return from_environ(os.environ)


def get_rank() -> int:
    """Return this process's rank, 0 for the first of ``get_world_size()``."""
    return told().rank


def get_world_size() -> int:
    """Return the number of ranks, at least 1."""
    return told().world_size


def get_local_rank() -> int:
    """Return this process's rank among those of its own host."""
    return told().local_rank
