"""Let one launch at a time work on a chain of jobs, whatever kills it and wherever it runs.

    lease-000007      {"job": "13", "scheduler": "slurm", "restarts": 0, "host": "n01", "token": "5f3a90c2d41b7e66"}

The file with the highest number names the holder. It is taken with the next number, by a link that fails where another
was faster, and is never renamed or changed by others: who decides on old knowledge cannot take it from a newer holder.
A process beside the launch renews it every few seconds by setting its time; it ends with the launch, and ends the
launch when a higher number appears. A lease is void when it was given back; when the scheduler says that its job is
over, and it was not renewed for `SILENT` seconds, because some schedulers say so while processes still end; and in any
case when it was not renewed for `VOID` seconds. Ages are differences of times that the file system itself has set, so
that the clocks of hosts do not matter. No lock of the file system is used: many of those of clusters have none.

The process that renews is this file: ``python3 -I -S lease.py PATH``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from ezpz.files import read_object

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

__all__ = ["EVERY", "SILENT", "VOID", "HeldError", "Lease", "age", "holder", "take"]

EVERY = 5.0  # seconds between two renewals
SILENT = 15.0  # seconds without one of a job that the scheduler says is over
VOID = 600.0  # seconds without one of any job
_LOOK = 1.0  # seconds between looks at a lease that is about to be void
_NAME = re.compile(r"lease-(\d{6,})\Z")
_NO_LINKS = (OSError, NotImplementedError)


class HeldError(Exception):
    """Another holds the lease; its text says who, and until when."""


class Lease:
    """A lease that this process holds."""

    def __init__(self, path: str, entry: dict[str, Any]) -> None:
        self.path, self._entry = path, entry
        self._child: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Have it renewed for as long as this process lives."""
        import subprocess

        line = [sys.executable, "-I", "-S", os.path.abspath(__file__), self.path]
        nowhere = subprocess.DEVNULL
        # A session of its own: what ends the launch by its group must let it write its verdict first.
        self._child = subprocess.Popen(line, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)

    def is_ours(self) -> bool:
        """Tell whether no other has taken it: one that was not renewed for long may be lost."""
        path, entry = holder(os.path.dirname(self.path))
        return path == self.path and entry.get("token") == self._entry["token"]

    def give_back(self) -> None:
        """Let the next one take it at once."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
        if self.is_ours():
            with contextlib.suppress(OSError):  # it becomes void with time
                _write(self.path, {**self._entry, "given_back": True})


def holder(folder: str) -> tuple[str, dict[str, Any]]:
    """Return the path of the lease that counts and what it says; both empty where there is none."""
    numbers = _numbers(folder)
    path = os.path.join(folder, f"lease-{numbers[-1]:06}") if numbers else ""
    return path, read_object(path) if path else {}


def age(path: str) -> float:
    """Return the seconds since a lease was renewed, by the clock of the file system; 0 where it is gone."""
    probe = f"{path}.{os.getpid()}-{os.urandom(3).hex()}.now"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
        try:
            return os.fstat(descriptor).st_mtime - os.stat(path).st_mtime
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError:
        return 0.0


def take(folder: str, entry: dict[str, Any], is_over: Callable[[dict[str, Any]], bool]) -> Lease:
    """Take the lease of a folder.

    Args:
        folder: Of the chain.
        entry: Who takes it: ``job``, ``scheduler``, ``restarts``, ``host``.
        is_over: Tells whether the scheduler says that the job of an entry is over.

    Raises:
        HeldError: Another holds it.
        OSError: The folder cannot be written.
    """
    entry = {**entry, "token": os.urandom(8).hex()}
    while True:
        path, held = holder(folder)
        _wait_until_void(path, held, is_over)
        taken = _take_next(folder, path, entry)
        if taken:
            return Lease(taken, entry)


def _wait_until_void(path: str, held: dict[str, Any], is_over: Callable[[dict[str, Any]], bool]) -> None:
    if not path or held.get("given_back"):
        return
    over = is_over(held)
    while True:
        since = age(path)
        if since >= VOID or (over and since >= SILENT) or not os.path.exists(path):
            return
        if not over:
            raise HeldError(
                f"job {held.get('job') or 'unknown'} on {held.get('host') or 'an unknown host'} holds {path}, renewed "
                f"{since:.0f} s ago; it is void {VOID:.0f} s after the last renewal"
            )
        time.sleep(_LOOK)


def _take_next(folder: str, path: str, entry: dict[str, Any]) -> str:
    """Return the path of the lease that was taken; empty where another was faster."""
    mine = os.path.join(folder, f"lease-{_number(path) + 1:06}")
    draft = f"{mine}.{entry['token']}.tmp"
    _write(draft, entry)
    try:
        _link(draft, mine)
    except FileExistsError:
        if read_object(mine).get("token") != entry["token"]:  # NFS may report a link that it has made as there already
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
    from ezpz.files import write_whole

    write_whole(path, json.dumps(entry) + "\n", closed=True, sync=True)


def _numbers(folder: str) -> list[int]:
    return sorted(int(found[1]) for found in map(_NAME.match, os.listdir(folder)) if found)


def _number(path: str) -> int:
    found = _NAME.match(os.path.basename(path))
    return int(found[1]) if found else 0


def _main(path: str) -> int:
    """Renew a lease until the process that holds it has ended; end that one when another has taken it."""
    from ezpz.launch.host.process_tree import die_with_parent

    parent = os.getppid()
    die_with_parent(signal.SIGKILL)
    folder = os.path.dirname(path)
    while os.getppid() == parent:
        try:
            os.utime(path)
            if holder(folder)[0] != path:
                os.kill(parent, signal.SIGTERM)  # two would write to one run
                return 1
        except OSError:
            pass  # the file system has a bad moment; the next renewal may come through
        time.sleep(EVERY)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
