"""Files that ranks, hosts and runs share: where they lie, who writes them, and what tells two of them apart."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from time import monotonic

from ezpz.errors import UsageError
from ezpz.log import get_logger

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_POLLS = (0.1, 2.0)  # seconds between two looks at another's lock, at first and later: a thousand hosts may look at one

logger = get_logger(__name__)


def data_folder(folder: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds a folder per data set.

    The given one, else $EZPZ_DATA, $XDG_CACHE_HOME/ezpz/data or ~/.cache/ezpz/data.

    Raises:
        UsageError: All of these are unset.
    """
    if folder is not None:
        return Path(folder).expanduser()
    environ = os.environ if environ is None else environ
    if environ.get("EZPZ_DATA"):
        return Path(environ["EZPZ_DATA"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"], "ezpz", "data")
    if environ.get("HOME"):
        return Path(environ["HOME"], ".cache", "ezpz", "data")
    raise UsageError(
        "no folder for data: EZPZ_DATA, XDG_CACHE_HOME and HOME are unset (from the environment); expected one of "
        "them. Type `export EZPZ_DATA=/a/folder`."
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def wait_for_lock(path: Path, *, until: float = float("inf"), stale: float = 30.0) -> tuple[Any, str]:
    """Take a lock that several hosts may share, or wait until the process that holds it is done.

    The lock is a file that its holder touches (filelock's lease): file systems need no locks of their own, clocks of
    hosts are not compared, and a dead holder's lock is taken over. Files come by rename, so that two holders at once,
    which a lease cannot exclude, cost only time.

    Args:
        path: The file.
        until: The moment, of `time.monotonic`, at which not to wait any longer.
        stale: Seconds without a touch after which a holder is taken for dead; one of this host that is dead is not
            waited for.

    Returns:
        The lock, which ``with`` gives back, and ""; or None and the host and id of the process that had it, after that
        has given it back, well or badly, or time is up.

    Raises:
        OSError: The folder cannot be written.
    """
    from filelock import SoftFileLease, Timeout

    lease = SoftFileLease(path, lease_duration=stale)
    holder, pause, named_at = "", _POLLS[0], monotonic()
    while True:
        try:
            return lease.acquire(blocking=False), ""
        except Timeout:
            owner = lease.owner
            # Gone in this moment: some versions of filelock remove a dead holder's lock and leave the taking to the
            # next call. A holder that gave it back just now is as good: what it has made is not made again.
            if owner is None and not path.exists():
                continue
        if owner is not None:
            other, named_at = f"{owner.hostname} {owner.pid}", monotonic()
            if holder and other != holder:
                return None, holder
            if not holder:
                logger.info(f"waiting for process {other}, which holds {path}")
            holder = other
        elif monotonic() - named_at > stale:
            path.unlink(missing_ok=True)  # empty for so long: its maker died before it could write its name
        time.sleep(pause)
        pause = min(1.5 * pause, _POLLS[1])
        if holder and (monotonic() > until or not path.exists()):
            return None, holder
