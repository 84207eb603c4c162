"""Read a Slurm job from ``scontrol``: hosts, slots, devices and its end, for shells without the job's variables.

``scontrol -d show job 13`` (Slurm 22.05.8), of which these words are read; an array's or a heterogeneous job's answer
holds several such blocks, parted by empty lines:

    JobId=13 JobName=interactive
       StartTime=2026-11-20T19:21:32 EndTime=2026-11-20T19:31:32 Deadline=N/A NodeList=n[01-02] NumNodes=2 NumCPUs=4
       NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
         Nodes=n01 CPU_IDs=0-2 Mem=0 GRES=gpu:3(IDX:0-2)
         Nodes=n02 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0-2)
       TresPerNode=gres:gpu:3

``scontrol show partition`` (Slurm 22.05.8), one block for each; limits may be UNLIMITED, times [days-]hh:mm:ss:

    PartitionName=main
       AllocNodes=ALL Default=YES QoS=N/A
       MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
       State=UP TotalCPUs=8 TotalNodes=2 SelectTypeParameters=NONE
"""

from __future__ import annotations

import re
import time

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.components import heterogeneous
from ezpz.cluster.hostlist import expand
from ezpz.cluster.scheduler import Queue, Queues

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.cluster.allocation import Run

_GPUS = r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)"  # gpu:3, gpu:a100:4, gres/gpu=4


def show_job(job: str, run: Run) -> Allocation | None:
    """Return the running job, or None when ``scontrol`` is absent, does not answer or does not know it.

    The slots are those that Slurm itself would tell in ``SLURM_TASKS_PER_NODE``: the CPUs of each host shared by tasks.
    """
    # The second try asks for less: what an older or a busy controller may still answer.
    command = ["scontrol", "-d", "show", "job", job]
    text = run(command)
    if text is None:
        command = ["scontrol", "show", "job", job]
        text = run(command)
    first: Allocation | None = None
    parts: dict[str, Allocation] = {}  # of a heterogeneous job, by its components' numbers
    for block in re.split(r"\n\s*\n", text or ""):
        fields = fields_of(block)
        if fields.get("NodeList", "(null)") == "(null)" or job not in {fields.get("JobId"), fields.get("HetJobId")}:
            continue
        described = _described(job, block, fields, " ".join(command))
        if fields.get("JobId") == job:
            first = first or described
        if fields.get("HetJobId") == job:
            parts[fields.get("HetJobOffset", "")] = described
    numbers = [str(number) for number in range(len(parts))]
    is_whole = len(parts) > 1 and set(numbers) == set(parts)
    return heterogeneous(tuple(parts[number] for number in numbers)) if is_whole else first


def fields_of(block: str) -> dict[str, str]:
    """Return the fields of one block: ``NodeList=n[01-02] BatchHost=n01``."""
    pairs = (word.partition("=") for word in block.split())
    return {name: value for name, equals, value in pairs if name and equals}


def _described(job: str, block: str, fields: dict[str, str], origin: str) -> Allocation:
    """Return what one block tells of a job or of a component of it."""
    hosts = tuple(dict.fromkeys(expand(fields["NodeList"])))
    lines = dict(_details(block))
    return Allocation(
        scheduler="slurm",
        job_id=job,
        hosts=hosts,
        slots=_slots(fields, lines, hosts),
        tasks=int(fields["NumTasks"]) if fields.get("NumTasks", "").isdigit() else None,
        cpus=tuple(lines[host][0] for host in hosts) if set(hosts) <= set(lines) else None,
        devices=_devices(fields, lines, hosts),
        end_time=_seconds(fields.get("EndTime", "")),
        origin=dict.fromkeys(("scheduler", "job_id", "hosts", "slots", "tasks", "cpus", "devices", "end_time"), origin),
    )


def _details(block: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each host of the detailed lines with its CPUs and GPUs."""
    for names, ids, gres in re.findall(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S+) Mem=\S* GRES=(\S*)", block):
        cpus = 0
        for part in ids.split(","):
            low, _, high = part.partition("-")
            cpus += int(high or low) - int(low) + 1
        for host in expand(names):
            yield host, (cpus, _gpus(gres))


def _gpus(text: str) -> int:
    return sum(int(count) for count in re.findall(_GPUS, text))


def _slots(fields: dict[str, str], lines: dict[str, tuple[int, int]], hosts: tuple[str, ...]) -> tuple[int, ...] | None:
    per_host = fields.get("NtasksPerN:B:S:C", "0").split(":")[0]
    if per_host.isdigit() and int(per_host):
        return (int(per_host),) * len(hosts)
    each = fields.get("CPUs/Task", "1")
    if not each.isdigit() or not set(hosts) <= set(lines):
        return None
    return tuple(max(1, lines[host][0] // int(each)) for host in hosts)


def _devices(
    fields: dict[str, str], lines: dict[str, tuple[int, int]], hosts: tuple[str, ...]
) -> tuple[int, ...] | None:
    """Return the GPUs per host; None without any: some sites grant whole hosts and count no GPUs."""
    counts = (_gpus(fields.get("TresPerNode", "")),) * len(hosts)
    if lines:
        counts = tuple(lines[host][1] for host in hosts) if set(hosts) <= set(lines) else ()
    return counts if any(counts) else None


def _seconds(text: str) -> int | None:
    """Return seconds since the epoch of a time in the local zone, as scontrol prints it; None for ``Unknown``."""
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def partitions(run: Run) -> Queues | None:
    """Return the partitions; None when ``scontrol`` is absent or does not answer."""
    command = ["scontrol", "show", "partition"]
    found = {}
    for block in re.split(r"\n\s*\n", run(command) or ""):
        fields = fields_of(block)
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
