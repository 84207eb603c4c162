"""Let one process at a time own a folder that many hosts see, whatever kills it.

    lease-000007      {"job": "13", "scheduler": "slurm", "restarts": 0, "host": "n01", "token": "5f3a90c2d41b7e66"}

The file with the highest number names the holder. It is taken with the next number, by a link that fails where another
was faster, and is never renamed or changed by others: who decides on old knowledge cannot take it from a newer holder.
Its holder renews it by setting its time. Ages are differences of times that the file system itself has set, so that the
clocks of hosts do not matter. No lock of the file system is used: many of those of clusters have none.

When a lease is void says who uses it: `ezpz.launch.chain_lease` for a chain of jobs, `ezpz.checkpoint.owner` for a
folder of checkpoints. One that was given back is void for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re

from ezpz.files import open_regular, write_whole
from ezpz.records.lease_record import LeaseEntry

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _Kind = TypeVar("_Kind", bound="Lease")

__all__ = ["HeldError", "Lease", "age", "holder", "renewed", "take"]

_NAME = re.compile(r"lease-(\d{6,})\Z")
_NO_LINKS = (OSError, NotImplementedError)


class HeldError(Exception):
    """Another holds the lease; its text says who, and until when."""


class Lease:
    """A lease that this process holds.

    Attributes:
        path: Its file.
    """

    def __init__(self, path: str, entry: dict[str, Any]) -> None:
        self.path, self._entry = path, entry

    def is_ours(self) -> bool:
        """Tell whether no other has taken it: one that was not renewed for long may be lost."""
        path, entry = holder(os.path.dirname(self.path))
        return path == self.path and entry.token == self._entry["token"]

    def give_back(self) -> None:
        """Let the next one take it at once."""
        with contextlib.suppress(OSError):  # it becomes void with time
            if self.is_ours():
                _write(self.path, {**self._entry, "given_back": True})


def holder(folder: str) -> tuple[str, LeaseEntry]:
    """Return the path of the lease that counts and what it says; both empty where there is none."""
    numbers = _numbers(folder)
    path = os.path.join(folder, f"lease-{numbers[-1]:06}") if numbers else ""
    return path, LeaseEntry.read(path) if path else LeaseEntry()


def renewed(path: str) -> float:
    """Return when a lease was renewed, by the clock of the file system.

    Raises:
        OSError: It is gone, or cannot be read.
    """
    descriptor = open_regular(path)  # NFS asks the server when a file is opened, not at a stat
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def age(path: str) -> float:
    """Return the seconds since a lease was renewed, by the clock of the file system; 0 where it is gone."""
    probe = f"{path}.{os.getpid()}-{os.urandom(3).hex()}.now"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
        try:
            return os.fstat(descriptor).st_mtime - renewed(path)
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError:
        return 0.0


def take(
    folder: str, entry: dict[str, Any], wait_until_void: Callable[[str, LeaseEntry], object], kind: type[_Kind]
) -> _Kind:
    """Take the lease of a folder.

    Args:
        folder: It exists.
        entry: Who takes it: ``host`` and what else tells others.
        wait_until_void: Called with the path and the entry of a lease that another holds; returns when it is void.
        kind: What to return.

    Raises:
        HeldError: Another holds it; from ``wait_until_void``.
        OSError: The folder cannot be written.
    """
    entry = {**entry, "token": os.urandom(8).hex()}
    while True:
        path, held = holder(folder)
        if path and not held.given_back:
            wait_until_void(path, held)
        taken = _take_next(folder, path, entry)
        if taken:
            return kind(taken, entry)


def _take_next(folder: str, path: str, entry: dict[str, Any]) -> str:
    """Return the path of the lease that was taken; empty where another was faster."""
    mine = os.path.join(folder, f"lease-{_number(path) + 1:06}")
    draft = f"{mine}.{entry['token']}.tmp"
    _write(draft, entry)
    try:
        _link(draft, mine)
    except FileExistsError:
        if LeaseEntry.read(mine).token != entry["token"]:  # NFS may report a link that it has made as there already
            return ""
    finally:
        os.unlink(draft)
    if holder(folder)[0] != mine:  # what was listed first was long ago
        return ""
    for number in _numbers(folder)[:-2]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, f"lease-{number:06}"))
    return mine


def _link(draft: str, path: str) -> None:
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except _NO_LINKS:  # a file system without hard links: to make a file anew is as atomic
        with open(draft, "rb") as file, open(path, "xb") as new:
            new.write(file.read())


def _write(path: str, entry: dict[str, Any]) -> None:
    write_whole(path, json.dumps(entry) + "\n", closed=True, sync=True)


def _numbers(folder: str) -> list[int]:
    return sorted(int(found[1]) for found in map(_NAME.match, os.listdir(folder)) if found)


def _number(path: str) -> int:
    found = _NAME.match(os.path.basename(path))
    return int(found[1]) if found else 0
