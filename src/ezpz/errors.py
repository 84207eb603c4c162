"""Every failure that ezpz itself reports, and the exit code that each one ends a command with.

    EzpzError                 1
    ├── UsageError            2     the command line, a variable or a named file is wrong
    ├── MachineError        125     the machine, the scheduler or the launcher is not as needed
    │   ├── LaunchError     125     ranks could not be started as planned
    │   ├── RankError       125     the environment contradicts itself about who this process is
    │   └── RendezvousError 125     the ranks did not find each other
    └── TrackError            1     a run's records cannot be written or read

A message says what failed, the value, where the value came from, what was expected, and what to type next.
"""

from __future__ import annotations

import os
import sys

__all__ = [
    "EzpzError",
    "LaunchError",
    "MachineError",
    "RankError",
    "RendezvousError",
    "TrackError",
    "UsageError",
    "end_with",
]


class EzpzError(Exception):
    """Base of all errors that ezpz raises on purpose."""

    exit_code = 1


class UsageError(EzpzError):
    """The command line, an environment variable or a file that the user named is wrong."""

    exit_code = 2


class MachineError(EzpzError):
    """The machine, the scheduler or the launcher is not as needed."""

    exit_code = 125


class LaunchError(MachineError):
    """Ranks could not be started as planned."""


class RankError(MachineError):
    """The environment contradicts itself about who this process is."""


class RendezvousError(MachineError):
    """The ranks did not find each other."""


class TrackError(EzpzError):
    """A run's records cannot be written or read."""


def end_with(error: EzpzError, who: str = "ezpz") -> int:
    """Say what went wrong in one line on stderr and return the exit code; with ``EZPZ_DEBUG=1`` raise it instead."""
    if os.environ.get("EZPZ_DEBUG") == "1":
        raise error
    try:
        print(f"{who}: {error}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more; the exit code still tells
    return error.exit_code
