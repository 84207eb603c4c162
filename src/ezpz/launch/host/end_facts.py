"""Ask a host about the end of a rank: did its kernel kill for want of memory, and how much room is on its disks.

An agent reads the counters of `ezpz.cgroup` when its ranks have just begun and when one has failed: a few small files
each, 0.1 ms. Disks are asked only after a rank that could not write, without waiting for those that may not answer.
"""

from __future__ import annotations

import os
import time

from ezpz import cgroup, proc
from ezpz.launch import agent_messages

TYPE_CHECKING = False  # `typing` costs 5 ms in every agent; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Counters", "room_on_disks"]

_MOST = (1 << 53) - 1  # the largest number that a message holds; some file systems are larger
_SURE = 0.05  # seconds from the first look to an end that it does not include
_SHOWN = 8  # file systems
_FULL = 1 << 20  # bytes: where fewer are free, a file system is full
# Those of this host alone: a network's may hang. Linux's names, of /proc/self/mounts.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}


class Counters:
    """What the kernel had counted when ranks had just begun.

    Args:
        root: What replaces ``/`` in tests.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._read_at = time.time()
        self._own = cgroup.memory_folder("self", root)
        self._host = cgroup.host_memory_kills(root)
        self._groups: dict[int, str] = {}
        self._before = {self._own: cgroup.memory_kills(self._own)}

    def begin(self, rank: int, parent: int | str) -> None:
        """Note the group of a rank, which is that of its parent.

        Args:
            rank: The rank.
            parent: Process of the shim in front of it, or ``self``; 0 where its number means another process here.
        """
        group = self._own if parent == "self" else cgroup.memory_folder(parent, self._root) if parent else ""
        self._groups[rank] = group
        if group not in self._before:
            self._before[group] = cgroup.memory_kills(group)

    def at_end(self, rank: int, ended: float) -> agent_messages.KernelCounts:
        """Return what has been counted around a rank until now; nothing of one that ended as soon as it had begun.

        Args:
            rank: The rank.
            ended: When it ended, in seconds since 1970 by this host's clock.
        """
        if ended < self._read_at + _SURE:  # it may have been counted before the first look
            return agent_messages.NOTHING_COUNTED
        group = self._groups.get(rank, "")
        limits = cgroup.memory_limits(group)
        return agent_messages.KernelCounts(
            group=group,
            before=_number(self._before.get(group)),
            after=_number(cgroup.memory_kills(group)),
            host_before=_number(self._host),
            host_after=_number(cgroup.host_memory_kills(self._root)),
            peak=_number(cgroup.memory_peak(group)),
            limit=min(limits, default=-1),
        )


def room_on_disks(words: str, folders: Iterable[str] = ()) -> list[tuple[str, int, int, int]]:
    """Return the file systems that matter to a rank that failed because it could not write; empty for other ranks.

    Args:
        words: The last that it wrote on stderr.
        folders: Where it writes: of its run, for temporary files, its working folder.

    Returns:
        Mount point, free bytes, free files (-1 where the file system does not count them) and size in bytes: of the
        file that its exception names; without a name those of the folders that are full, and where none of them is,
        all others of this host that are full.
    """
    from ezpz.why.last_words import cannot_write, named_file

    if not cannot_write(words):
        return []
    path = named_file(words)
    if path:
        row = _room(_mount_point(path))
        return [row] if row else []
    for mounts in (dict.fromkeys(_mount_point(folder) for folder in folders if folder), _local_mounts()):
        rows = {row[0]: row for mount in mounts if (row := _room(mount)) and row[3] and _is_full(row)}
        if rows:
            return list(rows.values())[:_SHOWN]
    return []


def _is_full(row: tuple[str, int, int, int]) -> bool:
    return row[1] < _FULL or row[2] == 0


def _number(value: int | None) -> int:
    return -1 if value is None else min(value, _MOST)


def _room(mount: str) -> tuple[str, int, int, int] | None:
    try:
        found = os.statvfs(mount)
    except OSError:
        return None
    size = found.f_frsize
    free_files = found.f_favail if found.f_files else -1
    return mount, min(found.f_bavail * size, _MOST), min(free_files, _MOST), min(found.f_blocks * size, _MOST)


def _mount_point(path: str) -> str:
    """Return where the file system of a file, or of the nearest folder above it that is there, is mounted."""
    try:
        path = os.path.abspath(path)
    except OSError:  # the working folder has been deleted
        return "/"
    while not os.path.exists(path):
        path = os.path.dirname(path)
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _local_mounts() -> list[str]:
    mounts = proc.parse_mounts(proc.read("self", "mounts").decode("utf-8", "surrogateescape"))
    return [place for place, kind, options in mounts if kind in _LOCAL and "ro" not in options.split(",")]
