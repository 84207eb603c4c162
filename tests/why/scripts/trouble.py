"""Steps of one all_reduce each, in which one rank gets into trouble at one step: NAME RANK STEP [plain].

NAME "model", "continues" and "backward" train with DistributedDataParallel: one rank has a layer more, skips a batch,
or only its backward pass. "frozen" writes into the folder FROZEN, whose file system answers no more.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

NAME, BAD, AT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
IS_PLAIN = "plain" in sys.argv
if IS_PLAIN:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
else:
    import ezpz

    rank = ezpz.setup_torch()


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(600)


def trouble():
    """What goes wrong; tell whether the rank leaves its loop."""
    if NAME == "silent":
        os._exit(0)
    if NAME == "raises":
        raise ValueError("no such shard")
    if NAME == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if NAME == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while NAME == "computes":
        pass
    if NAME == "holds":
        re.match("(a+)+$", "a" * 60 + "b")  # the engine of Python's regular expressions releases no lock
    if NAME == "reads":
        shard = f"{os.environ['HOME']}/shard"
        os.mkfifo(shard)
        Path(shard).read_text()  # nobody ever writes into it
    if NAME == "frozen":
        Path(os.environ["FROZEN"], "shard").write_text("more")
    if NAME == "loader":
        next(iter(DataLoader(Slow())))
    if NAME == "skips":
        dist.barrier()
    return NAME == "uneven"


if NAME in {"model", "continues", "backward"}:
    layers = [torch.nn.Linear(4, 4) for _ in range(3 + (NAME == "model" and rank == BAD))]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))

for step in range(AT + 3):
    is_here = rank == BAD and step == AT
    if is_here and trouble():
        break
    if NAME in {"continues", "backward"}:
        if not is_here:
            model(torch.ones(4)).sum().backward()
        elif NAME == "backward":
            model(torch.ones(4)).sum()
        ezpz.heartbeat(step)
        continue
    size = 6 if is_here and NAME == "sizes" else 4
    dist.all_reduce(torch.ones(size))
    if not IS_PLAIN:
        ezpz.heartbeat(step)
dist.barrier()
dist.destroy_process_group()
