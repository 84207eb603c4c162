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
"""

from __future__ import annotations

import json
import re
import time

from ezpz.cluster.allocation import Allocation

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ezpz.cluster.allocation import Run


def show_job(job: str, run: Run) -> Allocation | None:
    """Return the running job, or None when ``qstat`` is absent, does not answer or does not know it."""
    for command in (["qstat", "-f", "-F", "json", job], ["qstat", "-f", job]):
        fields = read_jobs(run(command) or "").get(job, {})
        if fields.get("exec_host"):
            return _allocation(job, fields, " ".join(command))
    return None


def exec_hosts(text: str) -> list[str]:
    """Return the host of each chunk: ``n01/0*2+n02/1`` is n01, n02."""
    return [word.split("/", 1)[0].strip() for word in text.split("+") if word.strip()]


def read_jobs(text: str) -> dict[str, dict[str, str]]:
    """Return the jobs of an answer, as JSON or as lines, by their ids, each with its fields."""
    if text.lstrip().startswith("{"):
        try:
            return {job: _flat(fields) for job, fields in json.loads(text)["Jobs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # old releases print none
            return {}
    found = {}
    for block in re.split(r"^Job Id: ", text.replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        job, *lines = block.splitlines()
        fields: dict[str, str] = {}
        for line in lines:
            name, equals, value = line.strip().partition(" = ")
            if equals:
                fields.setdefault(name, value)
        found[job.strip()] = fields
    return found


def _flat(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of one job as lines have them: ``Resource_List.nodect``."""
    flat: dict[str, str] = {}
    for name, value in fields.items():
        inner = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        flat |= {key: str(one) for key, one in inner.items() if isinstance(one, str | int | float)}
    return flat


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
    answer: dict[str, Any] = {"devices": _devices(fields, hosts), "end_time": end_of(fields), "notes": notes}
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


def end_of(fields: Mapping[str, str]) -> int | None:
    """Return the start plus the wall time, in seconds since the epoch."""
    start = seconds(fields.get("stime", ""))
    span = re.fullmatch(r"(\d{1,9}):(\d\d):(\d\d)", fields.get("Resource_List.walltime", ""), re.ASCII)
    if start is None or span is None:
        return None
    return int(start) + int(span[1]) * 3600 + int(span[2]) * 60 + int(span[3])


def seconds(text: str) -> float | None:
    """Return seconds since the epoch of ``Fri Nov 20 15:22:30 2026`` or ``1795188151``; None for another text."""
    if text.isdecimal():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
