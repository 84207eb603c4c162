"""Read a PBS job from ``qstat -f``: hosts, slots, devices and its end, where no node file can be read.

``qstat -f -F json 1.head`` (OpenPBS 23.06.06) has the fields below in ``Jobs``; the classic ``qstat -f 1.head`` of
older versions has them as lines, which it cuts anywhere and continues after a tab:

    Job Id: 1.head
        exec_host = n01/0*2+n02/0*2
        exec_vnode = (n01:ncpus=2:ngpus=1)+(n02:ncpus=2:ngpus=1)
        Resource_List.select = 2:ncpus=2:mpiprocs=2
        Resource_List.walltime = 00:01:00
        stime = Fri Nov 20 15:22:30 2026

``exec_host`` has one word ``host/slot[*cpus]`` per chunk of ``select`` (``[count:]resource=value[:…]`` joined by
``+``), in its order. A chunk holds ``mpiprocs`` processes: 1 when it is not given, 0 when the chunk has no CPUs.

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

import json
import re
import time

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.scheduler import Queue, Queues

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ezpz.cluster.allocation import Run
    from ezpz.cluster.job_listing import Job


def show_job(job: str, run: Run) -> Allocation | None:
    """Return the running job, or None when ``qstat`` is absent, does not answer or does not know it."""
    for command, read in ((["qstat", "-f", "-F", "json", job], _json), (["qstat", "-f", job], _classic)):
        fields = read(run(command) or "", job)
        if fields.get("exec_host"):
            return _allocation(job, fields, " ".join(command))
    return None


def exec_hosts(text: str) -> list[str]:
    """Return the host of each chunk: ``n01/0*2+n02/1`` is n01, n02."""
    return [word.split("/", 1)[0].strip() for word in text.split("+") if word.strip()]


def _json(text: str, job: str) -> dict[str, str]:
    try:
        answer = json.loads(text)["Jobs"][job]
        resources = answer.get("Resource_List", {})
        flat = {f"Resource_List.{name}": str(value) for name, value in resources.items()}
        return {name: value for name, value in answer.items() if isinstance(value, str)} | flat
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # old releases print JSON that is none
        return {}


def _classic(text: str, job: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    whole = text.replace("\n\t", "")
    if not whole.startswith(f"Job Id: {job}\n"):
        return fields
    for line in whole.splitlines()[1:]:
        name, equals, value = line.strip().partition(" = ")
        if equals:
            fields.setdefault(name, value)
    return fields


def _allocation(job: str, fields: Mapping[str, str], origin: str) -> Allocation:
    chunks = exec_hosts(fields["exec_host"])
    sizes = list(_mpiprocs(fields.get("Resource_List.select", "")))
    slots: dict[str, int] | None = None
    notes: tuple[str, ...] = ()
    if len(sizes) == len(chunks):
        slots = {}
        for host, size in zip(chunks, sizes, strict=True):
            slots[host] = slots.get(host, 0) + size
        slots = {host: size for host, size in slots.items() if size}  # a chunk without processes is in no node file
    if not slots:
        slots = None
        notes = (
            (
                f"the ranks per host are not known: {len(chunks)} hosts were granted for {len(sizes)} chunks (from "
                f"{origin})"
            ),
        )
    hosts = tuple(slots or dict.fromkeys(chunks))
    answer: dict[str, Any] = {"devices": _devices(fields, hosts), "end_time": _end(fields), "notes": notes}
    names = ("scheduler", "job_id", "hosts", "slots", "tasks", "devices", "end_time")
    return Allocation(
        scheduler="pbs",
        job_id=job,
        hosts=hosts,
        slots=tuple(slots.values()) if slots else None,
        tasks=sum(slots.values()) if slots else None,
        origin=dict.fromkeys(names, origin),
        **answer,
    )


def _mpiprocs(select: str) -> Iterator[int]:
    """Yield the MPI processes of each chunk of ``2:ncpus=32:mpiprocs=4+1:ncpus=8``."""
    for part in filter(None, select.split("+")):
        words = part.split(":")
        count = int(words.pop(0)) if words[0].isdigit() else 1
        resources = dict(word.split("=", 1) for word in words if "=" in word)
        default = "0" if resources.get("ncpus") == "0" else "1"
        size = resources.get("mpiprocs", default)
        for _ in range(count):
            yield int(size) if size.isdigit() else 1


def _devices(fields: Mapping[str, str], hosts: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the GPUs per host from ``exec_vnode``; None when no chunk names any, or they do not divide evenly.

    A vnode may be a part of a host and carry another name, so chunks are not matched with hosts.
    """
    total = sum(int(count) for count in re.findall(r":ngpus=(\d+)", fields.get("exec_vnode", "")))
    return (total // len(hosts),) * len(hosts) if total and total % len(hosts) == 0 else None


def _end(fields: Mapping[str, str]) -> int | None:
    """Return the start plus the wall time, in seconds since the epoch."""
    try:
        start = time.mktime(time.strptime(fields["stime"], "%a %b %d %H:%M:%S %Y"))
        hours, minutes, seconds = fields["Resource_List.walltime"].split(":")
    except (KeyError, ValueError, OverflowError):
        return None
    return int(start) + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


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
            least_hosts=_count(fields.get("resources_min.nodect", "")),
            most_hosts=_count(fields.get("resources_max.nodect", "")),
            is_open=fields.get("enabled", "True") == "True",
            leads_to=tuple(filter(None, leads_to.split(","))),
        )
    return Queues(found, " ".join(command)) if found else None


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _span(text: str) -> int | None:
    """Return seconds of ``336:00:00``, ``30:00`` or ``1800``; None for what is none."""
    if not re.fullmatch(r"\d+(:\d\d){0,2}", text, re.ASCII):
        return None
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


