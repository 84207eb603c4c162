"""Read what has become of a PBS job, from ``qstat -xf``, which also tells of jobs that are over.

Where the server keeps no history of them (``job_history_enable``, which is false unless it is set), it refuses ``-x``
whatever the job's state is: PBSE_JOBHISTNOTSET, 15140, of which ``qstat`` makes the exit code 36 (req_stat_job in
src/server/req_stat.c of OpenPBS 0481674). Then ``qstat -f`` is asked, which knows jobs that wait or run.

``qstat -x -f -F json 1.head`` (OpenPBS 23.06.06) has these fields in ``Jobs``, and older versions without JSON the same
as lines of ``qstat -x -f 1.head``; a job that is over has an ``Exit_status`` besides:

    "job_state": "R", "substate": 41, "run_count": 1, "stime": "Fri Nov 20 15:22:30 2026",
    "comment": "Job run at Fri Nov 20 at 15:22 on (n01:ncpus=2)+(n02:ncpus=2)+(n03:ncpus=2)"

Of ``src/include/job.h`` of OpenPBS: states are T Q H W R E X B M F, with S and U for suspended ones; of substates 91 is
one that was ended by ``qdel``, 92 one that has finished, 93 one that has failed. An exit status of 256 and more is a
signal's, one below 0 is PBS's own: -29 the wall time was exceeded, -14 the first host lost another one, -20 the server
lost the first host, -4 to -6 the daemon of the first host was started anew. ``estimated.start_time`` is there where the
scheduler estimates.
"""

from __future__ import annotations

import json
import time

from ezpz.cluster.job_state import (
    CANCELLED,
    ENDED,
    HOST_FAILURE,
    QUEUED,
    RUNNING,
    TIME_LIMIT,
    UNKNOWN,
    JobState,
    code_of,
)

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.job_state import Call

_WAITING, _RUNNING, _FINISHED = "TQHWB", "RESU", "FX"
_DELETED = 91  # substate
_WALL_TIME = -29
_HOST_FAILURES = {-4, -5, -6, -14, -20}
_SIGNALS = 256  # and the signal
_TERM = 15
NO_HISTORY = 36  # exit code of ``qstat -x`` where the server keeps none


def state_of(job: str, run: Call) -> JobState:
    """Return what PBS says of a job."""
    answer, history = "", ["-x"]
    for form, read in ((["-F", "json"], _json), ([], _classic)):
        reply = run(["qstat", *history, "-f", *form, job])
        if reply.code == NO_HISTORY and history:
            history = []
            reply = run(["qstat", "-f", *form, job])
        fields = read(reply.out, job) if reply.code == 0 else {}
        if fields:
            return _state(fields)
        answer = " ".join(reply.err.split()) or f"qstat ended with {reply.code} and without a word about it"
        if reply.code is None:
            break  # a second question would wait as long
    return JobState(UNKNOWN, answer)


def _state(fields: Mapping[str, str]) -> JobState:
    letter = fields.get("job_state", "")
    comment = fields.get("comment", "")
    runs = _number(fields.get("run_count", "")) or 0
    start = _seconds(fields.get("stime") or fields.get("estimated.start_time") or "")
    if letter and letter in _WAITING:
        # Its stime is that of the run before; one that was preempted or lost a host waits again.
        return JobState(QUEUED, comment, _seconds(fields.get("estimated.start_time", "")), restarts=runs)
    if letter and letter in _RUNNING:
        return JobState(RUNNING, comment, start, restarts=max(0, runs - 1))
    code = _number(fields.get("Exit_status", ""))
    if letter not in _FINISHED or not letter:
        return JobState(UNKNOWN, f"job_state = {letter}", start)
    if code == _WALL_TIME:
        found = TIME_LIMIT
    elif code in _HOST_FAILURES:
        found = HOST_FAILURE
    elif code is None or fields.get("substate") == str(_DELETED) or code == _SIGNALS + _TERM:
        found = CANCELLED  # also one that was deleted before it began
    else:
        found = ENDED
    if code is not None:
        code = code_of(code, code - _SIGNALS if code > _SIGNALS else 0) if code >= 0 else None
    return JobState(found, comment, start, code, max(0, runs - 1))


def _json(text: str, job: str) -> dict[str, str]:
    try:
        jobs = json.loads(text)["Jobs"]
        answer = jobs[job] if job in jobs else next(iter(jobs.values()))
        flat = {name: str(value) for name, value in answer.items() if isinstance(value, str | int)}
        estimate = answer.get("estimated", {})
        return flat | {f"estimated.{name}": str(value) for name, value in estimate.items()}
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):  # none of old releases
        return {}


def _classic(text: str, job: str) -> dict[str, str]:
    del job
    fields: dict[str, str] = {}
    whole = text.replace("\n\t", "")
    if not whole.startswith("Job Id: "):
        return fields
    for line in whole.split("\n\n")[0].splitlines()[1:]:
        name, equals, value = line.strip().partition(" = ")
        if equals:
            fields.setdefault(name, value)
    return fields


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    """Return seconds since the epoch of ``Fri Nov 20 15:22:30 2026`` or ``1795188151``; None for another text."""
    if text.isdecimal():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
