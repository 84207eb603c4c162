"""Signals to what stands between `launch` and a rank: the shim, and the launcher that has started it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial

from early import foreign_launcher
from playing import FAILURE_GRACE, NO_LAUNCHER, NO_SHIM, WAIT, Case, fail
from runs import fact

from lab import process

SIGNALS = range(1, 35)
STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
ENDS = 3.0  # seconds for mpiexec to end its ranks
HELD = f"up; {WAIT} exit 0"


def to_shim(number, run):
    """A shim that is held goes on afterwards, and one that takes no notice ends with its rank."""
    run.up()
    victim = run.shim(1)
    run.mark()
    os.kill(victim, number)
    time.sleep(0.3)
    with contextlib.suppress(ProcessLookupError):
        if number in STOPPING and fact(victim, "comm") == "ezpz-shim":
            os.kill(victim, signal.SIGCONT)
    run.go()


def to_launcher(number, run):
    run.up()
    target = foreign_launcher(run)
    os.kill(target, number)
    with contextlib.suppress(AssertionError):
        process.wait_until(lambda: run.process.poll() is not None, ENDS, "the end of the launch", every=0.02)
    run.mark()
    run.go()


def no_false_question(run):
    if "MPI_Abort" in run.errors():
        fail("MPI_Abort is named, which nobody has called")


def _name(number):
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _case(name, meanwhile, number, **more):
    return Case(
        number="K",
        name=f"{_name(number)} to {name}",
        ranks=HELD,
        meanwhile=partial(meanwhile, number),
        grace=FAILURE_GRACE,
        after=no_false_question,
        **more,
    )


SHIMS = {
    "signals 1 to 34 to a shim": [
        _case("a shim", to_shim, number, code=(0, 125, 137, 128 + number), not_on=NO_SHIM) for number in SIGNALS
    ],
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT to `mpiexec`, `srun`, `torchrun`": [
        # Hydra passes signals on to the shims.
        _case("what starts ranks", to_launcher, number, code=(125, 137, 128 + number), not_on=NO_LAUNCHER)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    ],
}
