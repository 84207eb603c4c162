"""Lock a run folder: one process holds its journal, and others can see that without touching it.

The writer holds an open-file-description lock (Linux 3.15, ``fcntl(2)``), which the system gives back when the process
ends, however it ends, and which no other open and close of the file in the same process gives up, as with POSIX locks.
Readers ask with ``F_OFD_GETLK``, which takes nothing. Where a file system has no locks (Lustre without ``-o flock``),
or Python no such constant (macOS), host, pid and the time of its birth in ``run.json`` must do, and on other hosts the
age of the last row.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from time import time

from ezpz import proc
from ezpz.files import open_regular

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.records.run_record import RunRecord

_SILENT = 600.0  # seconds without a row after which a run on another host counts as gone
_TAIL = 1 << 16  # bytes of a journal that hold its last row
# struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, pid
_FLOCK = "hhqqi4x"


def hold(descriptor: int) -> bool:
    """Lock an open journal for this process.

    Returns:
        False if another process holds it; True otherwise, also where the file system has no locks.
    """
    import fcntl

    if not hasattr(fcntl, "F_OFD_SETLK"):
        return True
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        return error.errno not in {errno.EACCES, errno.EAGAIN}
    return True


def is_held(folder: Path, record: RunRecord) -> bool:
    """Tell whether a process still writes a run folder.

    Args:
        folder: The run folder.
        record: Its ``run.json``.
    """
    journal = folder / "metrics.jsonl"
    if _asked(journal):
        return True
    process = record.process
    if not process.raw:  # of a journal alone: that no process holds it is all that can be known
        return False
    if process.host == os.uname().nodename:
        return birth(process.pid) == process.birth is not None
    try:  # another host's lock may not be seen from here (NFS, Lustre with -o localflock)
        changed = journal.stat().st_mtime
    except OSError:
        return False
    # A copy has a new file of old rows. Clocks that are minutes apart let no job of a cluster begin.
    told = _last_time(journal)
    return time() - (changed if told is None else min(changed, told)) < _SILENT


def _last_time(journal: Path) -> float | None:
    """Return the time of the last row of a journal; None where there is none, or a long one."""
    from ezpz.errors import TrackError
    from ezpz.track.journal_reader import parse  # which the writer need not

    try:
        with open(journal, "rb", opener=open_regular) as file:  # Path.open has no opener
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError, TrackError):  # a torn line, or one of a later version
            row = parse(line, "") if line else None
            if row is not None:
                return row["t"]
    return None


def _asked(journal: Path) -> bool | None:
    """Return whether somebody holds a journal; None where that cannot be asked."""
    import fcntl

    if not hasattr(fcntl, "F_OFD_GETLK"):
        return None
    try:
        with open(journal, "rb", opener=open_regular) as file:  # Path.open has no opener
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, query)
    except OSError:
        return None
    kind: int = struct.unpack(_FLOCK, answer)[0]
    return kind != fcntl.F_UNLCK


def birth(pid: int) -> str | None:
    """Return a process's start, as text that differs from a later process of the same number; None if it is gone.

    Field 22 of ``/proc/<pid>/stat`` (proc(5)), clock ticks since the host's start; empty text where there is no /proc.
    """
    process = proc.stat(pid)
    if process is not None:
        return process.start
    if proc.stat("self") or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it is there and not ours
        pass
    return ""
