"""Queue jobs, list them, ask what has become of them, and cancel them.

A job file is handed to the scheduler whose mark is in it, which answers the job's id:

    sbatch --parsable --dependency=afterany:12 job.slurm      13, or 13;cluster
    qsub -W depend=afterany:12.head job.pbs                   13.head

How a scheduler is asked and how its answer is read is in its own file (`ezpz.jobs.job_handler`). Sites forbid
polling: what `my_jobs` is asked again within 30 s is answered from ``$XDG_CACHE_HOME/ezpz/jobs-NAME.json``, unless
something is known to have changed since.
"""

from __future__ import annotations

import os
import shlex
import time

from ezpz.cluster import cache
from ezpz.cluster.allocation import is_job
from ezpz.cluster.programs import find, missing
from ezpz.cluster.questions import Questions, said, unanswered
from ezpz.cluster.scheduler import plain_output, schedulers
from ezpz.cluster.scheduler import scheduler as scheduler_of
from ezpz.errors import MachineError, UsageError
from ezpz.fields import Record, as_dict, replace
from ezpz.files import read_text
from ezpz.jobs.job_handler import handler, handlers, lack
from ezpz.jobs.job_state import OVER, RUNNING, UNKNOWN, Job, Reply

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ezpz.cluster.allocation import Run
    from ezpz.jobs.job_handler import JobHandler
    from ezpz.jobs.job_state import Call

_LIMIT = 60.0  # seconds: a busy scheduler takes its time, and a job that may have been queued is not asked for again
LIMIT = 10.0  # seconds for one question
KEPT = 30.0  # seconds, of a list of jobs
_TO_LIST = 15.0  # seconds


class NotQueuedError(MachineError):
    """The scheduler has refused a job, which is not queued."""


def submit(path: str, after: str = "") -> str:
    """Queue a job file, in the working folder, and return the job's id.

    Args:
        path: The file.
        after: A job that must have ended first, however it ends.

    Raises:
        UsageError: The file has no options of a scheduler.
        NotQueuedError: The scheduler does not take the job.
        MachineError: The scheduler is not here, or what became of the job is not known.
    """
    import subprocess

    handles = _handler_of(path)
    kind = handles.script
    program = find(kind.program)
    if not program:
        raise MachineError(
            f"{missing(kind.program)} (for {path}); expected a host from which jobs are submitted. Call it on a login "
            "host."
        )
    line = [program, *kind.quiet, *(word.format(job=after) for word in (kind.after if after else ())), path]
    environ = {name: text for name, text in os.environ.items() if not _misleads(name, handles)}
    try:
        done = subprocess.run(
            line, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"no answer of `{shlex.join(line)}` within {_LIMIT:g} s; expected a job's id. Look whether the job is "
            f"queued before you submit it again: `{shlex.join([*kind.listing])}`."
        ) from None
    except OSError as error:
        raise MachineError(f"cannot start {kind.program}: {error.strerror} (from PATH); expected a program.") from None
    job = handles.job_id(done.stdout)
    answer = " ".join((done.stderr or done.stdout).split()) or f"it ended with {done.returncode} and without a word"
    if done.returncode:
        raise NotQueuedError(
            f"not queued: {path} ({kind.program} says: {answer}); expected a job's id. Correct the options of the job, "
            "and submit it again."
        )
    if not job:
        raise MachineError(
            f"no id of a job: {path} ({kind.program} says: {answer}); expected one. Look whether the job is queued "
            f"before you submit it again: `{shlex.join([*kind.listing])}`."
        )
    forget_jobs(os.environ)
    return job


