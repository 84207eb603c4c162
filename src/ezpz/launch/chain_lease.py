"""Let one launch at a time work on a chain of jobs, whatever kills it and wherever it runs.

It is one of `ezpz.lease`, and void when the scheduler says that its job is over and it was not renewed for `SILENT`
seconds, because some schedulers say so while processes still end; in any case when it was not renewed for `VOID`
seconds.

Two processes beside the launch keep it, and end with it. One renews it every few seconds by setting its time, and may
wait for the file system for ever. The other, the guard, touches no file: it ends the launch when a higher number has
appeared, when the lease was not renewed for `ENDS` seconds, or when the first has ended. The launch watches the guard
(`Lease.watched`), and kills its ranks when that is gone or says why it must, so that they save nothing more: whoever
has taken the lease may write already.

The guard is this file: ``python3 -I -S chain_lease.py PATH EVERY ENDS PID``.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from ezpz import lease
from ezpz.lease import HeldError, age, holder

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

    from ezpz.records.lease_record import LeaseEntry

__all__ = [
    "ENDS",
    "EVERY",
    "PATIENCE",
    "SILENT",
    "VOID",
    "HeldError",
    "Lease",
    "age",
    "holder",
    "kept",
    "note_save",
    "take",
]

EVERY = 5.0  # seconds between two renewals
SILENT = 15.0  # seconds without one of a job that the scheduler says is over
VOID = 600.0  # seconds without one of any job
PATIENCE = 120.0  # seconds for one that is renewed although its job is over: the next job pays for the wait
ENDS = 480.0  # seconds without one after which the job is ended, so that it is over when the lease is void
_OBEYS = 5.0  # seconds from the guard's word to SIGTERM, for a launch that does not listen to it yet,
_KILLS = 30.0  # and from there to SIGKILL
_TAKEN = b"taken"
_LOOK = 1.0  # seconds between looks at a lease that is about to be void
_UNHEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)


class Lease(lease.Lease):
    """A lease that this process holds.

    Attributes:
        watched: A descriptor that can be read when `lost` may have an answer; -1 while nothing renews the lease.
    """

    def __init__(self, path: str, entry: dict[str, Any]) -> None:
        super().__init__(path, entry)
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

    def give_back(self) -> None:
        """Let the next one take it at once."""
        self._leave()
        super().give_back()

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


def take(folder: str, entry: dict[str, Any], is_over: Callable[[LeaseEntry], bool]) -> Lease:
    """Take the lease of a folder.

    Args:
        folder: Of the chain.
        entry: Who takes it: ``job``, ``scheduler``, ``restarts``, ``host``.
        is_over: Tells whether the scheduler says that the job of an entry is over.

    Raises:
        HeldError: Another holds it.
        OSError: The folder cannot be written.
    """
    return lease.take(folder, entry, lambda path, held: _wait_until_void(path, held, is_over), Lease)


def _wait_until_void(path: str, held: LeaseEntry, is_over: Callable[[LeaseEntry], bool]) -> None:
    over, end = is_over(held), time.monotonic() + PATIENCE
    while True:
        since = age(path)
        if since >= VOID or (over and since >= SILENT) or not os.path.exists(path):
            return
        if not over or time.monotonic() >= end:
            still = " although the scheduler says that this job is over" if over else ""
            raise HeldError(
                f"job {held.job or 'unknown'} on {held.host or 'an unknown host'} holds {path}, renewed "
                f"{since:.0f} s ago{still}; it is void {VOID:.0f} s after the last renewal"
            )
        time.sleep(_LOOK)


# The guard, and what it has renewing


def note_save(folder: str, step: int) -> None:
    """Keep the step of a complete save, that a rank has reported; nothing may fail a training here.

    Args:
        folder: Of the chain; where it has begun no job, nothing is kept.
        step: Steps done; -1 for a number that is not known.
    """
    import json

    from ezpz.files import write_whole
    from ezpz.records.chain_records import JOBS, SAVED, ChainJobs

    lease = kept()
    try:
        if lease is None or not lease.is_ours():  # of a launch in a rank, or of one whose run is another job's now
            return
        number = len(ChainJobs.read(os.path.join(folder, JOBS)).jobs)
        if number:
            save = json.dumps({"number": number, "step": step}, indent=1) + "\n"
            write_whole(os.path.join(folder, SAVED), save, closed=True, sync=True)
    except OSError:
        pass


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
