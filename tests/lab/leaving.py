"""A rank that leaves with 0 while others need it, and one that then fails as torch does, without torch."""

import re
import sys

_PROGRAM = """
import os, sys, time
import ezpz
rank = int(os.environ["RANK"])
if rank == 1:
    for step in range(7):
        ezpz.heartbeat(step)
    sys.exit(0)
if rank == 0:
    time.sleep(0.5)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711.")
time.sleep(600)
"""
LEAVING = [sys.executable, "-c", _PROGRAM]


def check_leaving(done):
    """Rank 1 is named with its last step, once and as the cause; the exit code is that of the rank that failed."""
    assert done.returncode == 1, done.stderr
    (cause,) = [line for line in done.stderr.splitlines() if line.startswith("ezpz: rank ")]
    assert re.fullmatch(
        r"ezpz: rank 1 on host \S+ \(pid \d+\) exited with code 0, its last reported step 6, "
        r"while other ranks still waited for it"
        r"(; stopping the other ranks)?( \[log: .*\])?",
        cause,
    ), cause
    assert re.search(
        r"^ezpz: failed as well, later: rank 0 on host \S+ \(pid \d+\) exited with code 1$", done.stderr, re.MULTILINE
    )
