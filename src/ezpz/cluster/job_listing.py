"""Describe a user's job as the commands of schedulers that list jobs tell it (`ezpz.cluster.squeue`, `.qstat`)."""

from __future__ import annotations

import os
import time

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence


class Job(Record):
    """A job of this user, as the scheduler tells it. Times are epoch seconds, None where it is unknown.

    Attributes:
        job: Its id.
        state: ``queued``, ``running`` or ``ended``.
        word: The scheduler's own word for the state.
        name: Its name.
        queue: Its queue or partition.
        hosts: How many hosts.
        start: When it started; of one that waits when it is expected to.
        end: When it ended, or must have.
        reason: Why it waits or how it ended, in the scheduler's words.
        output: The file of its output, as far as it is known; it may not be there.
        exit_code: Of one that has ended.
    """

    job: str
    state: str
    word: str = ""
    name: str = ""
    queue: str = ""
    hosts: int | None = None
    start: float | None = None
    end: float | None = None
    reason: str = ""
    output: str = ""
    exit_code: int | None = None


def moment(text: object, form: str) -> float | None:
    """Return a local time in epoch seconds; None where it is none, such as ``N/A``."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text) if text > 0 else None
    try:
        return time.mktime(time.strptime(str(text), form))
    except (ValueError, OverflowError):
        return None


def expanded(pattern: str, words: Sequence[tuple[str, str]], folder: str) -> str:
    """Return a path in which a scheduler's marks, such as ``%j``, stand for other words; relative to a folder."""
    for mark, word in words:
        pattern = pattern.replace(mark, word)
    return os.path.join(folder, pattern) if pattern else ""
