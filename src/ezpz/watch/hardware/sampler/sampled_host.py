r"""Read what the processes of this launch use on this host: CPU, memory, page faults; and the bytes on its network.

    /proc/4711/stat                      proc(5): majflt, utime, stime, rss
    /proc/meminfo                        "MemTotal:  527922784 kB\nMemAvailable:  …"
    /proc/net/dev                        "  eth0: 123456  789 0 0 0 0 0 0  654321  …", bytes received, then sent
    /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data     words of 4 bytes
    /proc/self/cgroup                    "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
    /sys/fs/cgroup/…/job_4711/memory.current

The network is that of the host: no file tells whose bytes they are. The cgroup counts where its path names the job.
"""

from __future__ import annotations

import os

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

    from ezpz.cluster.devices.visible_devices import Ranks

_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_CHILDREN_EVERY = 6  # samples between two looks for new processes


class Host:
    """The processes of this launch's ranks on this host.

    Args:
        ranks: The ranks.
        root: Where ``/proc`` and ``/sys`` are, for tests of files that are not of a process.
    """

    name = "/proc"

    def __init__(self, ranks: Ranks, root: str = "") -> None:
        self._ranks, self._root = ranks, root
        self.problems: list[str] = []
        self._looks = 0
        self._processes: set[int] = set()
        self._known: dict[int, tuple[float, float]] = {}
        self._cpu = self._faults = 0.0
        self._cgroup = _job_cgroup(root, {environ.get("EZPZ_JOBID", "") for environ in ranks.environs} - {""})

    def read(self) -> dict[str, Any]:
        """Return what they use now, and what they have used so far."""
        if self._looks % _CHILDREN_EVERY == 0:
            self._processes = self._ranks.processes()
        self._looks += 1
        resident = 0.0
        for pid in list(self._processes):
            fields = proc.read(pid, "stat").rpartition(b")")[2].split()
            if len(fields) < 22:
                self._processes.discard(pid)
                self._known.pop(pid, None)
                continue
            cpu, faults = (int(fields[11]) + int(fields[12])) / _TICK, float(fields[9])
            before = self._known.get(pid, (cpu, faults) if self._looks == 1 else (0.0, 0.0))
            self._cpu += max(0.0, cpu - before[0])
            self._faults += max(0.0, faults - before[1])
            self._known[pid] = cpu, faults
            resident += int(fields[21]) * _PAGE
        now = {"memory": resident}
        whole = _meminfo(self._root)
        if "MemAvailable" in whole:
            now["memory_free"], now["memory_total"] = whole["MemAvailable"], whole["MemTotal"]
        if self._cgroup:
            of_job = _text(f"{self._cgroup}/memory.current")
            if of_job.isdigit():
                now["memory_of_job"] = float(of_job)
        count = {"cpu": self._cpu, "faults": self._faults}
        received, sent = _network(self._root)
        return {"now": now, "count": {**count, "received": received, "sent": sent}}


def _meminfo(root: str) -> dict[str, float]:
    words = [line.split() for line in _text(f"{root}/proc/meminfo").splitlines()]
    return {line[0].rstrip(":"): float(line[1]) * 1024 for line in words if len(line) > 1}


def _network(root: str) -> tuple[float, float]:
    """Return the bytes that the host has received and sent so far."""
    received = sent = 0.0
    for line in _text(f"{root}/proc/net/dev").splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() != "lo" and len(fields) > 8:
            received, sent = received + float(fields[0]), sent + float(fields[8])
    base = f"{root}/sys/class/infiniband"
    for device in _names(base):
        for port in _names(f"{base}/{device}/ports"):
            words = [_text(f"{base}/{device}/ports/{port}/counters/port_{way}_data") for way in ("rcv", "xmit")]
            if all(map(str.isdigit, words)):
                received, sent = received + 4 * float(words[0]), sent + 4 * float(words[1])
    return received, sent


def _job_cgroup(root: str, jobs: set[str]) -> str:
    """Return the folder of the job's cgroup; empty where no path names the job."""
    ids = {job.partition(".")[0] for job in jobs}
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)[-1].split("/")
        for place, part in enumerate(parts):
            if part.removeprefix("job_").partition(".")[0] in ids:
                return f"{root}/sys/fs/cgroup" + "/".join(parts[: place + 1])
    return ""


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
