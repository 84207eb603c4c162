"""Tell how much of this machine's CPUs is idle: what decides whether more tests begin, and how long a limit is."""

from __future__ import annotations

import os
import time
from pathlib import Path

_MOST = 10  # times as long as said, at most, on a machine without an idle core


class Idle:
    """The idle cores of this machine since the last look."""

    def __init__(self):
        self._before = self._now()

    @staticmethod
    def _now():
        try:
            with Path("/proc/stat").open(encoding="ascii") as file:
                words = file.readline().split()
        except OSError:  # macOS
            return time.monotonic(), 0.0
        # proc(5): cpu user nice system idle iowait …, in ticks of all cores. A core that waits for a disk is not idle.
        return time.monotonic(), int(words[4]) / os.sysconf("SC_CLK_TCK")

    def cores(self, *, keep=False):
        """Return how many cores were idle, on average, since the last look; with `keep` this one does not count."""
        now, before = self._now(), self._before
        if not keep:
            self._before = now
        seconds = now[0] - before[0]
        return (now[1] - before[1]) / seconds if seconds > 0 else 0.0


class Deadline:
    """A limit in seconds of a machine with an idle core to spare; a busy machine is given up to ten times as long."""

    def __init__(self, seconds):
        self._seconds, self._begin, self._idle = seconds, time.monotonic(), Idle()

    def is_over(self):
        passed = time.monotonic() - self._begin
        if passed < self._seconds:
            return False
        return passed * min(max(self._idle.cores(keep=True), 1 / _MOST), 1) >= self._seconds
