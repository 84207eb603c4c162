"""The programs that started the ranks, when the ranks have ended or nothing more is heard of them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.launch.supervise import Supervisor

__all__ = ["end_launcher", "give_up", "judge_launcher", "release"]

_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does


def release(run: Supervisor) -> None:
    """Let shims go when all hosts are done; then mpiexec has nothing left to wait for."""
    if not (run.world.complete or run.stopping):
        return  # other hosts still start
    heard = set(run.control.heard)
    if heard and heard <= run.control.done and "lingers" not in run.timers and run.children.alive:
        run.control.order("release", codes=run.plan.tells_codes)
        run.timers["lingers"] = time.monotonic() + _LINGERS


def judge_launcher(run: Supervisor) -> None:
    """The launcher's program has ended and leaders have had their time: what remains is its own fault."""
    if run.children.alive:
        return
    if not set(run.control.heard) <= run.control.done:
        if not run.stopping:
            run.blame(run.children.failure())
        run.kill()
    elif not run.stopping and not run.outcome.failures and not run.children.unsupervised:
        code = next((child.code for child in run.children.all if child.code), 0)
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
    run.children.kill(signal.SIGKILL if run.killed else signal.SIGTERM)
    if run.children.alive:
        run.killed = True
        run.timers["lingers"] = time.monotonic() + _LINGERS / 2
