"""Queue jobs, ask what has become of them, and cancel them.

A job file is handed to the scheduler whose mark is in it, which answers the job's id:

    sbatch --parsable --dependency=afterany:12 job.slurm      13, or 13;cluster
    qsub -W depend=afterany:12.head job.pbs                   13.head

What `ask` reads is in `ezpz.cluster.sacct` and `ezpz.cluster.pbs_history`.
"""

from __future__ import annotations

import os
import shlex
import time

from ezpz.cluster.allocation import is_job
from ezpz.cluster.job_state import OVER, UNKNOWN, JobState, Reply
from ezpz.cluster.programs import find, missing
from ezpz.cluster.scheduler import scheduler, schedulers
from ezpz.errors import MachineError, UsageError
from ezpz.files import read_text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.cluster.job_state import Call
    from ezpz.cluster.scheduler import JobScript

_LIMIT = 60.0  # seconds: a busy scheduler takes its time, and a job that may have been queued is not asked for again
LIMIT = 10.0  # seconds for one question


def submit(path: str, after: str = "") -> str:
    """Queue a job file, in the working folder, and return the job's id.

    Args:
        path: The file.
        after: A job that must have ended first, however it ends.

    Raises:
        UsageError: The file has no options of a scheduler.
        MachineError: The scheduler is not here or does not take the job.
    """
    import subprocess

    kind = _kind_of(path)
    program = find(kind.program)
    if not program:
        raise MachineError(
            f"{missing(kind.program)} (for {path}); expected a host from which jobs are submitted. Call it on a login "
            "host."
        )
    line = [program, *kind.quiet, *(word.format(job=after) for word in (kind.after if after else ())), path]
    environ = {name: text for name, text in os.environ.items() if not _misleads(name, kind)}
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
    job = (done.stdout.split() or [""])[-1].partition(";")[0]
    if done.returncode or not is_job(job):
        answer = " ".join((done.stderr or done.stdout).split()) or f"it ended with {done.returncode} and without a word"
        raise MachineError(
            f"not queued: {path} ({kind.program} says: {answer}); expected a job's id. Correct the options in the "
            f"file, or those of the command, and look at `{shlex.join(line)}`."
        )
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


def ask(kind: str, job: str, run: Call = call) -> JobState:
    """Return what a scheduler says of a job.

    Args:
        kind: The scheduler's name.
        job: The job's id.
        run: Runs a command within a time limit.
    """
    if not is_job(job):
        return JobState(UNKNOWN, f"{job!r} is no id of a job")
    return scheduler(kind).state_of(job, run)


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
    words = scheduler(kind).cancelling
    if not words or not all(map(is_job, jobs)):
        return dict.fromkeys(jobs, f"{scheduler(kind).title} cannot cancel it")
    end = time.monotonic() + seconds

    def within(line: Sequence[str]) -> Reply:
        return run(line) if run else call(line, max(0.1, end - time.monotonic()))

    reply = within([*words, *jobs])
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


def _misleads(name: str, kind: JobScript) -> bool:
    """Tell whether a variable would stand above the file's own lines, or would tell the job of another one."""
    if kind.overriding and name.startswith(kind.overriding):
        return True
    return tells_of_a_job(name, kind)


def tells_of_a_job(name: str, kind: JobScript | None) -> bool:
    """Tell whether a variable tells of the job around the shell, and misleads a command that is meant for another."""
    return kind is not None and bool(kind.of_job) and name.startswith(kind.of_job) and name not in kind.lasting


def _kind_of(path: str) -> JobScript:
    text = read_text(path)
    for one in schedulers():
        if text and one.job_script and f"\n{one.job_script.mark} " in text:
            return one.job_script
    marks = ", ".join(one.job_script.mark for one in schedulers() if one.job_script)
    raise UsageError(
        f"no job file: {path} {'cannot be read' if text is None else 'has no options of a scheduler'}; expected lines "
        f"that begin with one of {marks}."
    )
