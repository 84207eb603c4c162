"""Submit, list and cancel jobs of Slurm.

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

``squeue --me --states=all --noheader --Format=…`` (Slurm 22.05.8; ``--me`` and what follows a field from 20.02 on)
lists jobs that have ended too, for MinJobAge seconds, a line each of fields that `_FIELDS` names:

    12|12|RUNNING|2|2026-11-20T19:21:32|2026-11-20T19:31:32|main|None|0|1|n01|/home/me|/home/me/logs/%x-%j.out|train
    13|13|PENDING|4|N/A|N/A|main|Resources|0|1|n/a|/home/me|/home/me/slurm-13.out|train
    5_1|6|FAILED|1|2026-11-20T19:20:00|2026-11-20T19:20:03|main|NonZeroExitCode|0|1|n02|/home/me|/home/me/slurm-6.out|t

A task of an array has a number of its own, which its variables tell (``SLURM_JOB_ID=6``). The file of the output is as
``sbatch -o`` or the script named it, with patterns (sbatch(1), "filename pattern"; `expand_stdio_fields` of
src/common/print_fields.c at 284c3b95). Where nothing did, 22.05 tells ``slurm-6.out`` also of an array, whose file is
``slurm-5_1.out``, and of a job without a script, which has none (`_print_job_std_out` of src/squeue/print.c).

``scontrol show partition`` (Slurm 22.05.8), one block for each; limits may be UNLIMITED, times [days-]hh:mm:ss:

    PartitionName=main
       AllocNodes=ALL Default=YES QoS=N/A
       MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
       State=UP TotalCPUs=8 TotalNodes=2 SelectTypeParameters=NONE
"""

from __future__ import annotations

import os
import re

