"""Let one launch at a time work on a chain of jobs, whatever kills it and wherever it runs.

    lease-000007      {"job": "13", "scheduler": "slurm", "restarts": 0, "host": "n01", "token": "5f3a90c2d41b7e66"}

The file with the highest number names the holder. It is taken with the next number, by a link that fails where another
was faster, and is never renamed or changed by others: who decides on old knowledge cannot take it from a newer holder.
A lease is void when it was given back; when the scheduler says that its job is over, and it was not renewed for
`SILENT` seconds, because some schedulers say so while processes still end; and in any case when it was not renewed for
`VOID` seconds. Ages are differences of times that the file system itself has set, so that the clocks of hosts do not
matter. No lock of the file system is used: many of those of clusters have none.

Two processes beside the launch keep it, and end with it. One renews it every few seconds by setting its time, and may
wait for the file system for ever. The other, the guard, touches no file: it ends the launch when a higher number has
appeared, when the lease was not renewed for `ENDS` seconds, or when the first has ended. The launch watches the guard
(`Lease.watched`), and kills its ranks when that is gone or says why it must, so that they save nothing more: whoever
has taken the lease may write already.

The guard is this file: ``python3 -I -S lease.py PATH EVERY ENDS PID``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
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

__all__ = ["ENDS", "EVERY", "PATIENCE", "SILENT", "VOID", "HeldError", "Lease", "age", "holder", "kept", "take"]

EVERY = 5.0  # seconds between two renewals
SILENT = 15.0  # seconds without one of a job that the scheduler says is over
VOID = 600.0  # seconds without one of any job
PATIENCE = 120.0  # seconds for one that is renewed although its job is over: the next job pays for the wait
ENDS = 480.0  # seconds without one after which the job is ended, so that it is over when the lease is void
_OBEYS = 5.0  # seconds from the guard's word to SIGTERM, for a launch that does not listen to it yet,
_KILLS = 30.0  # and from there to SIGKILL
_TAKEN = b"taken"
_LOOK = 1.0  # seconds between looks at a lease that is about to be void
_NAME = re.compile(r"lease-(\d{6,})\Z")
_NO_LINKS = (OSError, NotImplementedError)
_UNHEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)


class HeldError(Exception):
    """Another holds the lease; its text says who, and until when."""


class Lease:
    """A lease that this process holds.

    Attributes:
        path: Its file.
        watched: A descriptor that can be read when `lost` may have an answer; -1 while nothing renews the lease.
    """

    def __init__(self, path: str, entry: dict[str, Any]) -> None:
        self.path, self._entry = path, entry
        self.watched = -1
        self._guard: subprocess.Popen[bytes] | None = None
        self._lost = ""

    def keep(self) -> None:
        """Have it renewed for as long as this process lives.

        Raises:
            OSError: No process can be started.
        """
        import subprocess

        self.watched, told = os.pipe()
        os.set_blocking(self.watched, False)
        line = [sys.executable, "-I", "-S", os.path.abspath(__file__), self.path, *map(str, (EVERY, ENDS, os.getpid()))]
        nowhere = subprocess.DEVNULL
        # A scheduler that ends the job signals every process of it: the ranks save meanwhile, under this lease.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _UNHEARD)
        try:
            self._guard = subprocess.Popen(line, stdin=nowhere, stdout=told, stderr=nowhere, start_new_session=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(told)
        _kept[:] = [self]

    def lost(self) -> str:
        """Return why the launch must end at once; empty while it need not."""
        if not self._lost and self._guard is not None:
            try:
                text = os.read(self.watched, 4096).decode(errors="replace").strip()
            except BlockingIOError:
                return ""
            self._lost = text or "the process that renews it was killed"
        return self._lost

    def is_ours(self) -> bool:
        """Tell whether no other has taken it: one that was not renewed for long may be lost."""
        path, entry = holder(os.path.dirname(self.path))
        return path == self.path and entry.get("token") == self._entry["token"]

    def give_back(self) -> None:
        """Let the next one take it at once."""
        self._leave()
        with contextlib.suppress(OSError):  # it becomes void with time
            if self.is_ours():
                _write(self.path, {**self._entry, "given_back": True})

    def _leave(self) -> None:
        """Have it renewed no more."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _kept.clear()
            guard.kill()
            guard.wait()
            os.close(self.watched)
            self.watched = -1


_kept: list[Lease] = []  # the one that this process has renewed


def kept() -> Lease | None:
    """Return the lease that this process holds and has renewed; None without one."""
    return _kept[0] if _kept else None


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
    over, end = is_over(held), time.monotonic() + PATIENCE
    while True:
        since = age(path)
        if since >= VOID or (over and since >= SILENT) or not os.path.exists(path):
            return
        if not over or time.monotonic() >= end:
            still = " although the scheduler says that this job is over" if over else ""
            raise HeldError(
                f"job {held.get('job') or 'unknown'} on {held.get('host') or 'an unknown host'} holds {path}, renewed "
                f"{since:.0f} s ago{still}; it is void {VOID:.0f} s after the last renewal"
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


# The guard, and what it has renewing


def _main(path: str, every: float, ends: float, launch: int) -> int:
    """Have a lease renewed until the launch that holds it has ended; end that one when it must not go on.

    Args:
        path: Of the lease.
        every: Seconds between two renewals.
        ends: Seconds without one after which the launch is ended.
        launch: Its process.
    """
    from ezpz.launch.host.process_tree import die_with_parent

    die_with_parent(signal.SIGKILL)
    renewals, renewed = _start_renewing(path, every), _now()
    because = ""
    while os.getppid() == launch and not because:
        if select.select([renewals], [], [], _LOOK)[0]:
            words = os.read(renewals, 4096).split()
            if not words:
                because = "the process that renews it was killed"
            elif _TAKEN in words:
                because = "another job has taken it"
            else:
                renewed = float(words[-1])
        if not because and _now() - renewed > ends:
            because = f"{os.path.dirname(path)} could not be written for {ends:.0f} s"
    if because:
        _end(launch, because)
    return 0


def _end(launch: int, because: str) -> None:
    """Tell a launch why it must end; one that does not is killed, and its agents end the ranks then."""
    try:
        os.write(1, because.encode())
    except OSError:
        pass
    for patience, number in ((_OBEYS, signal.SIGTERM), (_KILLS, signal.SIGKILL)):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if os.getppid() != launch:
                return
            time.sleep(0.1)
        os.kill(launch, number)


def _start_renewing(path: str, every: float) -> int:
    """Start the process that renews a lease; return where the moments of its renewals can be read, a line for each."""
    from ezpz.launch.host.process_tree import die_with_parent

    guard = os.getpid()
    renewals, told = os.pipe()
    if os.fork():
        os.close(told)
        return renewals
    try:
        os.close(renewals)
        os.close(1)  # the launch shall read the end of the guard there
        die_with_parent(signal.SIGKILL)
        while os.getppid() == guard:
            began = _now()
            try:
                os.utime(path)
                is_taken = holder(os.path.dirname(path))[0] != path
            except OSError:
                pass  # the file system has a bad moment; the next renewal may come through
            else:
                os.write(told, b"%s\n" % (_TAKEN if is_taken else str(began).encode()))
            time.sleep(every)
    finally:
        os._exit(0)


def _now() -> float:
    """Return seconds of a clock that also counts while the host sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
