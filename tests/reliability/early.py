"""Processes that die young: `launch` in its first two seconds, the launcher that it has started, a shim that has just
begun.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from functools import partial

from playing import FAILURE_GRACE, NO_LAUNCHER, NO_SHIM, STAY, Case, fail
from runs import parent_of

from lab import process, seed

MOMENTS = [round(0.05 * number, 2) for number in range(1, 41)]  # seconds
LEFT = 5.0  # seconds until the last process is gone
ABSENT = 3.0  # seconds in which an agent looks for ranks that cannot come any more
OTHERS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT)
_SHIM = re.compile(r"\S*python\S* (-\S+ )*\S*run_shim\.py ")


def hit(find, number, moment, run):
    """Send a signal to what `find` returns, so many seconds after it was found."""
    target = find(run)
    time.sleep(moment)
    run.mark()
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, number)


def itself(run):
    return run.pid


def foreign_launcher(run):
    """What the launch has started to start ranks, as soon as it is there; one that tells its version came before."""
    return _found(run, lambda pid, line: parent_of(pid) == run.pid and re.search(r"run_shim|start_agent", line))


def first_shim(run):
    """A shim, as soon as it is a program of its own."""
    return _found(run, lambda _, line: _SHIM.match(line))


def _found(run, is_meant):
    def find():
        if run.process.poll() is not None:
            raise AssertionError(f"the launch ended with {run.process.returncode} before it was hurt")
        return min((pid for pid, line in run.left().items() if is_meant(pid, line)), default=0)

    return process.wait_until(find, 20, "a process to hurt", every=0.0)


def no_imports_shown(run):
    errors = run.errors()
    for words in ("importlib", "KeyboardInterrupt"):
        if words in errors:
            fail(f"{words} on the screen")


def _kill(name, find, number, moment, **more):
    return Case(
        number="I",
        name=f"{number.name} to {name} after {moment:.2f} s",
        ranks=STAY,
        meanwhile=partial(hit, find, number, moment),
        last=LEFT,
        **more,
    )


def _others(day):
    """Ten moments, and the signal of each."""
    return [(moment, seed.pick(day, f"signal {moment}", OTHERS)) for moment in MOMENTS[1::4]]


# torchrun ends the other shims by a SIGTERM of its own.
_DIED_YOUNG = {"grace": FAILURE_GRACE + ABSENT, "not_on": NO_SHIM, "after": no_imports_shown}

_UNDER_LAUNCHER = {"grace": FAILURE_GRACE, "not_on": NO_LAUNCHER}

EARLY = {
    "SIGKILL to `launch`, 0.05 to 2 s after its start": [
        _kill("launch", itself, signal.SIGKILL, moment, code=-signal.SIGKILL) for moment in MOMENTS
    ],
    "SIGSEGV, SIGABRT or SIGQUIT to `launch`, as early": [
        _kill("launch", itself, number, moment, code=-number) for moment, number in _others(seed.of_the_day())
    ],
    "SIGKILL to `mpiexec`, `srun`, `torchrun`, 0 to 2 s after its start": [
        _kill(
            "what starts ranks",
            foreign_launcher,
            signal.SIGKILL,
            moment - 0.05,
            code=125,
            grace=FAILURE_GRACE,
            not_on=NO_LAUNCHER,
        )
        for moment in MOMENTS
    ],
    "SIGKILL to a shim in its first 0.1 s": [
        _kill("a young shim", first_shim, signal.SIGKILL, moment, code=(125, 137), **_DIED_YOUNG)
        for moment in (0.0, 0.01, 0.02, 0.04, 0.08)
    ],
    "SIGINT to a shim in its first 0.1 s": [
        _kill("a young shim", first_shim, signal.SIGINT, moment, code=(125, 130, 137, 143), **_DIED_YOUNG)
        for moment in (0.0, 0.01, 0.02, 0.04, 0.08)
    ],
}
