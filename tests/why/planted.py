"""Every trouble that tests plant in real ranks, and the cause that must stand first; and the score of `ezpz.why`.

A test that plants a trouble calls `judge` with its name. A wrong first cause counts as two misses, "I do not know" as
one. With ``EZPZ_WHY_SCORE=FILE`` each verdict is kept for docs/reliability.md, into which `make matrix` writes them.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from reliability.tables import keep

SCORE = "EZPZ_WHY_SCORE"

# Name of the trouble: the cause that must stand first (`Cause.cause`).
PLANTED = {
    "memory of a real cgroup, by a rank": "out-of-memory",
    "memory of a real cgroup, by a child of a rank": "out-of-memory",
    "memory of a real cgroup, under MPICH": "out-of-memory",
    "memory of a real cgroup, under srun": "out-of-memory",
    "a limit of the address space": "memory-refused",
    "a full disk, a checkpoint": "disk-full",
    "a full disk, ezpz.checkpoint": "disk-full",
    "a full disk, a shell's copy": "disk-full",
    "a full disk, an archive of torch": "disk-full",
    "a full /tmp": "disk-full",
    "SIGKILL by a person": "killed-by-signal",
    "SIGKILL by a person, under MPICH": "killed-by-signal",
    "SIGKILL by a person, under srun": "killed-by-signal",
    "SIGKILL by a person, the program under a shell": "killed-by-signal",
    "SIGTERM by a person to one rank": "killed-by-signal",
    "a crash in C": "crashed",
    "a device error in a traceback": "device-fault",
    "a device that has fallen off the bus": "device-fault",
    "no more memory on the device": "out-of-device-memory",
    "a loss that becomes NaN": "non-finite-loss",
    "a straggler that sleeps in each step": "straggler",
    "a straggler whose loader is slow": "straggler",
    "a straggler whose core is shared": "straggler",
    "a spike of one rank's loss": "loss-spike",
    "a loss that does not change any more": "loss-still",
    "equal data on two ranks": "same-batches",
    "an exception": "exception",
    "SIGKILL by a rank to itself": "killed-by-signal",
    "a silent exit with 0": "left-early",
    "uneven data: a rank leaves its loop": "other-collective",
    "a collective that one rank calls alone": "other-collective",
    "a tensor of another size": "other-sizes",
    "a hang in compute": "collective-missing",
    "a hang in I/O: a pipe": "collective-missing",
    "a hang in I/O: a frozen file system": "waits-for-files",
    "C code that keeps Python's lock": "holds-python",
    "a loader that gives no batch": "waits-for-data",
    "SIGSTOP": "stopped",
    "another model under DDP": "other-model",
    "a batch skipped under DDP": "other-collective",
    "a backward pass skipped under DDP": "other-collective",
}


def judge(name, causes, *, rank=None, where=""):
    """Fail unless the first cause is that of the table, of the rank if one is given; keep the verdict in any case.

    Args:
        name: The trouble, a key of `PLANTED`.
        causes: The causes as `Cause.as_json` has them, in order.
        rank: The rank at fault.
        where: What tells this one from others of the same name, such as ``4 ranks``.
    """
    expected = PLANTED[name]
    first = causes[0] if causes else {}
    found = first.get("cause")
    is_right = found == expected and (rank is None or first.get("rank") == rank)
    if os.environ.get(SCORE):
        verdict = "right" if is_right else "unknown" if not causes else "wrong"
        keep(
            Path(os.environ[SCORE]),
            f"{name} / {where}",
            [verdict, dt.datetime.now(dt.timezone.utc).date().isoformat(), found or ""],
        )
    assert is_right, f"{name}: expected {expected} of rank {rank}, found {causes}"
