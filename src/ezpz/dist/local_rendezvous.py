"""Publish the port of rank 0 to the other ranks of the same host, in a private file.

Needed where ``MASTER_*`` is not set: a bare ``mpiexec -n 3 python3 script.py``. The file is
``$TMPDIR/ezpz-<uid>/meeting-<key>``, readable by its owner alone, and holds ``<port> <pid of rank 0>``.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.cluster.scheduler import schedulers
from ezpz.dist.siblings import starter
from ezpz.errors import MachineError, RendezvousError
from ezpz.files import private_folder, write_whole
from ezpz.ranks import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


def key(environ: Mapping[str, str]) -> str:
    """Return a name that is common to the ranks of this start and to no others.

    It is made of the names of job and start and of the nearest process above that is no rank itself: ranks may be
    wrapped in shells of their own, so the parent alone is not common to them.
    """
    jobs = (name for one in schedulers() for name in (*one.job_variables, *one.array_variables))
    starts = (family.start_variable for family in FAMILIES)
    names = " ".join(f"{name}={environ[name]}" for name in dict.fromkeys((*jobs, *starts)) if name in environ)
    pid, start = starter()
    return f"{zlib.crc32(f'{names} {pid}@{start}'.encode()):08x}"


class Point:
    """A place to meet; a context manager so that rank 0 never leaves the file behind."""

    def __init__(self, name: str) -> None:
        try:
            folder = private_folder()
        except MachineError as error:
            raise RendezvousError(str(error)) from None
        self.path = Path(folder) / f"meeting-{name}"
        self._published = False

    def publish(self, port: int) -> None:
        """Write the port so that readers see the whole line or nothing."""
        write_whole(self.path, f"{port} {os.getpid()}\n")
        self._published = True

    def wait(self, deadline: float, check: Callable[[], object] = bool) -> int:
        """Return the port when rank 0 has published it.

        Args:
            deadline: By ``time.monotonic()``.
            check: Called now and then; raises when waiting is in vain.

        Raises:
            RendezvousError: Nothing was published in time.
        """
        while time.monotonic() < deadline:
            try:
                port, pid = self.path.read_text(encoding="utf-8").split()
            except FileNotFoundError:
                pass
            else:
                if _alive(int(pid)):  # else a leftover of a rank 0 that was killed
                    return int(port)
            check()
            time.sleep(0.02)
        raise RendezvousError(
            f"rank 0 published no port in {self.path} in time (from a launcher that sets no MASTER_ADDR); expected all "
            "ranks on one host. Start the ranks with `ezpz launch`, or set MASTER_ADDR and MASTER_PORT."
        )

    def remove(self) -> None:
        """Take the file away, when this process wrote it."""
        if self._published:
            self.path.unlink(missing_ok=True)
            self._published = False

    def __enter__(self) -> Point:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
