"""Ask schedulers for this user's own jobs, with one question to each, and keep the answer for half a minute.

Sites forbid polling: what is asked again within 30 s is answered from ``$XDG_CACHE_HOME/ezpz/jobs-NAME.json``. How a
scheduler is asked and how its answer is read is in its own file (`Scheduler.my_jobs_question`, `read_my_jobs`).
"""

from __future__ import annotations

import os
import time

from ezpz.cluster import cache
from ezpz.cluster.job_listing import Job
from ezpz.cluster.programs import find
from ezpz.cluster.questions import Questions, unanswered
from ezpz.cluster.scheduler import schedulers
from ezpz.fields import as_dict

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ezpz.cluster.allocation import Run

KEPT = 30.0  # seconds
_LIMIT = 15.0  # seconds for a scheduler's command


def my_jobs(environ: Mapping[str, str], user: str, run: Run) -> tuple[list[Job], list[str]]:
    """Return this user's jobs at every scheduler that is here, and the programs that did not answer.

    A program that fails beside one of another scheduler that answers is none of them: Slurm comes with a ``qstat``.

    Args:
        environ: Says where answers are kept, and PATH.
        user: The user's name.
        run: Returns what a command printed, or None; of `Questions` it is known whether it took too long.
    """
    found: list[Job] = []
    failed: list[str] = []
    has_answer = False
    for one in schedulers():
        line = one.my_jobs_question(user)
        if not line or not find(line[0], environ):
            continue
        kept = _kept(environ, one.name, user)
        if kept is None:
            text = run(line)
            plain = one.my_jobs_without_history(user)
            if text is None and plain and line[0] not in unanswered(run):
                text = run(plain)
            if text is None:
                failed.append(line[0])
                continue
            kept = one.read_my_jobs(text, user)
            answer: dict[str, Any] = {"at": time.time(), "user": user, "jobs": [as_dict(each) for each in kept]}
            cache.keep(environ, f"jobs-{one.name}", answer)
        has_answer = True
        found += kept
    return found, [name for name in failed if not has_answer or name in unanswered(run)]


def scheduler_questions() -> Questions:
    """Return what asks schedulers' commands for `my_jobs`, each for at most 15 s."""
    return Questions(_LIMIT)


def user_name() -> str:
    """Return the name of this user."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without that user
        return os.environ.get("USER", "")


def _kept(environ: Mapping[str, str], name: str, user: str) -> list[Job] | None:
    """Return the jobs of an answer that is less than half a minute old; None without one."""
    known = cache.kept(environ, f"jobs-{name}")
    at, jobs = known.get("at"), known.get("jobs")
    if not isinstance(at, (int, float)) or known.get("user") != user or not isinstance(jobs, list):
        return None
    if not 0 <= time.time() - at < KEPT:
        return None
    try:
        return [Job(**each) for each in jobs]
    except TypeError:  # another version of ezpz wrote it
        return None
