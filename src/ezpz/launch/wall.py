"""Warn of the end of the job's wall time, ten minutes and one minute before.

A scheduler may say it in a variable, SLURM_JOB_END_TIME=1795289400 (Slurm from 22.05 on), and a second shell of a job
has EZPZ_JOB_END beside EZPZ_JOBID (exports.py). Otherwise a child process asks the scheduler's command; the child is
this file, run as ``python3 -I -S wall.py SCHEDULER JOB``: a busy scheduler takes seconds, and a launch shall not wait.
"""

from __future__ import annotations

import os
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation

_BEFORE = (600.0, 60.0)  # seconds before the end at which the user is warned
_SOON = 1.25  # a warning that comes so shortly after another is left out
_PATIENCE = 20.0  # seconds for a scheduler's command, which delays nothing
_LOOK = 1.0  # seconds between looks at what was asked
_FARTHEST = 3600.0  # seconds: what selectors can wait for is limited


def ends(environ: Mapping[str, str]) -> float | None:
    """Return when the job ends, in seconds since 1970-01-01 UTC, where a variable says it."""
    return _from_variables(environ)[0]


def starts(environ: Mapping[str, str]) -> float | None:
    """Return when the job started, in seconds since 1970-01-01 UTC, where a variable says it."""
    from ezpz.cluster.scheduler import schedulers

    for one in schedulers():
        start = environ.get(one.start_variable, "") if one.job_id(environ) else ""
        if start.isdecimal():
            return float(start)
    return None


def _from_variables(environ: Mapping[str, str]) -> tuple[float | None, str]:
    from ezpz.cluster.scheduler import schedulers

    jobs = [one for one in schedulers() if one.job_id(environ)]
    for one in jobs:
        end = environ.get(one.end_variable, "")
        if end.isdecimal():
            return float(end), one.end_variable
    ours = environ.get("EZPZ_JOB_END", "")
    if ours.isdecimal() and environ.get("EZPZ_JOBID") in {
        environ.get(name) for one in jobs for name in one.job_variables
    }:
        return float(ours), "EZPZ_JOB_END"
    return None, ""


class Wall:
    """Warnings of the end of the job's wall time; asks for it in the background where no variable says it.

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
            self._end, self._origin = _from_variables(environ)
        from ezpz.cluster.scheduler import scheduler
        from ezpz.files import find_program

        path = environ.get("PATH")
        if self._end is None and any(find_program(name, path) for name in scheduler(allocation.scheduler).programs):
            self._ask(allocation, environ)

    @property
    def end(self) -> float | None:
        """When the job ends, in seconds since 1970-01-01 UTC, as far as it is known by now."""
        return self._end

    def due(self) -> float | None:
        """Return the time (monotonic) at which to call `take`, at most an hour from now; None when nothing will
        come.
        """
        now = time.monotonic()
        if self._child:
            return now + _LOOK
        if self._end is None or not self._before:
            return None
        return min(now + _FARTHEST, now + max(0.0, self._left() - self._before[0]))

    def take(self, now: float) -> str | None:
        """Return the warning that is due, each one once.

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
        while self._before and left <= _SOON * self._before[0]:  # given already, in effect
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
        import subprocess

        line = [sys.executable, "-I", "-S", os.path.abspath(__file__), allocation.scheduler, allocation.job_id]
        nowhere = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(
                line, env=dict(environ), stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, start_new_session=True
            )
        except OSError:
            return  # no process can be started: the ranks will show it
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


def _main(name: str, job: str) -> int:
    """Ask the scheduler and print when the job ends, and the command that answered; print nothing when none does."""
    from ezpz.cluster import SCHEDULERS, probe
    from ezpz.cluster.questions import Questions
    from ezpz.cluster.scheduler import scheduler
    from ezpz.errors import EzpzError
    from ezpz.launch.host.process_tree import die_with_parent

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by an exception, so that the command is killed too
    die_with_parent(signal.SIGTERM)
    if name not in SCHEDULERS or os.getppid() == 1:
        return 1
    around = scheduler(name)
    environ = dict(os.environ)
    if not around.is_marked(environ):  # the job was found by this host's name
        environ[around.job_variables[0]] = job
    try:
        allocation = around.detect(environ, probe.read, Questions(_PATIENCE), more=True)
    except EzpzError:
        return 1
    if allocation and allocation.end_time:
        print(allocation.end_time, allocation.origin.get("end_time", name))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
