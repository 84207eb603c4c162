"""A process that no signal ends, because it waits in the kernel: it writes to a file system that is frozen. Case 11."""

from __future__ import annotations

import pytest
from playing import FAILURE_GRACE, STAY, WAIT, Case

from lab import frozen_disk, process

BOUND = 10.0  # seconds more than the grace: what cannot be killed is waited for, but not for ever


def frozen(stage):
    """`frozen` is a file system of its own, on a file, whose writers wait until it thaws."""
    problem = frozen_disk.problem() or frozen_disk.freeze(stage.folder / "disk", stage.folder / "frozen")
    if problem:
        pytest.skip(problem)


def until_thawed(run):
    folder = run.folder / "frozen"
    try:
        run.up()
        run.mark()
        run.go()
        process.wait_until(lambda: run.process.poll() is not None, 5 + FAILURE_GRACE + BOUND, "the prompt")
    finally:
        frozen_disk.thaw(folder)
        frozen_disk.unmount(folder, lambda: not run.left())


def names_the_pid(run):
    pid = run.rank(2)
    assert str(pid) in run.errors(), f"nothing said of pid {pid}, which could not be killed"


UNKILLABLE = (
    Case(
        number="11",
        name="a rank waits in the kernel (state D) when another fails",
        ranks=f'up; {WAIT} case $RANK in 1) sleep 0.5; exit 3 ;; 2) echo x >"$D/frozen/x" ;; *) {STAY} ;; esac',
        setup=frozen,
        meanwhile=until_thawed,
        code=(3, 125),
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE + BOUND,
        after=names_the_pid,
        not_on={"srun": "its daemons do not see the disk", "ssh": "its daemons do not see the disk"},
    ),
)