# The user's own jobs, for `ezpz status`: ``qstat -x -u USER -f -w`` lists ended ones too, as long as the server keeps
# them, each in a block like that of ``qstat -f``, with every value in one line. These are read:
#
#     Job Id: 12.head
#         Job_Name = train
#         Job_Owner = me@login1
#         job_state = Q
#         queue = workq
#         comment = Not Running: Insufficient amount of resource: ncpus
#         Output_Path = login1:/home/me/train.o12
#         stime = Fri Nov 20 15:22:30 2026
#         mtime = Fri Nov 20 15:25:31 2026
#         estimated.start_time = Fri Nov 20 16:00:00 2026        UNKNOWN where it is not estimated
#         Resource_List.nodect = 2
#         Resource_List.walltime = 01:00:00
#         Exit_status = 0

_STATES = {"R": "running", "E": "running", "B": "running", "F": "ended", "X": "ended", "M": "ended"}
_TIME = "%a %b %d %H:%M:%S %Y"


def read_jobs(text: str, user: str) -> list[Job]:
    """Return the jobs of a user that ``qstat -f`` has listed; those of others are passed over."""
    from ezpz.cluster.job_listing import Job, moment

    found = []
    for block in re.split(r"^Job Id: ", text.replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        job, *lines = block.splitlines()
        fields = {name.strip(): value for name, equals, value in (line.partition(" = ") for line in lines) if equals}
        if fields.get("Job_Owner", "").partition("@")[0] not in {user, ""}:
            continue
        word = fields.get("job_state", "")
        state = _STATES.get(word, "queued")
        start = moment(fields.get("stime"), _TIME)
        if start is None and state == "queued":
            start = moment(fields.get("estimated.start_time"), _TIME)
        found.append(
            Job(
                job=job.strip(),
                state=state,
                word=word,
                name=fields.get("Job_Name", ""),
                queue=fields.get("queue", ""),
                hosts=_count(fields.get("Resource_List.nodect", "")),
                start=start,
                end=moment(fields.get("mtime"), _TIME) if state == "ended" else _end(fields),
                reason=fields.get("comment", ""),
                output=fields.get("Output_Path", "").partition(":")[2],
                exit_code=_exit_status(fields.get("Exit_status", "")),
            )
        )
    return found


def _exit_status(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text, re.ASCII) else None
