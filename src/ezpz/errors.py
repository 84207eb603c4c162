"""Define the errors that ezpz reports, and the exit code that each one ends a command with.

    EzpzError                 1
    ├── UsageError            2     the command line, a variable or a named file is wrong
    ├── MachineError        125     the machine, the scheduler or the launcher is not as needed
    │   ├── LaunchError     125     ranks could not be started as planned
    │   ├── RankError       125     the environment contradicts itself about who this process is
    │   └── RendezvousError 125     the ranks did not find each other
    ├── LostLossError         1     the loss of a training is no number (`ezpz.train.lost_loss`)
    └── TrackError            1     a run's records cannot be written or read

A message says what failed, the value, where the value came from, what was expected, and what to type next.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable


class EzpzError(Exception):
    """Base of all errors that ezpz raises on purpose.

    Attributes:
        speaks: Whether this rank shows the error; where all ranks have the same one, one of them says it for all.
    """

    exit_code = 1
    speaks = True


class UsageError(EzpzError):
    """The command line, an environment variable or a file that the user named is wrong.

    Attributes:
        on_all_ranks: Whether every rank is known to meet the same error, so that one of them says it for all.
    """

    exit_code = 2
    on_all_ranks = False

    def everywhere(self) -> UsageError:
        """Return the error, known to be that of all ranks."""
        self.on_all_ranks = True
        return self


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
    """Say what went wrong in one line on stderr, if this rank speaks, and return the exit code.

    With ``EZPZ_DEBUG=1`` the error is raised instead.
    """
    if os.environ.get("EZPZ_DEBUG") == "1":
        raise error
    if not error.speaks:
        return error.exit_code
    from ezpz.visible import LINES, painter, show, use_color, visible  # which only an error needs

    paint = painter(use_color(sys.stderr))
    # Every second part is between backticks: what can be typed.
    parts = visible(str(error), LINES).split("`")
    typed = [f"`{paint(part, 'name')}`" if number % 2 else part for number, part in enumerate(parts)]
    text = "".join(typed) if len(parts) % 2 else "`".join(parts)
    try:
        show(f"{paint(f'{who}:', 'very bad')} {text}", sys.stderr, colors=True)
    except OSError:
        pass  # the reader is gone; the exit code still tells
    return error.exit_code


def shell_code(code: int) -> int:
    """Return the exit code with which a shell reports a process that ended with ``code``, minus the signal for a
    signal.
    """
    return code if code >= 0 else 128 - code


def nearest(word: str, names: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to ``count`` names that are spelled like a word, the nearest first."""
    from difflib import get_close_matches  # 5 ms that only a mistake needs

    return get_close_matches(word, list(names), count, cutoff)


def did_you_mean(word: str, names: Iterable[str], otherwise: str = "", cutoff: float = 0.5) -> str:
    """Return `` Did you mean bf16?`` for the name that is spelled most like a word, else ``otherwise``."""
    near = nearest(word, names, cutoff=cutoff)
    return f" Did you mean {near[0]}?" if near else otherwise
