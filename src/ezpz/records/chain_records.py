"""Say what the files of a chain of jobs hold: ``chain.json``, ``jobs.json``, ``saved.json``.

The file ``verdict`` holds one line, `ezpz.jobs.chain_verdict.read`.
"""

from __future__ import annotations

from ezpz.fields import Part, flag_field, list_field, number_field, real_field, text_field
from ezpz.records.stored_files import LONGEST, Stored, text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHAIN", "JOBS", "SAVED", "VERDICT", "ChainJob", "ChainJobs", "ChainLimits", "ChainSave"]

CHAIN, JOBS, SAVED, VERDICT = "chain.json", "jobs.json", "saved.json", "verdict"


class ChainLimits(Stored):
    """``chain.json``, which `ezpz submit` writes.

    Attributes:
        file: The job file, in the same folder.
        jobs: How many jobs there may be.
        queued_at_once: Whether all were queued at once, because jobs of this machine cannot queue any.
        ids: The jobs that were queued first.
    """

    file: str = text_field(LONGEST, default="")
    jobs: int | None = number_field(1, default=None)
    queued_at_once: bool = flag_field(default=False)
    ids: Sequence[str] = list_field(text(), default=())


class ChainJob(Stored):
    """A job of a chain that has begun.

    Attributes:
        job: Its id.
        restarts: How often the scheduler had started it again.
        began: When it began, in epoch seconds.
        ended: When its launch ended; null where that was killed.
        verdict: What it left: ``again``, ``done``, or ``stop: `` and why.
        exit_code: The exit code of its launch.
        job_ends: When the job was to end, in epoch seconds.
        run: The run folder.
        step: The furthest step that a rank reported.
        saved: The step of its newest complete save.
        newer: Whether it has come further than all jobs before it.
    """

    job: str = text_field(LONGEST, default="")
    restarts: int = number_field(default=0)
    began: float | None = real_field(default=None)
    ended: float | None = real_field(default=None)
    verdict: str = text_field(LONGEST, default="")
    exit_code: int | None = number_field(default=None)
    job_ends: float | None = real_field(default=None)
    run: str = text_field(LONGEST, default="")
    step: int | None = number_field(default=None)
    saved: int | None = number_field(default=None)
    newer: bool = flag_field(default=False)


class ChainJobs(Stored):
    """``jobs.json``, which the job that holds the lease writes.

    Attributes:
        jobs: Each job that has begun.
        waiting: The jobs in the queue.
        queueing: Whether a job is being queued.
    """

    jobs: Sequence[ChainJob] = list_field(Part(ChainJob), default=())
    waiting: Sequence[str] = list_field(text(), default=())
    queueing: bool = flag_field(default=False)


class ChainSave(Stored):
    """``saved.json``: the newest complete save.

    Attributes:
        number: The number of the job that made it.
        step: Its step; -1 for one that is not known.
    """

    number: int | None = number_field(default=None)
    step: int | None = number_field(default=None)
