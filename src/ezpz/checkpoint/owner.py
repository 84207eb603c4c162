"""Let one run at a time save into a folder of checkpoints: two would remove what the other is writing.

Rank 0's process takes the folder's lease (`ezpz.lease`) when its run begins to save, has a thread renew it, and gives
it back at its end. That of a process that was killed is void

- at once, where its host says that it is gone; where its launch has started its ranks again since (`--attempts`); where
  its chain of jobs has come to this one: both begin anew only when what was before has ended;
- elsewhere when it was not renewed for `SILENT` seconds, and nobody has renewed it while this process looked on for as
  long: a file system that stood still has renewed nothing.

Who has lost its lease saves nothing more. Who only loads needs none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz import lease, proc
from ezpz.errors import EzpzError, UsageError
from ezpz.files import make_closed_folder
from ezpz.track.writer_lock import birth

if TYPE_CHECKING:
    from ezpz.records.lease_record import LeaseEntry

__all__ = ["EVERY", "SILENT", "claim"]

EVERY = 5.0  # seconds between two renewals
SILENT = 15.0  # seconds without one
_LOOK = 0.5

_held: dict[str, lease.Lease] = {}  # by folder
_holder = 0  # the process that holds them: a fork of it holds none


def claim(folder: Path) -> None:
    """Take the lease of a folder, unless this process has it; it is given back when the process ends.

    Raises:
        UsageError: Another process saves there.
        EzpzError: Another has taken it since.
        OSError: The folder cannot be made or written.
    """
    global _holder
    if _holder != os.getpid():
        _held.clear()
        _holder = os.getpid()
        threading.Thread(target=_renew, name="ezpz-checkpoint-lease", daemon=True).start()
        atexit.register(_give_back, _holder)
    make_closed_folder(folder)
    place = str(folder.resolve())
    mine = _held.get(place)
    if mine is not None:
        path, other = lease.holder(place)
        if mine.is_ours():
            return
        if path:
            raise EzpzError(
                f"cannot save in {folder}: {_who(other)} has taken the folder over, because this process did not renew "
                f"{mine.path} for more than {SILENT:.0f} s; expected one run at a time. End one of the two."
            )
    try:
        _held[place] = lease.take(place, _entry(place), _wait_until_void, lease.Lease)
    except lease.HeldError as error:
        raise UsageError(
            f"cannot save in {folder}: {error}; expected one run at a time. Wait until it has ended, or choose another "
            "folder with `--outdir`."
        ) from None


def _entry(folder: str) -> dict[str, Any]:
    return {
        "inode": Path(folder).stat().st_ino,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "birth": birth(os.getpid()),
        "machine": _machine(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        **_origin(),
    }


def _origin() -> dict[str, str]:
    """Return what started this process: job, its chain, the launch, and which attempt of that."""
    from ezpz.dist.job_around import job

    scheduler, job_id, _ = job()
    return {
        "job": job_id,
        "scheduler": scheduler,
        "chain": os.environ.get("EZPZ_CHAIN", ""),
        "launch": os.environ.get("EZPZ_LAUNCH_ID", ""),
        "attempt": os.environ.get("EZPZ_ATTEMPT", "1"),
    }


def _machine() -> str:
    """Return what two processes share that see each other's numbers: a boot of a host, and a space of numbers."""
    boot = proc.read("sys", "kernel/random/boot_id").decode().strip()
    return f"{boot} {proc.link('self', 'ns/pid')}" if boot else os.uname().nodename


def _is_gone(held: LeaseEntry, folder: Path) -> bool | None:
    """Tell whether the holder of a folder's lease has ended; None where that cannot be told."""
    pid, own = held.pid, _origin()
    if held.machine == _machine() and pid is not None:
        if pid == os.getpid() and birth(pid) == held.birth:  # ours, from before the folder was renamed
            return True
        process, is_copy = proc.stat(pid), held.inode != folder.stat().st_ino  # of the folder of a living run
        return is_copy or (process is not None and process.is_dead) or birth(pid) != held.birth
    is_next_job = own["chain"] and held.chain == own["chain"] and held.job != own["job"]
    is_next_attempt = own["launch"] and held.launch == own["launch"] and held.attempt != own["attempt"]
    return True if is_next_job or is_next_attempt else None


def _wait_until_void(path: str, held: LeaseEntry) -> None:
    gone = _is_gone(held, Path(path).parent)
    if gone:
        return
    try:
        before, end = lease.renewed(path), time.monotonic() + SILENT
        while gone is None and lease.renewed(path) == before:
            if time.monotonic() >= end and lease.age(path) >= SILENT:
                return
            time.sleep(_LOOK)
    except OSError:  # a newer one has come in its place
        return
    seconds = max(0.0, lease.age(path))
    raise lease.HeldError(f"{_who(held)} saves there since {held.since}, and has renewed {path} {seconds:.0f} s ago")


def _who(held: LeaseEntry) -> str:
    """Name the holder of a lease by its job, where it has one, else by its process."""
    host = held.host or "an unknown host"
    return f"job {held.job} on {host}" if held.job else f"process {held.pid or 'unknown'} on {host}"


def _renew() -> None:
    while True:
        time.sleep(EVERY)
        for each in list(_held.values()):
            with contextlib.suppress(OSError):  # the file system has a bad moment, or the folder is gone
                os.utime(each.path)


def _give_back(holder: int) -> None:
    if holder == os.getpid():
        for each in _held.values():
            each.give_back()
