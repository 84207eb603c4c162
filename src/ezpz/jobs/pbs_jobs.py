"""Submit, list and cancel jobs of PBS (OpenPBS, PBS Pro).

``qstat -x -f -F json 1.head`` (OpenPBS 23.06.06) has these fields in ``Jobs``, and older versions without JSON the same
as lines of ``qstat -x -f 1.head``; a job that is over has an ``Exit_status`` besides:

    "job_state": "R", "substate": 41, "run_count": 1, "stime": "Fri Nov 20 15:22:30 2026",
    "comment": "Job run at Fri Nov 20 at 15:22 on (n01:ncpus=2)+(n02:ncpus=2)+(n03:ncpus=2)"

Of ``src/include/job.h`` of OpenPBS: states are T Q H W R E X B M F, with S and U for suspended ones; of substates 91 is
one that was ended by ``qdel``, 92 one that has finished, 93 one that has failed. An exit status of 256 and more is a
signal's, one below 0 is PBS's own: -29 the wall time was exceeded, -14 the first host lost another one, -20 the server
lost the first host, -4 to -6 the daemon of the first host was started anew. ``estimated.start_time`` is there where the
scheduler estimates, else it may be UNKNOWN.

A user's own jobs, ended ones too, are all told by ``qstat -x -u USER -f -w``. The order counts: ``-f`` after ``-u``
asks for all attributes, and ``-w`` keeps the long form, a line for each value, which ``-u`` alone would turn into a
table:

    Job Id: 12.head
        Job_Name = train
        Job_Owner = me@login1
        job_state = Q
        queue = workq
        comment = Not Running: Insufficient amount of resource: ncpus
        Output_Path = login1:/home/me/train.o12
        mtime = Fri Nov 20 15:25:31 2026
        estimated.start_time = Fri Nov 20 16:00:00 2026
        Resource_List.nodect = 2
        Resource_List.walltime = 01:00:00

``-u`` beside ``-F json`` is "conflicting options" (exit code 2). Read in src/cmds/qstat.c of OpenPBS v18.1.4, v19.1.3,
v20.0.1, v22.05.11, v23.06.06 and cd7ab5e (2026-04-10).

Where the server keeps no history of jobs (``job_history_enable``, which is false unless it is set), it refuses ``-x``
whatever the job's state is: PBSE_JOBHISTNOTSET, 15140, of which ``qstat`` makes the exit code 36 (req_stat_job in
src/server/req_stat.c of OpenPBS 0481674). Then it is asked without, and knows jobs that wait or run.

``qstat -Qf`` has the limits of queues, as far as they are set (PBS Reference Guide, "Queue Attributes"):

    Queue: prod
        queue_type = Route
        resources_max.nodect = 496
        resources_min.nodect = 10
        resources_max.walltime = 24:00:00
        route_destinations = small,medium,large
        enabled = True
        started = True
"""

from __future__ import annotations

import re

from ezpz.cluster.pbs import SCHEDULER
from ezpz.cluster.qstat import end_of, read_jobs, seconds
from ezpz.jobs.job_handler import JobHandler, JobScript, Queue, Queues
from ezpz.jobs.job_state import (
    CANCELLED,
    ENDED,
    HOST_FAILURE,
    OVER,
    QUEUED,
    RUNNING,
    TIME_LIMIT,
    UNKNOWN,
    Job,
    code_of,
)

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Run
    from ezpz.jobs.job_state import Call

_ENTER = """\
# PBS starts jobs in the home folder; this one runs in the folder in which qsub was called.
cd "${PBS_O_WORKDIR:?this is a job file: submit it with qsub}"
# The folder that PBS makes for temporary files can have a name too long for the sockets in it (AF_UNIX path too long).
export TMPDIR=/tmp
"""
_UNFILLED = """\
if [[ -r $0 ]] && grep -q '^#PBS {line}$' "$0"; then
  echo "#PBS {line} is not filled in: name yours in this file" >&2
  exit 2
fi
"""
_STATES = {**dict.fromkeys("TQHW", QUEUED), **dict.fromkeys("RESUB", RUNNING)}
_FINISHED = {"F", "X"}
_DELETED = "91"  # substate
_WALL_TIME = -29
_HOST_FAILURES = {-4, -5, -6, -14, -20}
_SIGNALS = 256  # and the signal
_TERM = 15
_NO_HISTORY = 36  # exit code of ``qstat -x`` where the server keeps none