def call(line: Sequence[str], limit: float = LIMIT) -> Reply:
    """Run a command of a scheduler and return what it answers; it is killed when it does not in time.

    Args:
        line: Its words.
        limit: Seconds.
    """
    import signal
    import subprocess

    program = find(line[0])
    if not program:
        return Reply(None, "", missing(line[0]))
    try:
        # A session of its own, so that what the command itself has started can be ended with it.
        child = subprocess.Popen(
            [program, *line[1:]],
            env=plain_output(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Reply(None, "", f"cannot run {line[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return Reply(None, "", f"no answer of {line[0]} within {round(limit, 1):g} s")
    except BaseException:  # Ctrl-C: no command of ours stays behind
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    return Reply(child.returncode, out, err)


def ask(kind: str, job: str, run: Call = call) -> Job:
    """Return what a scheduler says of a job.

    Args:
        kind: The scheduler's name.
        job: The job's id.
        run: Runs a command within a time limit.
    """
    known = handler(kind)
    if known is None:
        return Job(job, UNKNOWN, reason=lack(kind, "follow"))
    return known.job(job, run) if is_job(job) else Job(job, UNKNOWN, reason=f"{job!r} is no id of a job")


def cancel(kind: str, jobs: Sequence[str], run: Call | None = None, seconds: float = LIMIT) -> dict[str, str]:
    """Cancel jobs that wait or run, in this order; those that are over may be among them.

    Args:
        kind: The scheduler's name.
        jobs: Their ids.
        run: Runs a command; by default `call`, within the time that is left.
        seconds: How long all of it may take.

    Returns:
        Why a job was not cancelled, for each that was not.
    """
    known = handler(kind)
    if known is None or not all(map(is_job, jobs)):
        return dict.fromkeys(jobs, lack(kind, "cancel") if known is None else "not all are ids of jobs")
    words = known.cancelling
    end = time.monotonic() + seconds

    def within(line: Sequence[str]) -> Reply:
        return run(line) if run else call(line, max(0.1, end - time.monotonic()))

    reply = within([*words, *jobs])
    forget_jobs(os.environ)
    if reply.code == 0:
        return {}
    problem = " ".join(reply.err.split()) or f"{words[0]} ended with {reply.code}"
    if reply.code is None:  # it is absent, or the scheduler does not answer: it is not asked more
        return dict.fromkeys(jobs, problem)
    left = {}
    for job in jobs:
        if time.monotonic() >= end:
            left[job] = f"not cancelled within {seconds:g} s"
        elif ask(kind, job, within).state not in OVER:
            left[job] = problem
    return left


class Listing(Record):
    """This user's jobs at every scheduler that is here.

    Attributes:
        jobs: All that it knows of: those that have ended too, as long as it keeps them.
        asked: When each scheduler that has answered was asked, by its name, in epoch seconds.
        silent: Programs that gave no answer in time.
        failed: Programs that ended with an error, and what they said.
    """

    jobs: Sequence[Job]
    asked: Mapping[str, float]
    silent: Sequence[str]
    failed: Mapping[str, str]

    def called(self, word: str) -> Job | None:
        """Return the job that a word names; None where there is none."""
        return next((job for job in self.jobs if job.is_called(word)), None)

    def job_of(self, job: str, when: float) -> Job | None:
        """Return the job in which something began; None where no scheduler that has answered knows it.

        Args:
            job: Its id, as its variables told.
            when: When that began, in epoch seconds.
        """
        found = self.called(job)
        return None if found is None or found.began_after(when) else found

    def who_forgot(self, scheduler: str, job: str, when: float) -> str:
        """Return the title of the scheduler that has answered and does not know a job; empty where none can tell.

        Args:
            scheduler: The job's, by name; empty where that is not known.
            job: Its id, as its variables told; empty without one.
            when: When something began in it, in epoch seconds.
        """
        asked = [name for name in self.asked if scheduler in {name, ""}]
        return scheduler_of(asked[0]).title if job and asked and self.job_of(job, when) is None else ""

    def missing(self) -> str:
        """Return in words whose jobs are missing, and why; empty where all have answered."""
        parts = [f"{', '.join(self.silent)} gave no answer within {_TO_LIST:g} s"] if self.silent else []
        parts += [f"{name} failed: {said}" if said else f"{name} failed" for name, said in self.failed.items()]
        return f"{'; '.join(parts)}; its jobs are missing here" if parts else ""


def my_jobs(environ: Mapping[str, str], user: str, run: Run, since: float = 0.0) -> Listing:
    """Return this user's jobs.

    A program that fails beside one of another scheduler that answers is not counted: Slurm comes with a ``qstat``.

    Args:
        environ: Says where answers are kept, and PATH.
        user: The user's name.
        run: Returns what a command printed, or None; of `Questions` it is known whether it took too long.
        since: An answer from before is not used: in epoch seconds.
    """
    found: list[Job] = []
    failed: dict[str, str] = {}
    asked: dict[str, float] = {}
    for one in handlers():
        line = one.question(user)
        if not find(line[0], environ):
            continue
        at, kept = _kept(environ, one.name, user)
        if kept is None or at <= since:
            at = time.time()
            text = run(line)
            plain = one.question_without_history(user)
            if text is None and plain and line[0] not in unanswered(run):
                text = run(plain)
            if text is None:
                failed[line[0]] = said(run, line[0])
                continue
            kept = [replace(job, scheduler=one.name) for job in one.read(text, user)]
            answer: dict[str, Any] = {"at": at, "user": user, "jobs": [as_dict(each) for each in kept]}
            cache.keep(environ, f"jobs-{one.name}", answer)
        asked[one.name] = at
        found += kept
    silent = [name for name in failed if name in unanswered(run)]
    failed = {} if asked else {name: text for name, text in failed.items() if name not in silent}
    return Listing(found, asked, silent, failed)


def forget_jobs(environ: Mapping[str, str]) -> None:
    """Have the schedulers be asked again for the list of jobs: something has become of one."""
    for one in handlers():
        cache.forget(environ, f"jobs-{one.name}")


def not_listed(environ: Mapping[str, str]) -> list[str]:
    """Return in words which jobs `my_jobs` leaves out: those of a scheduler that is here and only detected.

    Args:
        environ: With PATH, and the variables of a job.
    """
    others = [one for one in schedulers() if handler(one.name) is None]
    here = [one for one in others if one.is_marked(environ)]
    if not here and not any(find(one.question("")[0], environ) for one in handlers()):
        here = [one for one in others if any(find(program, environ) for program in (*one.programs, *one.commands))]
    return [lack(one.name, "list") for one in here]


def scheduler_questions(limit: float = _TO_LIST) -> Questions:
    """Return what asks schedulers' commands for `my_jobs`, each for so many seconds at most."""
    return Questions(limit)


def user_name() -> str:
    """Return the name of this user."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without that user
        return os.environ.get("USER", "")


def _kept(environ: Mapping[str, str], name: str, user: str) -> tuple[float, list[Job] | None]:
    """Return an answer that is less than half a minute old, and when it was asked for; 0 and None without one."""
    known = cache.kept(environ, f"jobs-{name}")
    at, jobs = known.get("at"), known.get("jobs")
    if not isinstance(at, (int, float)) or known.get("user") != user or not isinstance(jobs, list):
        return 0.0, None
    now = time.time()
    if not 0 <= now - at < KEPT:
        return 0.0, None
    try:
        found = [Job(**each) for each in jobs]
    except TypeError:  # another version of ezpz wrote it
        return 0.0, None
    is_over = any(job.state == RUNNING and job.end is not None and job.end < now for job in found)  # by now
    return (0.0, None) if is_over else (float(at), found)


def _misleads(name: str, handles: JobHandler) -> bool:
    """Tell whether a variable would stand above the file's own lines, or would tell the job of another one."""
    above = handles.script.overriding
    return bool(above and name.startswith(above)) or handles.scheduler.tells_of_job(name)


def _handler_of(path: str) -> JobHandler:
    text = read_text(path)
    for one in handlers():
        if text and f"\n{one.script.mark} " in text:
            return one
    marks = ", ".join(one.script.mark for one in handlers())
    raise UsageError(
        f"no job file: {path} {'cannot be read' if text is None else 'has no options of a scheduler'}; expected lines "
        f"that begin with one of {marks}."
    )
