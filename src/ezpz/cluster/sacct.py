r"""Read what has become of a Slurm job: from ``scontrol``, and from ``sacct`` where the controller has forgotten it.

``scontrol show job 26684003`` (Slurm 22.05.8), recorded while a job is preempted in a partition with a grace time; the
controller forgets a job MinJobAge after its end, 300 s by default:

    JobId=26684003 JobName=j.sh
       JobState=RUNNING Reason=None Dependency=(null)
       Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
       StartTime=2026-11-24T02:35:49 EndTime=2026-11-24T02:35:58 Deadline=N/A
       PreemptEligibleTime=2026-11-24T02:35:49 PreemptTime=2026-11-24T02:35:53

    JobState=COMPLETING Reason=TimeLimit        its time is over, and its processes have KillWait to end
    JobState=COMPLETING Reason=None             Restarts=1: preempted, and will be started again; Restarts=0 and
                                                PreemptTime=None: cancelled, or its script has just ended
    JobState=FAILED Reason=NonZeroExitCode      of one that exited with 7: ExitCode=7:0, the second is a signal
    JobState=CANCELLED Reason=None              ExitCode=0:15
    JobState=PENDING Reason=BeginTime           Restarts=1: preempted or requeued by hand, with a new StartTime
    JobState=PENDING Reason=Dependency          StartTime=Unknown

    slurm_load_jobs error: Invalid job id specified      on stderr, exit code 1

``sacct --noheader --parsable2 --allocations --format=State,ExitCode,Start --jobs=13`` (sacct(1), "JOB STATE CODES"):

    CANCELLED by 1000|0:15|2026-11-24T02:35:50
"""

from __future__ import annotations

import re
import time

from ezpz.cluster.job_state import (
    CANCELLED,
    ENDED,
    HOST_FAILURE,
    PREEMPTED,
    QUEUED,
    RUNNING,
    TIME_LIMIT,
    UNKNOWN,
    JobState,
    code_of,
)
from ezpz.cluster.scontrol import fields_of
from ezpz.fields import replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster.job_state import Call

# squeue(1), "JOB STATE CODES"; what is in no row here is not known to be over.
_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"), QUEUED),
    "SPECIAL_EXIT": QUEUED,
    **dict.fromkeys(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"), RUNNING),
    **dict.fromkeys(("COMPLETED", "FAILED", "OUT_OF_MEMORY"), ENDED),
    "TIMEOUT": TIME_LIMIT,
    "PREEMPTED": PREEMPTED,
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), HOST_FAILURE),
    **dict.fromkeys(("CANCELLED", "DEADLINE", "REVOKED"), CANCELLED),
}
_WITHOUT = {"", "None", "(null)", "N/A", "Unknown"}


def state_of(job: str, run: Call) -> JobState:
    """Return what Slurm says of a job."""
    reply = run(["scontrol", "show", "job", job])
    if reply.code == 0:
        return _from_scontrol(reply.out)
    if reply.code is None or "Invalid job id" not in reply.err:
        return JobState(UNKNOWN, " ".join(reply.err.split()) or f"scontrol ended with {reply.code}")
    asked = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode,Start", f"--jobs={job}"]
    reply = run(asked)
    lines = reply.out.split("\n") if reply.code == 0 else []
    if not lines or not lines[0].strip():
        answer = " ".join(reply.err.split()) or "it has no line about it"
        return JobState(UNKNOWN, f"scontrol does not know job {job} any more, nor does sacct: {answer}")
    state, code, start = [*lines[0].strip().split("|"), "", "", ""][:3]
    return _known(state, "", code, start)


def _from_scontrol(text: str) -> JobState:
    fields = fields_of(re.split(r"\n\s*\n", text.strip())[0])
    found = _known(
        fields.get("JobState", ""), fields.get("Reason", ""), fields.get("ExitCode", ""), fields.get("StartTime", "")
    )
    restarts = fields.get("Restarts", "")
    return replace(
        found,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        ending=_ending(fields) if found.state == RUNNING else "",
    )


def _ending(fields: dict[str, str]) -> str:
    """Return why Slurm ends a job whose processes still run, or run for all that is known."""
    if fields.get("PreemptTime", "") not in _WITHOUT:
        return PREEMPTED
    if fields.get("JobState") != "COMPLETING":
        return ""
    return TIME_LIMIT if fields.get("Reason") == "TimeLimit" else CANCELLED


def _known(state: str, reason: str, code: str, start: str) -> JobState:
    word = (state.split() or [""])[0]
    found = _STATES.get(word, UNKNOWN)
    numbers = re.fullmatch(r"(\d+):(\d+)", code, re.ASCII)
    over = found not in {QUEUED, RUNNING, UNKNOWN} and numbers
    return JobState(
        found,
        state if reason in _WITHOUT else f"{state}, {reason}",
        _seconds(start),
        code_of(int(numbers[1]), int(numbers[2])) if numbers and over else None,
    )


def _seconds(text: str) -> float | None:
    """Return seconds since the epoch of a time in the local zone; None for ``Unknown``."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
