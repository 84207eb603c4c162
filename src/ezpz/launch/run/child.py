"""A process of the launcher's own: the leader of this host, the ``mpiexec`` in front of all ranks, or one host's ``ssh``."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from ezpz.launch.host import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Child"]

_READ = 1 << 16


class Child:
    """A process, how it ended, and what it writes.

    Attributes:
        pid: Its process id.
        name: What the user knows it by.
        host: Index of the one host that it serves, or -1.
        code: How it ended, minus the signal for a signal; None while it runs.
        by_us: Whether we have ended it: its code tells nothing then.
        pipes: Descriptor to stream (1 or 2) of what it writes; empty when it writes where the launcher does.
    """

    def __init__(self, pid: int, name: str, host: int = -1) -> None:
        self.pid, self.name, self.host = pid, name, host
        self.code: int | None = None
        self.by_us = False
        self.pipes: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None  # kept: it closes its pipes when it is forgotten

    @classmethod
    def start(cls, argv: Sequence[str], environ: Mapping[str, str], stdin: int | None, host: int = -1) -> Child:
        """Start a program in a session of its own; it dies with this process.

        Raises:
            OSError: It cannot be started.
        """
        process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509  # no thread runs in the launcher
        )
        child = cls(process.pid, os.path.basename(argv[0]), host)
        child._process = process
        for stream, pipe in ((1, process.stdout), (2, process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            child.pipes[pipe.fileno()] = stream
        return child

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    def read(self, fd: int) -> bytes | None:
        """Return what one of its pipes holds, empty at its end, None when there is nothing now."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return None
        if not data:
            del self.pipes[fd]
        return data

    def ended(self, status: int) -> None:
        """Note how it ended."""
        self.code = os.waitstatus_to_exitcode(status)
        if self._process:
            self._process.returncode = self.code  # it was reaped by others

    def kill(self, number: int, *, group: bool = False) -> None:
        """Send it a signal, with ``group`` also to what it started in its session."""
        if self.alive:
            self.by_us = True
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except OSError:
                pass  # it is gone already
