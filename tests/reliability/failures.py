"""Ranks that fail, end early or leave something behind: cases 1 to 11."""

from __future__ import annotations

import signal

from playing import (
    FAILURE_GRACE,
    STAY,
    WAIT,
    Case,
    fail,
    files,
    go,
    kill,
    up_only,
)
from runs import fact

from lab import process

KILL = signal.SIGKILL
LOOP = "while :; do sleep 0.1; done"


def one(does, others=STAY, rank=1):
    """One rank does something when all are there; the others stay."""
    return f'up; {WAIT} if [ "$RANK" = {rank} ]; then {does}; else {others}; fi'


def two_fail(run):
    """Rank 1 with 3, and rank 2 with 5 when that one is surely gone: the first in time counts."""
    victim = run.up()[1][0]
    run.mark()
    run.go()
    process.wait_until(lambda: not fact(victim, "stat"), 5, "the end of rank 1", every=0.005)


FAILURES = (
    Case(
        number="1",
        name="one rank exits with 3, the others are blocked",
        ranks=one("exit 3"),
        meanwhile=go,
        code=3,
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE,
        core=True,
    ),
    Case(
        number="2",
        name="two ranks fail, with 3 and then 5",
        ranks=f'up; {WAIT} case $RANK in 1) exit 3 ;; 2) trap "" TERM; sleep 0.3; exit 5 ;; *) {STAY} ;; esac',
        meanwhile=two_fail,
        code=3,
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE,
    ),
    Case(
        number="3",
        name="a rank is killed with SIGKILL, as for want of memory",
        ranks=f"up; {STAY}",
        meanwhile=kill(lambda run: run.rank(1), KILL),
        code=137,
        cause="{rank1} was killed by SIGKILL",
        grace=FAILURE_GRACE,
        core=True,
    ),
    Case(
        number="4",
        name="a rank dies of SIGSEGV",
        ranks=one("kill -SEGV $BASHPID"),
        meanwhile=go,
        code=139,
        cause="{rank1} was killed by SIGSEGV",
        grace=FAILURE_GRACE,
    ),
    Case(
        number="5",
        name="a rank ends with 0 long before the others",
        ranks='up; [ "$RANK" = 1 ] && exit 0; sleep 2; echo yes >"$D/done.$RANK"',
        meanwhile=up_only,
        code=0,
        after=lambda run: (
            files(run, "done.*") == {"done.0": ["yes"], "done.2": ["yes"]} or fail("the others were stopped")
        ),
    ),
    Case(
        number="5",
        name="the same with --exit-timeout 1",
        ranks=f'up; [ "$RANK" = 1 ] && exit 0; {STAY}',
        options=("--exit-timeout", "1"),
        meanwhile=up_only,
        code=124,
        cause=r"^ezpz: (?!.*asking).*--exit-timeout",
        grace=FAILURE_GRACE + 1,
    ),
    Case(number="6", name="all ranks end with 0", ranks=f"up; {WAIT} exit 0", meanwhile=go, code=0),
    Case(
        number="8",
        name="ranks ignore SIGTERM when another fails",
        ranks=one("exit 4", f"trap '' TERM; {LOOP}"),
        meanwhile=go,
        code=4,
        cause="{rank1} exited with code 4",
        grace=FAILURE_GRACE,
        core=True,
    ),
    Case(
        number="9",
        name="a rank leaves a daemon in a session of its own, and ends well",
        ranks=f"up; {WAIT} setsid sleep 600 >/dev/null 2>&1 & {WAIT} exit 0",
        meanwhile=go,
        code=0,
        core=True,
    ),
    Case(
        number="9",
        name="a daemon of a rank that forked twice, and another rank fails",
        ranks=one("(setsid bash -c 'trap \"\" TERM HUP; sleep 600 & sleep 600' &); sleep 0.3; exit 3"),
        meanwhile=go,
        code=3,
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE,
    ),
    Case(
        number="10",
        name="a grandchild holds the output of a rank that has ended",
        ranks=f"up; {WAIT} sleep 600 & exit 0",
        meanwhile=go,
        code=0,
    ),
    Case(
        number="11",
        name="a stopped rank (SIGSTOP) when another fails",
        ranks=one("exit 3", 'if [ "$RANK" = 2 ]; then kill -STOP $BASHPID; fi; ' + STAY),
        meanwhile=go,
        code=3,
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE,
    ),
)
