"""One rank fails, the others wait: ``end_one_rank.py HOW WHEN OTHERS``, a script of `test_endings.py`.

HOW: raise, exit (3), kill. WHEN: before, during or after setup_torch. OTHERS: collective or sleep, what they do
afterwards.
"""

import os
import signal
import sys
import time

import ezpz

how, when, others = sys.argv[1:4]


def fail(*_):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    raise ValueError("no such luck")


rank = ezpz.get_rank()
if rank == 1 and when == "before":
    fail()
if when == "during":
    import torch  # noqa: F401  # so that the time below is spent in the meeting

    if rank == 1:
        signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, 1.5)
    if rank == 0:
        time.sleep(600 if others == "sleep" else 4)
ezpz.setup_torch()
if rank == 1 and when == "after":
    fail()
if rank == 0 and others == "sleep":
    time.sleep(600)
ezpz.barrier()
ezpz.cleanup()
