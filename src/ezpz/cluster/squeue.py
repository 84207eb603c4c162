"""Read this user's jobs from ``squeue``, for `ezpz status`.

``squeue --me --states=all --noheader --format=…`` (Slurm 22.05.8; ``--me`` from 20.02 on) lists jobs that have ended
too, for MinJobAge seconds (300 unless a site has set another), a line each of fields that `_FIELDS` names:

    12|RUNNING|2|2026-11-20T19:21:32|2026-11-20T19:31:32|main|None|/home/me/run|/home/me/run/job.slurm|train
    13|PENDING|4|N/A|N/A|main|Resources|/home/me/run|/home/me/run/job.slurm|train
    11|FAILED|1|2026-11-20T19:20:00|2026-11-20T19:20:03|main|NonZeroExitCode|/home/me/run|(null)|my train

The file of a job's output is none of them: it is what the job's script asks for, else ``slurm-ID.out`` in the folder
where it was submitted (sbatch(1), "filename pattern").
"""

from __future__ import annotations

import re

from ezpz.cluster.job_listing import Job, expanded, moment
from ezpz.files import read_text

_FIELDS = ("%i", "%T", "%D", "%S", "%e", "%P", "%r", "%Z", "%o", "%j")  # the name last: it may hold anything
_TIME = "%Y-%m-%dT%H:%M:%S"
_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_OUTPUT = re.compile(r"(?m)^#SBATCH\s+(?:--output[=\s]\s*|-o\s*)(\S+)")


def question() -> list[str]:
    """Return the command."""
    return ["squeue", "--me", "--states=all", "--noheader", f"--format={'|'.join(_FIELDS)}"]


def read(text: str) -> list[Job]:
    """Return the jobs that it has listed; lines of another shape are passed over."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", len(_FIELDS) - 1)
        if len(fields) != len(_FIELDS):
            continue
        job, word, hosts, start, end, queue, reason, folder, script, name = fields
        state = "queued" if word in _QUEUED else "running" if word in _RUNNING else "ended"
        found.append(
            Job(
                job=job,
                state=state,
                word=word,
                name=name,
                queue=queue,
                hosts=int(hosts) if hosts.isdecimal() else None,
                start=moment(start, _TIME),
                end=moment(end, _TIME),
                reason="" if reason in {"None", "(null)"} else reason,
                output=_output(job, name, folder, script),
            )
        )
    return found


def _output(job: str, name: str, folder: str, script: str) -> str:
    text = read_text(script) if script.startswith("/") else None
    asked = _OUTPUT.findall(text or "")
    number = job.partition("_")[0]
    pattern = asked[-1].strip("\"'") if asked else "slurm-%j.out"
    return expanded(pattern, (("%j", job), ("%A", number), ("%x", name), ("%%", "%")), folder)
