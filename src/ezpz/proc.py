r"""Read facts about processes from Linux's /proc (proc(5)).

    /proc/4711/stat                   4711 (python3) S 4700 4711 4700 …      name, state, parent, process group, …
    /proc/4711/environ                HOME=/root\0RANK=0\0                   as it was when the process started
    /proc/4711/status                 …SigCgt:\t0000000100000002\n…          signals with a handler, the lowest bit is 1
                                      SigIgn, SigBlk: alike, those ignored, and those that its first thread blocks
    /proc/4711/task/4711/children     4712 4713                              those that this one thread started
    /proc/4711/ns/user                user:[4026531837]                      can be read by those who may debug it
    /proc/4711/mounts                 tmpfs /dev/shm tmpfs rw,nosuid 0 0     what is mounted, where, as which type

A process may end at any moment, and many of these files are closed to other users. Then, and where there is no /proc
(macOS), each function returns an empty value. Cheap to import, because the shim in front of every rank does.
"""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Stat:
    """A few fields of ``/proc/PID/stat``.

    Attributes:
        name: The program, at most 15 letters.
        state: One letter: ``R`` running, ``S`` sleeping, ``D`` in an uninterruptible sleep, ``Z`` a zombie, …
        parent: Pid of the parent.
        group: The process group.
        threads: How many threads it has.
        cpu: Seconds that all of them have used.
        start: When it started, in clock ticks since the host did: together with the pid it names one process for good.
    """

    __slots__ = ("cpu", "group", "name", "parent", "start", "state", "threads")

    def __init__(self, name: str, fields: list[str]) -> None:
        self.name = name
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        self.threads = int(fields[17])
        self.start = fields[19]

    @property
    def is_dead(self) -> bool:
        """Tell whether it has ended and only waits for its parent to ask how."""
        return self.state in {"Z", "X"}


def parse_stat(text: str) -> Stat | None:
    """Return the fields of a ``stat`` file; None when the text is cut or empty."""
    head, _, tail = text.rpartition(")")  # the name is in parentheses and may hold anything, these included
    fields = tail.split()
    return Stat(head.partition("(")[2], fields) if len(fields) > 19 else None


def stat(pid: int | str) -> Stat | None:
    """Return the fields of a process; None when there is no such process."""
    return parse_stat(read(pid, "stat").decode("utf-8", "replace"))


def start_time(pid: int | str) -> str:
    """Return when a process started, in clock ticks since the host did; "" when it is gone or a zombie."""
    fields = stat(pid)
    return "" if fields is None or fields.is_dead else fields.start


def catches(pid: int | str, number: int) -> bool:
    """Tell whether a process has a handler for a signal, of which the language it is written in may know nothing."""
    return _has(read(pid, "status"), b"SigCgt:", number)


def ignores(pid: int | str, number: int) -> bool:
    """Tell whether a process ignores a signal."""
    return _has(read(pid, "status"), b"SigIgn:", number)


_FAULTS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV of Linux: who waits for others has no reason to block these


def disposition(pid: int | str, number: int) -> str:
    """Return what a signal does to a process.

    Returns:
        ``takes``: it has a handler for it, or blocks it, as who waits for it does; ``blocks all``: it blocks all
        signals, as is done for a moment where a process forks or starts a program or a thread; ``ignores``;
        ``default``; empty where nothing tells.
    """
    status = read(pid, "status")
    if b"SigCgt:" not in status:
        return ""
    if _has(status, b"SigCgt:", number):
        return "takes"
    if _has(status, b"SigBlk:", number):
        return "blocks all" if all(_has(status, b"SigBlk:", fault) for fault in _FAULTS) else "takes"
    return "ignores" if _has(status, b"SigIgn:", number) else "default"


def _has(status: bytes, mask: bytes, number: int) -> bool:
    """Tell whether a signal is in a mask of a ``status`` file."""
    masks = [line for line in status.splitlines() if line.startswith(mask)]
    return bool(masks) and bool(int(masks[0].split()[1], 16) >> (number - 1) & 1)


def environ(pid: int | str) -> bytes:
    r"""Return the environment with which a process started, with a ``\0`` before and after each variable."""
    return b"\0" + read(pid, "environ") + b"\0"


def name(pid: int | str) -> str:
    """Return the name of a process, at most 15 letters."""
    return read(pid, "comm").decode("utf-8", "replace").strip()


def owner(pid: int | str) -> int:
    """Return the user whose process it is, as a number; -1 where there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def children(pid: int) -> list[int] | None:
    """Return the pids of a process's children; None where the kernel does not list them, or when a thread ends
    meanwhile.
    """
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                pids += map(int, file.read().split())
    except OSError:
        return None
    return sorted(pids)


def pids() -> list[int]:
    """Return all pids of this host."""
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return []


def open_files() -> list[int]:
    """Return the open descriptors of this process, and one that is not open any more: that of the list itself."""
    for folder in ("/dev/fd", "/proc/self/fd"):  # the first is a link to the second, or macOS's own
        try:
            return [int(entry) for entry in os.listdir(folder)]
        except OSError:
            continue
    return []


def link(pid: int | str, entry: str) -> str:
    """Return where a link below ``/proc/PID`` leads to, such as ``exe``, ``ns/net`` or ``fd/3``."""
    try:
        return os.readlink(f"/proc/{pid}/{entry}")
    except OSError:
        return ""


def read(pid: int | str, entry: str) -> bytes:
    """Return a file below ``/proc/PID``; the pid may be ``self``."""
    try:
        with open(f"/proc/{pid}/{entry}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def parse_mounts(text: str) -> list[tuple[str, str, str]]:
    r"""Return place, type and options of each line of ``/proc/PID/mounts``, whose blanks are ``\040`` (fstab(5))."""
    mounts = []
    for row in (line.split() for line in text.splitlines()):
        if len(row) > 3:
            place = row[1]
            for written, meant in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")):
                place = place.replace(written, meant)
            mounts.append((place, row[2], row[3]))
    return mounts
