"""The programs that started the ranks, when the ranks have ended or nothing more is heard of them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from ezpz.launch.run.failures import Failure

if TYPE_CHECKING:
    from ezpz.launch.run.supervisor import Supervisor

__all__ = ["end_launcher", "end_unheard", "give_up", "judge_launcher", "not_started", "release"]

_REFUSED = 125
_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does
_LINGERS_AFTER_FAILURE = 1.5  # it may wait for a host that is lost


def release(run: Supervisor) -> None:
    """Let shims go when all hosts are done; then mpiexec has nothing left to wait for."""
    if not (run.world.complete or run.stopping):
        return  # other hosts still start
    heard = set(run.control.heard)
    if heard and heard <= run.control.done and "lingers" not in run.timers and run.children.alive:
        run.control.order("release", codes=run.plan.tells_codes)
        run.timers["lingers"] = time.monotonic() + (_LINGERS_AFTER_FAILURE if run.stopping else _LINGERS)


def judge_launcher(run: Supervisor) -> None:
    """The launcher's program has ended and leaders have had their time: what remains is its own fault."""
    if run.children.alive:
        return
    if not set(run.control.heard) <= run.control.done:
        if not run.stopping:
            run.blame(run.children.failure())
        run.kill()
    elif not run.stopping and not run.outcome.failures and not run.children.unsupervised:
        code = next((child.code for child in run.children.all if child.code and not child.by_us), 0)
        if code or not run.world.complete:
            run.outcome.failures.append(run.children.failure())


def give_up(run: Supervisor) -> None:
    """Wait no longer for hosts that say nothing after SIGKILL, nor for the programs that started them."""
    run.children.kill(signal.SIGKILL, group=True)
    silent = [run.world.host(index) for index in run.control.heard if index not in run.control.done]
    if silent:
        run.note(f"{', '.join(silent[:3])} did not say that all is over there")
    run.control.done.update(run.control.heard)
    run.control.give_up()


def end_launcher(run: Supervisor) -> None:
    """End the programs that go on although nothing is left for them to do."""
    run.children.kill(signal.SIGKILL if run.killed else signal.SIGTERM)
    if run.children.alive:
        run.killed = True
        run.timers["lingers"] = time.monotonic() + _LINGERS_AFTER_FAILURE


def end_unheard(run: Supervisor) -> None:
    """End the programs that start ranks where no leader has come so far: there is nobody to be gentle with."""
    if not run.control.heard:
        run.children.kill(signal.SIGTERM)


def not_started(run: Supervisor) -> None:
    """Some ranks have not come up in time."""
    if not run.stopping:
        text = run.world.missing(run.limits.start or 0.0) + run.hint()
        run.blame(Failure("world:", text, _REFUSED, time.time()))