class PbsJobs(JobHandler):
    """Jobs of PBS."""

    name = "pbs"
    script = JobScript(
        "job.pbs",
        "#PBS",
        ("-A PROJECT", "-q QUEUE", "-l select=2", "-l place=scatter:exclhost"),
        "qsub",
        "-l select={hosts}:ngpus={count}",
        beside=SCHEDULER.remote_shell[0],
        first_line="#!/bin/bash -l",
        account="-A",
        queues=("-q",),
        hosts="-l select",
        time="-l walltime",
        filesystems="-l filesystems",
        name="-N",
        output="-o",
        output_file="{folder}",
        written_to="{folder}{job}.OU",
        arrays=("-J",),
        always=("-j oe",),
        after=("-W", "depend=afterany:{job}"),
        listing=("qstat",),
        foreign=("--",),
        enter=_ENTER,
        unfilled=_UNFILLED,
    )
    cancelling = ("qdel",)

    def question(self, user: str) -> list[str]:
        """See `JobHandler.question`."""
        return ["qstat", "-x", "-u", user, "-f", "-w"]

    def question_without_history(self, user: str) -> list[str]:
        """See `JobHandler.question_without_history`."""
        return ["qstat", "-u", user, "-f", "-w"]

    def read(self, text: str, user: str) -> list[Job]:
        """See `JobHandler.read`; jobs of others are passed over."""
        jobs = {job: fields for job, fields in read_jobs(text).items() if fields}
        owners = {user, ""}
        return [
            _job(job, fields) for job, fields in jobs.items() if fields.get("Job_Owner", "").partition("@")[0] in owners
        ]

    def job(self, job: str, run: Call) -> Job:
        """Return what ``qstat`` says of a job, also of one that is over."""
        answer, history = "", ["-x"]
        for form in (["-F", "json"], []):
            reply = run(["qstat", *history, "-f", *form, job])
            if reply.code == _NO_HISTORY and history:
                history = []
                reply = run(["qstat", "-f", *form, job])
            known = read_jobs(reply.out) if reply.code == 0 else {}
            fields = known.get(job) or next(iter(known.values()), {})  # the id may lack the server's name
            if fields:
                return _job(job, fields)
            answer = " ".join(reply.err.split()) or f"qstat ended with {reply.code} and without a word about it"
            if reply.code is None:
                break  # a second question would wait as long
        return Job(job, UNKNOWN, reason=answer)

    def job_id(self, text: str) -> str:
        """Return the id of ``13.head``, ``13[].head`` or ``13``, alone in its line."""
        found = re.search(r"(?m)^[ \t]*(\d+(?:\[\d*\])?(?:\.[\w.-]+)?)[ \t\r]*$", text, re.ASCII)
        return found[1] if found else ""

    def is_another(self, environ: Mapping[str, str], run: Run) -> str:
        """Return Grid Engine, where its variables are set and no queue of PBS is known: its ``qsub`` ignores #PBS."""
        return "Grid Engine" if environ.get("SGE_ROOT") and not queues(run) else ""

    def queues(self, option: str, run: Run) -> Queues | None:
        """Return the queues of the server."""
        del option
        return queues(run)


def _job(job: str, fields: Mapping[str, str]) -> Job:
    letter, runs = fields.get("job_state", ""), _number(fields.get("run_count", "")) or 0
    code = _number(fields.get("Exit_status", ""))
    state = _ended(code, fields.get("substate", "")) if letter in _FINISHED else _STATES.get(letter, UNKNOWN)
    # The stime of one that waits is that of the run before; one that was preempted or lost a host waits again.
    began = "" if state == QUEUED else fields.get("stime", "")
    return Job(
        job,
        state,
        letter,
        fields.get("comment", ""),
        fields.get("Job_Name", ""),
        fields.get("queue", ""),
        _number(fields.get("Resource_List.nodect", "")),
        seconds(began or fields.get("estimated.start_time", "")),
        seconds(fields.get("mtime", "")) if state in OVER else end_of(fields),
        _output(job, fields.get("Output_Path", "").partition(":")[2]),
        _exit_code(code) if state in OVER else None,
        runs if state == QUEUED else max(0, runs - 1),
    )


def _output(job: str, path: str) -> str:
    """Return the file of a job's output; ``qsub -o`` may name a folder, and of an array one file for each part."""
    if path.endswith("/"):
        return f"{path}{job}.OU"
    part = re.search(r"\[(\d+)\]", job, re.ASCII)
    return path.replace("^array_index^", part[1]) if part else path


def _ended(code: int | None, substate: str) -> str:
    """Return how a job has ended; also one that was deleted before it began is cancelled."""
    if code == _WALL_TIME:
        return TIME_LIMIT
    if code in _HOST_FAILURES:
        return HOST_FAILURE
    return CANCELLED if code is None or substate == _DELETED or code == _SIGNALS + _TERM else ENDED


def _exit_code(code: int | None) -> int | None:
    return None if code is None or code < 0 else code_of(code, max(0, code - _SIGNALS))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else None


def queues(run: Run) -> Queues | None:
    """Return the queues of the server; None when ``qstat`` is absent or does not answer."""
    command = ["qstat", "-Qf"]
    found = {}
    for block in re.split(r"^Queue: ", (run(command) or "").replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        name, *lines = block.splitlines()
        fields = dict(line.strip().partition(" = ")[::2] for line in lines)
        leads_to = fields.get("route_destinations", "").replace(" ", "")
        found[name.strip()] = Queue(
            name.strip(),
            most_seconds=_span(fields.get("resources_max.walltime", "")),
            least_hosts=_number(fields.get("resources_min.nodect", "")),
            most_hosts=_number(fields.get("resources_max.nodect", "")),
            is_open=fields.get("enabled", "True") == "True",
            leads_to=tuple(filter(None, leads_to.split(","))),
        )
    return Queues(found, " ".join(command)) if found else None


def _span(text: str) -> int | None:
    """Return seconds of ``336:00:00``, ``30:00`` or ``1800``; None for what is none."""
    if not re.fullmatch(r"\d+(:\d\d){0,2}", text, re.ASCII):
        return None
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


HANDLER = PbsJobs()
