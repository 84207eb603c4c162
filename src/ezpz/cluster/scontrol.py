"""Read a Slurm job from ``scontrol``: hosts, slots, devices and its end, for shells without the job's variables.

``scontrol -d show job 13`` (Slurm 22.05.8), of which these words are read; an array's or a heterogeneous job's answer
holds several such blocks, parted by empty lines:

    JobId=13 JobName=interactive
       StartTime=2026-11-20T19:21:32 EndTime=2026-11-20T19:31:32 Deadline=N/A NodeList=n[01-02] NumNodes=2 NumCPUs=4
       NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
         Nodes=n01 CPU_IDs=0-2 Mem=0 GRES=gpu:3(IDX:0-2)
         Nodes=n02 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0-2)
       TresPerNode=gres:gpu:3
"""

from __future__ import annotations

import re
import time

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.components import heterogeneous
from ezpz.cluster.hostlist import expand

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
    for block, fields in blocks(text or ""):
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


def blocks(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the blocks of an answer, each with its fields: ``NodeList=n[01-02] BatchHost=n01``."""
    for block in re.split(r"\n\s*\n", text.strip()):
        pairs = (word.partition("=") for word in block.split())
        yield block, {name: value for name, equals, value in pairs if name and equals}


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
        end_time=seconds(fields.get("EndTime", "")),
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


def seconds(text: str) -> int | None:
    """Return seconds since the epoch of a time in the local zone, as scontrol prints it; None for ``Unknown``."""
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None
