"""Decide when ranks are asked to save, after which step they do, and for how long a SIGTERM waits for that."""

from __future__ import annotations

import math

__all__ = ["ask_at", "longest_wait", "step_ahead"]

_SHARE, _MOST = 0.03, 60.0  # of the limit, and seconds, that are left besides twice the longest save
_FIRST_SHARE = 0.05  # of the limit, where nothing was saved before
_AHEAD = 4.0  # seconds by which the step of a save is ahead of all ranks: they read requests once per second
_FEWEST = 2  # steps by which it is at least
_AHEAD_SOON, _FEWEST_SOON = 1.0, 1  # the same before a SIGTERM: ranks that were asked read more often
_ALONE = 25.0  # seconds that a SIGTERM waits where nobody but the launcher kills,
_SAVES = 2.0  # or so many of the longest save,
_REACTION = 8.0  # and what ranks need to begin it


def ask_at(began: float, end: float, longest: float | None, *, step: float = 0.0, reaction: float = 0.0) -> float:
    """Return when to ask the ranks to save and to end, in seconds since 1970 like both times.

    Args:
        began: When the launch began.
        end: When the job ends.
        longest: Seconds of the longest save; None before the first.
        step: Seconds of a step, where these are many: a request is read after one, and followed after the next.
        reaction: Seconds until ranks begin to save whose steps are short.
    """
    limit, late = end - began, 2 * step + reaction
    if longest is None:
        before = max(_FIRST_SHARE * limit, 2 * late)
    else:
        before = 2 * longest + max(min(_MOST, _SHARE * limit), late)
    return max(end - before, began + limit / 2)


def step_ahead(step: int, pace: float, tries: int, *, soon: bool = False) -> int:
    """Return the step after which ranks save that do not agree among themselves.

    Args:
        step: The furthest that one of them was at.
        pace: Seconds of a step; 0 where it is not known.
        tries: How often a step was chosen before: some rank had passed it.
        soon: Whether a try that fails costs less than the time until that step.
    """
    ahead, fewest = (_AHEAD_SOON, _FEWEST_SOON) if soon else (_AHEAD, _FEWEST)
    return step + max(fewest, math.ceil(ahead / pace) if pace > 0 else fewest) * (tries + 1)


def longest_wait(longest: float | None) -> float:
    """Return for how long a SIGTERM waits for a save at most, where no scheduler kills the ranks.

    Args:
        longest: Seconds of the longest save so far; None before the first.
    """
    return max(_ALONE, _SAVES * (longest or 0.0) + _REACTION)
