"""Describe a job of a user: one record and the same few states, whatever its scheduler calls them.

What a scheduler prints becomes such records in its own file (``NAME_jobs.py``). Whoever asks must live with `UNKNOWN`:
the command is absent, the server does not answer in time, or it has forgotten the job.
"""

from __future__ import annotations

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Call = Callable[[Sequence[str]], "Reply"]

QUEUED = "queued"
RUNNING = "running"
ENDED = "ended"  # by itself, whatever its exit code
TIME_LIMIT = "time limit"
PREEMPTED = "preempted"
HOST_FAILURE = "host failure"
CANCELLED = "cancelled"
UNKNOWN = "unknown"
_CLOCKS = 60.0  # seconds by which those of hosts may differ
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


class Job(Record):
    """A job, as far as the command tells that was asked. Times are epoch seconds; None where something is not known.

    Attributes:
        job: Its id.
        state: One of the words above.
        word: The scheduler's own word for the state.
        reason: Why it waits or how it ended, in the scheduler's words; of an unknown one why nothing is known.
        name: Its name.
        queue: Its queue or partition.
        hosts: How many hosts.
        start: When it started; of one that waits when it is expected to.
        end: When it ended, or must have.
        output: The file of its output; it may not be there.
        exit_code: Of one that is over, as a shell tells it: 128 and the signal for one that a signal has ended.
        restarts: How often the scheduler has started it again, after a preemption for instance.
        ending: Why the scheduler ends it right now, while its processes still run: `PREEMPTED`, `TIME_LIMIT` or
            `CANCELLED`; empty while it does not, or does not say so.
        number: What it calls itself in its variables, where that is not its id: a task of an array of Slurm.
        scheduler: The name of its scheduler; empty of one that was asked for alone.
    """

    job: str
    state: str
    word: str = ""
    reason: str = ""
    name: str = ""
    queue: str = ""
    hosts: int | None = None
    start: float | None = None
    end: float | None = None
    output: str = ""
    exit_code: int | None = None
    restarts: int = 0
    ending: str = ""
    number: str = ""
    scheduler: str = ""

    def is_called(self, word: str) -> bool:
        """Tell whether a word names this job: by its id, ``12.head``, by the number in it, or by its own number."""
        return bool(word) and word in {self.job, self.job.partition(".")[0], self.number}

    def began_after(self, when: float) -> bool:
        """Tell whether this job had not begun at a time: what began then and bears its id was of an earlier job.

        Schedulers count from 1 again after a new installation, and clusters that share a home each count their own. One
        that was started again had its id before.

        Args:
            when: In epoch seconds.
        """
        if self.restarts:
            return False
        return self.state == QUEUED or (self.start is not None and when < self.start - _CLOCKS)

    @property
    def told(self) -> str:
        """The scheduler's own words for the state and the reason."""
        return ", ".join(filter(None, (self.word, self.reason)))


def code_of(code: int, signal: int) -> int:
    """Return an exit code as a shell tells it, of a program that ended with a code or by a signal (else 0)."""
    return 128 + signal if signal else code
