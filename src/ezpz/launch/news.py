"""What the leaders say, and what it means for the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ezpz.launch.run.failures import PASSED_ON, SHIM_KILLED, Failure, exit_code, how

if TYPE_CHECKING:
    from ezpz.launch.run.control import Event
    from ezpz.launch.run.supervisor import Supervisor

__all__ = ["hear"]

_REFUSED = 125


def hear(run: Supervisor, event: Event) -> None:
    """Take one line of a leader."""
    kind, index, told = event
    if kind in {"hello", "up", "partial"}:
        _came(run, kind, index, told)
    elif kind in {"stages", "finished", "idle", "stacks"}:
        _goes_on(run, kind, index, told)
    elif kind == "done":
        if told["stuck"]:
            pids, host = ", ".join(map(str, told["stuck"])), run.world.host(index)
            run.note(
                f"processes {pids} on host {host} do not end of SIGKILL: they wait in the kernel, often for a file system"
            )
    elif kind == "note":
        run.note(told["text"])
    else:
        _failure(run, kind, index, told)


def _came(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    if kind == "hello":
        name = str(told.get("host"))
        run.world.came(index, name)
        wrong = run.world.misplaced(index, name)
        if wrong:
            run.fail(Failure("world:", wrong, _REFUSED, time.time(), host=run.world.host(index)))
        for number in run.waiting_signals:
            run.control.order("signal", {index}, number=number)
        if run.killed:
            run.control.order("kill", {index})
    elif kind == "up":
        run.world.up(index, told)
        if run.world.complete:
            run.timers.pop("start", None)
    else:
        run.world.partly(index, told["have"])


def _goes_on(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    if kind == "stages":
        times = (told[name] - run.began for name in ("low", "median", "high"))
        run.stages.add(run.world.host(index), told["stage"], told["count"], *times)
    elif kind == "finished" and run.limits.leave is not None:
        run.timers.setdefault("leave", time.monotonic() + run.limits.leave)
        run.hangs.first_to_leave = told["rank"]
    elif kind == "idle":
        run.hangs.idle(run.world.host(index), told)
    elif kind == "stacks":
        run.hangs.answered(index, told)


def _failure(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    host, now = run.world.host(index), time.time()
    if kind == "ended":
        who = f"rank {told['rank']} on host {host}" + (f" (pid {told['pid']})" if told["pid"] else "")
        words = told["why"] if told["why"].startswith("cannot") else how(told["code"])
        if told["why"].startswith((SHIM_KILLED, PASSED_ON)):
            words += f": {told['why']}"
        run.fail(
            Failure(
                who,
                words,
                exit_code(told["code"]),
                told["at"],
                rank=told["rank"],
                host=host,
                pid=told["pid"],
                status=told["code"],
                words=told["words"],
                shown=told["shown"],
                why=told["why"],
            )
        )
    elif kind == "mismatch":
        run.world.strangers(told["host"], told["worlds"])
        run.fail(Failure("world:", "", _REFUSED, now, why="mismatch"))
    elif kind == "port" and not run.stopping:
        run.port_is_taken()
    elif kind == "lost":
        run.fail(
            Failure(f"host {host}", "is lost: its connection ended, or answered no more", _REFUSED, now, host=host)
        )
    elif kind == "refused":
        run.fail(Failure(f"host {host}", f"is lost: {told['text']}", _REFUSED, now, host=host))
