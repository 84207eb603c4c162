r"""Read what Linux says of a control group: memory's limit, peak, and processes killed for want of it; CPU quota.

    /proc/4711/cgroup               0::/system.slice/slurmstepd.scope/job_1/step_0   version 2 (cgroups(7))
                                    4:memory:/slurm/uid_1000/job_1                   version 1
    version 2, below /sys/fs/cgroup (Documentation/admin-guide/cgroup-v2.rst of Linux):
    memory.max                      8589934592, or max                    a limit; each group above may have one, too
    memory.peak                     8589930496                            since Linux 5.19
    memory.events                   low 0\nhigh 0\nmax 12\noom 1\noom_kill 1    with those of the groups below
    version 1, below /sys/fs/cgroup/memory (Documentation/admin-guide/cgroup-v1/memory.rst):
    memory.limit_in_bytes           8589934592, or 9223372036854771712 for none
    memory.max_usage_in_bytes       8589930496
    memory.oom_control              oom_kill_disable 0\nunder_oom 0\noom_kill 1    since Linux 4.13
    CPU time, in microseconds of each period; groups above may have a limit, too:
    cpu.max                         150000 100000, or max 100000          version 2; 1.5 CPUs, as `docker --cpus 1.5`
    cpu.cfs_quota_us                150000, or -1 for none                version 1, below /sys/fs/cgroup/cpu
    cpu.cfs_period_us               100000
    /proc/vmstat                    …\noom_kill 3\n…                      of the whole host, since Linux 4.13

The counter of a group counts each of its processes that the kernel has killed, whether the group's own limit, that of
one above or the end of the host's memory was the reason. Where a file is missing (macOS, an older kernel) a function
returns None or an empty value. Cheap to import: the agent of every launch does.
"""

from __future__ import annotations

import os

_TREE_1, _TREE_2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
_CPU_TREES_1 = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")  # most systems link one to the other
_NO_LIMIT = 1 << 60  # bytes; version 1 writes the largest number of pages where there is none


def memory_folder(pid: int | str, root: str = "") -> str:
    """Return the folder of the group that counts a process's memory; empty where there is none.

    Args:
        pid: Of the process, or ``self``.
        root: What replaces ``/``, without its slash at the end.
    """
    return _folder("memory", (_TREE_1,), pid, root)


def cpu_quota(pid: int | str = "self", root: str = "") -> float | None:
    """Return the CPUs whose time a process may use, by its group and those above; None where nothing limits it.

    Args:
        pid: Of the process, or ``self``.
        root: What replaces ``/``, without its slash at the end.
    """
    folder, least = _folder("cpu", _CPU_TREES_1, pid, root), None
    while folder:
        words = (
            _text(f"{folder}/cpu.max")
            or f"{_text(f'{folder}/cpu.cfs_quota_us').strip()} {_text(f'{folder}/cpu.cfs_period_us').strip()}"
        ).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            cpus = int(words[0]) / int(words[1])
            least = cpus if least is None else min(least, cpus)
        if folder.endswith((*_CPU_TREES_1, _TREE_2)):
            break
        folder = os.path.dirname(folder)
    return least


def _folder(controller: str, trees_1: tuple[str, ...], pid: int | str, root: str) -> str:
    """Return the folder of the group that a controller has put a process into; empty where there is none."""
    found = ""
    for line in _text(f"{root}/proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return next(filter(None, (_existing(root + tree, path) for tree in trees_1)), "")
        if not controllers:
            found = _existing(root + _TREE_2, path)
    return found


def _existing(tree: str, path: str) -> str:
    """Return the folder of a group; a container without a name space of its own sees its group as the topmost one."""
    folder = (tree + path).rstrip("/")
    return folder if os.path.isdir(folder) else tree if os.path.isdir(tree) else ""


def memory_limits(folder: str) -> list[int]:
    """Return the limits in bytes of a group and of those above it."""
    name = "memory.limit_in_bytes" if _is_version_1(folder) else "memory.max"
    limits = []
    while folder:
        text = _text(f"{folder}/{name}").strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
        if folder.endswith((_TREE_1, _TREE_2)):
            break
        folder = os.path.dirname(folder)
    return limits


def memory_peak(folder: str) -> int | None:
    """Return the most bytes that a group has used so far."""
    if not folder:
        return None
    text = _text(f"{folder}/{'memory.max_usage_in_bytes' if _is_version_1(folder) else 'memory.peak'}").strip()
    return int(text) if text.isdigit() else None


def memory_kills(folder: str) -> int | None:
    """Return how many processes of a group the kernel has killed for want of memory."""
    return (
        None
        if not folder
        else _counter(f"{folder}/{'memory.oom_control' if _is_version_1(folder) else 'memory.events'}")
    )


def host_memory_kills(root: str = "") -> int | None:
    """Return how many processes the kernel of this host has killed for want of memory, in whichever group."""
    return _counter(f"{root}/proc/vmstat")


def _is_version_1(folder: str) -> bool:
    """Tell whether a group is one of version 1, whose memory has a tree of its own."""
    return _TREE_1 in folder


def _counter(path: str) -> int | None:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
