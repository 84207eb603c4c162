"""Say what has become of a job: the same few answers whatever the scheduler calls them (`ezpz.cluster.jobs.ask`).

What a scheduler prints is read in its own files (`ezpz.cluster.sacct`, `ezpz.cluster.pbs_history`). Whoever asks must
live with `UNKNOWN`: the command is absent, the server does not answer in time, or it has forgotten the job.
"""

from __future__ import annotations

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Call = Callable[[Sequence[str]], "Reply"]

__all__ = [
    "CANCELLED",
    "ENDED",
    "HOST_FAILURE",
    "OVER",
    "PREEMPTED",
    "QUEUED",
    "RUNNING",
    "TIME_LIMIT",
    "UNKNOWN",
    "JobState",
    "Reply",
    "code_of",
]

QUEUED = "queued"
RUNNING = "running"
ENDED = "ended"  # by itself, whatever its exit code
TIME_LIMIT = "time limit"
PREEMPTED = "preempted"
HOST_FAILURE = "host failure"
CANCELLED = "cancelled"
UNKNOWN = "unknown"
OVER = frozenset({ENDED, TIME_LIMIT, PREEMPTED, HOST_FAILURE, CANCELLED})  # no process of it runs


class Reply(Record):
    """What a command has answered.

    Attributes:
        code: Its exit code; None when it is absent or did not end in time.
        out: What it printed.
        err: What it printed on stderr, or why there is no answer.
    """

    code: int | None
    out: str
    err: str


class JobState(Record):
    """What a scheduler says of a job.

    Attributes:
        state: One of the words above.
        reason: Its own words for it, or why nothing is known.
        start: When it began, or is expected to begin, in seconds since 1970-01-01 UTC; None where that is unknown.
        exit_code: Of a job that is over, as a shell tells it: 128 and the signal for one that a signal has ended.
        restarts: How often the scheduler has started it again, after a preemption for instance.
        ending: Why the scheduler ends it right now, while its processes still run: `PREEMPTED`, `TIME_LIMIT` or
            `CANCELLED`; empty while it does not, or does not say so.
    """

    state: str
    reason: str = ""
    start: float | None = None
    exit_code: int | None = None
    restarts: int = 0
    ending: str = ""


def code_of(code: int, signal: int) -> int:
    """Return an exit code as a shell tells it, of a program that ended with a code or by a signal (else 0)."""
    return 128 + signal if signal else code
