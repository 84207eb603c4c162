"""The end of the job's wall time, told ten minutes and one minute before.

Some schedulers say it in a variable: SLURM_JOB_END_TIME=1795289400 (Slurm from 22.05 on), EZPZ_JOB_END beside the EZPZ_JOBID
of a second shell (second_shell.py). Otherwise ``scontrol``, ``qstat`` or ``flux job timeleft`` is asked by a child process, which
is this file run as ``python3 -I -S wall.py SCHEDULER JOB``: a busy scheduler takes seconds, and a launch shall not wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation

__all__ = ["Wall", "ends"]

_BEFORE = (600.0, 60.0)  # seconds before the end at which it is told
_SOON = 1.25  # a warning that comes so shortly after another is left out
_LOOK = 1.0  # seconds between looks at what was asked
_FARTHEST = 3600.0  # seconds: what selectors can wait for is limited
_JOBS = ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "FLUX_JOB_ID")


def ends(environ: Mapping[str, str]) -> float | None:
    """Return when the job ends, in seconds since 1970-01-01 UTC, where a variable tells it."""
    return _told(environ)[0]


def _told(environ: Mapping[str, str]) -> tuple[float | None, str]:
    jobs = {environ[name] for name in _JOBS if environ.get(name)}
    slurm, ours = environ.get("SLURM_JOB_END_TIME", ""), environ.get("EZPZ_JOB_END", "")
    if slurm.isdecimal() and (environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")):
        return float(slurm), "SLURM_JOB_END_TIME"
    if ours.isdecimal() and environ.get("EZPZ_JOBID") in jobs:
        return float(ours), "EZPZ_JOB_END"
    return None, ""


class Wall:
    """When to tell the user of the end of the job's wall time; asks for it in the background where nothing tells it.

    Used from a loop: wait until `due`, call `take`, `close` when the launch is over.
    """

    def __init__(self, allocation: Allocation, environ: Mapping[str, str]) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._answer = b""
        self._end: float | None = None
        self._origin = ""
        self._before = list(_BEFORE)
        if not allocation.job_id:
            return
        if allocation.end_time:
            self._end, self._origin = (
                float(allocation.end_time),
                allocation.origin.get("end_time", allocation.scheduler),
            )
        else:
            self._end, self._origin = _told(environ)
        if self._end is None:
            self._ask(allocation, environ)

    def due(self) -> float | None:
        """Return the time (monotonic) at which to call `take`, at most an hour from now; None when nothing will come."""
        now = time.monotonic()
        if self._child:
            return now + _LOOK
        if self._end is None or not self._before:
            return None
        return min(now + _FARTHEST, now + max(0.0, self._left() - self._before[0]))

    def take(self, now: float) -> str | None:
        """Return what is to be said now, each warning once.

        Args:
            now: The present monotonic time.
        """
        if self._child:
            self._listen()
        left = self._left(now)
        passed = [before for before in self._before if left <= before]
        if self._end is None or not passed:
            return None
        self._before = self._before[len(passed) :]
        while self._before and left <= _SOON * self._before[0]:  # said already, in effect
            del self._before[0]
        clock = time.strftime("%H:%M:%S", time.localtime(self._end))
        if left <= 0:
            return f"the job's wall time was to end at {clock} (from {self._origin})"
        return f"the job's wall time ends in {_span(left)} (at {clock}, from {self._origin})"

    def close(self) -> None:
        """End the question, when it is still open."""
        child, self._child = self._child, None
        if child and child.stdout:
            child.stdout.close()
            if child.poll() is None:
                child.terminate()  # it takes the scheduler's command with it
                child.wait()

    def _left(self, now: float | None = None) -> float:
        if self._end is None:
            return float("inf")
        late = time.monotonic() - now if now is not None else 0.0
        return self._end - time.time() + late

    def _ask(self, allocation: Allocation, environ: Mapping[str, str]) -> None:
        line = [sys.executable, "-I", "-S", os.path.abspath(__file__), allocation.scheduler, allocation.job_id]
        nowhere = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(
                line, env=dict(environ), stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, start_new_session=True
            )
        except OSError:
            return  # no process can be started: the ranks will say so
        if self._child.stdout:
            os.set_blocking(self._child.stdout.fileno(), False)

    def _listen(self) -> None:
        """Read the answer, ``1795289400 scontrol show job 12``; it is whole when the pipe ends."""
        if not self._child or not self._child.stdout:
            return
        try:
            part = os.read(self._child.stdout.fileno(), 4096)
        except BlockingIOError:
            return
        self._answer += part
        if part:
            return
        self.close()
        end, _, self._origin = self._answer.decode(errors="replace").strip().partition(" ")
        self._end = float(end) if end.isdecimal() else None


def _span(seconds: float) -> str:
    """Return ``10 minutes``, ``1 minute`` or ``45 seconds``."""
    if seconds < 60 - _LOOK:
        number, unit = max(1, round(seconds)), "second"
    else:
        number, unit = max(1, round(seconds / 60)), "minute"
    return f"{number} {unit}{'s'[: number > 1]}"


def _main(scheduler: str, job: str) -> int:
    """Ask the scheduler and print when the job ends and which command told it; print nothing when none does."""
    from ezpz.cluster import SCHEDULERS, probe
    from ezpz.errors import EzpzError
    from ezpz.launch.host.process_tree import die_with_parent

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by an exception, so that the command is killed too
    die_with_parent(signal.SIGTERM)
    if scheduler not in SCHEDULERS or os.getppid() == 1:
        return 1
    module = import_module(f"ezpz.cluster.{scheduler}")
    environ = dict(os.environ)
    if not any(environ.get(mark) for mark in module.MARKS):  # the job was found by this host's name
        environ[module.JOB_VARIABLE] = job
    try:
        found = module.detect(environ, probe.read, probe.run, more=True)
    except EzpzError:
        return 1
    if found and found.end_time:
        print(found.end_time, found.origin.get("end_time", scheduler))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
