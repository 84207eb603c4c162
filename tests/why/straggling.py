"""A program whose ranks meet in every step; one of them is late, as its arguments say.

straggling.py KIND RANK SECONDS STEPS [COLLECTIVES]    KIND: sleep, core, loader or none; COLLECTIVES of a step: 1
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import ezpz

kind, late, seconds, steps = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
collectives = int(sys.argv[5]) if sys.argv[5:] else 1
torch.set_num_threads(1)
if kind == "core":  # each rank on a core of its own, that of the late one with others beside it
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
rank = ezpz.setup_torch()
values = torch.ones(1000)


class Items(torch.utils.data.Dataset):
    """Items that take long to read on one rank."""

    def __len__(self):
        return steps

    def __getitem__(self, index):
        if kind == "loader" and rank == late:
            time.sleep(seconds)
        return torch.ones(4)


def burn(amount):
    """Use the CPU for a while: the same work on every rank, however long that takes."""
    end = time.thread_time() + amount
    while time.thread_time() < end:
        pass


def hold_up():
    time.sleep(seconds)


others = []
if kind == "core" and rank == late:
    for _ in range(3):
        pid = os.fork()
        if not pid:
            while os.getppid() != 1:
                pass
            os._exit(0)
        others.append(pid)
for _ in torch.utils.data.DataLoader(Items(), batch_size=1):
    burn(0.03)
    if kind == "sleep" and rank == late:
        hold_up()
    for _ in range(collectives):
        dist.all_reduce(values)
        values.div_(dist.get_world_size())
for pid in others:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
ezpz.cleanup()