from ezpz.cluster.scontrol import blocks, seconds
from ezpz.jobs.job_handler import JobHandler, JobScript, Queue, Queues
from ezpz.jobs.job_state import (
    CANCELLED,
    ENDED,
    HOST_FAILURE,
    OVER,
    PREEMPTED,
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

# https://slurm.schedmd.com/sbatch.html, "OPTIONS"
_SHORT_OPTIONS = (
    ("-A", "--account"),
    ("-C", "--constraint"),
    ("-G", "--gpus"),
    ("-J", "--job-name"),
    ("-N", "--nodes"),
    ("-a", "--array"),
    ("-c", "--cpus-per-task"),
    ("-d", "--dependency"),
    ("-n", "--ntasks"),
    ("-o", "--output"),
    ("-p", "--partition"),
    ("-q", "--qos"),
    ("-t", "--time"),
)
_ENTER = """\
# Slurm runs a copy of this file, in the folder in which sbatch was called.
cd "${SLURM_SUBMIT_DIR:?this is a job file: submit it with sbatch}"
"""
_UNFILLED = """\
# Where accounts are not enforced Slurm takes any word for one, and writes it in small letters.
account="${{SLURM_JOB_ACCOUNT:-}}"
if [[ ${{account,,}} == {small} ]]; then
  echo "{line} is not filled in: name yours in this file, or submit with sbatch {option}=YOURS" >&2
  exit 2
fi
"""
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
_FIELDS = (
    "JobArrayID",
    "JobID",
    "State",
    "NumNodes",
    "StartTime",
    "EndTime",
    "Partition",
    "Reason",
    "RestartCnt",
    "BatchFlag",
    "BatchHost",
    "WorkDir",
    "StdOut",
    "Name",  # last: it may hold anything
)
_PATTERN = re.compile(r"%(\d*)([%AJNabjnstux])", re.ASCII)


class SlurmJobs(JobHandler):
    """Jobs of Slurm."""

    name = "slurm"
    script = JobScript(
        "job.slurm",
        "#SBATCH",
        ("--account=ACCOUNT", "--partition=PARTITION", "--exclusive"),
        "sbatch",
        "--gpus-per-node={count}",
        first_line="#!/bin/bash",
        account="--account",
        account_variable="SBATCH_ACCOUNT",
        queues=("--partition", "--qos"),
        hosts="--nodes",
        time="--time",
        name="--job-name",
        output="--output",
        output_file="{folder}%x-%j.out",
        written_to="{folder}{name}-{job}.out",
        literal=("%", "%%"),  # sbatch(1), "filename pattern"
        arrays=("--array",),
        quiet=("--parsable",),
        after=("--dependency=afterany:{job}",),
        overriding="SBATCH_",
        listing=("squeue", "--me"),
        also_called=_SHORT_OPTIONS,
        foreign=("-l",),
        enter=_ENTER,
        unfilled=_UNFILLED,
    )
    cancelling = ("scancel",)

    def question(self, user: str) -> list[str]:
        """See `JobHandler.question`."""
        del user
        return ["squeue", "--me", "--states=all", "--noheader", f"--Format={','.join(f'{name}:|' for name in _FIELDS)}"]

    def read(self, text: str, user: str = "") -> list[Job]:
        """See `JobHandler.read`; lines of another shape are passed over."""
        rows = (line.removesuffix("|").split("|", len(_FIELDS) - 1) for line in text.splitlines())
        return [_listed(dict(zip(_FIELDS, row, strict=True)), user) for row in rows if len(row) == len(_FIELDS)]

    def job(self, job: str, run: Call) -> Job:
        """Return what ``scontrol`` or ``sacct`` says of a job."""
        reply = run(["scontrol", "show", "job", job])
        if reply.code == 0:
            return _from_scontrol(job, next((fields for _, fields in blocks(reply.out)), {}))
        if reply.code is None or "Invalid job id" not in reply.err:
            return Job(job, UNKNOWN, reason=" ".join(reply.err.split()) or f"scontrol ended with {reply.code}")
        line = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode,Start", f"--jobs={job}"]
        reply = run(line)
        first = reply.out.partition("\n")[0].strip() if reply.code == 0 else ""
        if not first:
            answer = " ".join(reply.err.split()) or "it has no line about it"
            why = f"scontrol does not know job {job} any more, nor does sacct: {answer}"
            return Job(job, UNKNOWN, reason=why)
        word, code, start = [*first.split("|"), "", "", ""][:3]
        return Job(job, _state(word), word, start=seconds(start), exit_code=_exit_code(word, code))

    def job_id(self, text: str) -> str:
        """Return the id of ``123``, ``123;cluster`` or ``Submitted batch job 123 on cluster NAME``."""
        found = re.search(r"(?m)^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*$", text, re.ASCII)
        return found[1] if found else ""

    def queues(self, option: str, run: Run) -> Queues | None:
        """Return the partitions; what `--qos` names is known to the accounting alone, which is not asked."""
        return partitions(run) if option == self.script.queues[0] else None


def _state(word: str) -> str:
    return _STATES.get((word.split() or [""])[0], UNKNOWN)


def _exit_code(word: str, text: str) -> int | None:
    """Return the exit code of ``7:0`` or ``0:15``, of a job that is over."""
    numbers = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    return code_of(int(numbers[1]), int(numbers[2])) if numbers and _state(word) in OVER else None


def _from_scontrol(job: str, fields: Mapping[str, str]) -> Job:
    word, reason = fields.get("JobState", ""), fields.get("Reason", "")
    return Job(
        job,
        _state(word),
        word,
        "" if reason in _WITHOUT else reason,
        queue=fields.get("Partition", ""),
        hosts=_count(fields.get("NumNodes", "")),
        start=seconds(fields.get("StartTime", "")),
        end=seconds(fields.get("EndTime", "")),
        exit_code=_exit_code(word, fields.get("ExitCode", "")),
        output=fields.get("StdOut", ""),
        restarts=_count(fields.get("Restarts", "")) or 0,
        ending=_ending(fields) if _state(word) == RUNNING else "",
    )


def _ending(fields: Mapping[str, str]) -> str:
    """Return why Slurm ends a job whose processes still run, or run for all that is known."""
    if fields.get("PreemptTime", "") not in _WITHOUT:
        return PREEMPTED
    if fields.get("JobState") != "COMPLETING":
        return ""
    return TIME_LIMIT if fields.get("Reason") == "TimeLimit" else CANCELLED


def _listed(row: Mapping[str, str], user: str) -> Job:
    """Return the job of a line of ``squeue``."""
    job, word, reason = row["JobArrayID"], row["State"], row["Reason"]
    return Job(
        job,
        _state(word),
        word,
        "" if reason in _WITHOUT else reason,
        row["Name"],
        row["Partition"],
        _count(row["NumNodes"]),
        seconds(row["StartTime"]),
        seconds(row["EndTime"]),
        _output(row, user),
        0 if word == "COMPLETED" else None,
        _count(row["RestartCnt"]) or 0,
        number=row["JobID"],
    )


def _output(row: Mapping[str, str], user: str) -> str:
    """Return the file of a job's output; empty of one without, and of all tasks of an array together."""
    array, _, task = row["JobArrayID"].partition("_")
    path = row["StdOut"]
    if path in _WITHOUT or row["BatchFlag"] == "0":
        return ""
    if task and os.path.basename(path) in {f"slurm-{row['JobID']}.out", f"slurm-{array}.out"}:
        path = os.path.join(os.path.dirname(path), "slurm-%A_%a.out")
    meant = {"%": "%", "A": array, "J": row["JobID"], "j": row["JobID"], "a": task, "b": task[-1:], "u": user}
    meant |= {"N": row["BatchHost"].partition(".")[0], "n": "0", "t": "0", "s": "batch", "x": row["Name"]}
    unknown = set() if task.isdecimal() or not task else {"a", "b"}
    if unknown & {letter for _, letter in _PATTERN.findall(path)}:
        return ""

    def filled(found: re.Match[str]) -> str:
        value = meant[found[2]]
        return value.zfill(min(int(found[1] or 0), 10)) if value.isdecimal() else value

    is_plain = "\\" in path  # a backslash means that nothing is a pattern
    return os.path.join(row["WorkDir"], path.replace("\\", "") if is_plain else _PATTERN.sub(filled, path))


def partitions(run: Run) -> Queues | None:
    """Return the partitions; None when ``scontrol`` is absent or does not answer."""
    command = ["scontrol", "show", "partition"]
    found = {}
    for _, fields in blocks(run(command) or ""):
        name = fields.get("PartitionName")
        if name:
            counts = [_count(fields.get(limit, "")) for limit in ("MaxNodes", "TotalNodes")]
            found[name] = Queue(
                name,
                most_seconds=_span(fields.get("MaxTime", "")),
                least_hosts=_count(fields.get("MinNodes", "")),
                most_hosts=min((count for count in counts if count is not None), default=None),
                is_open=fields.get("State", "UP") == "UP",
                is_default=fields.get("Default") == "YES",
            )
    return Queues(found, " ".join(command)) if found else None


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _span(text: str) -> int | None:
    """Return seconds of ``[days-]hh:mm:ss``; None for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


HANDLER = SlurmJobs()
