"""Three ranks that hang, each in its own way."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import ezpz


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(600)


rank = ezpz.setup_torch()
first, last = dist.new_group([0, 1]), dist.new_group([1, 2])
dist.all_reduce(torch.ones(1))
Path(f"ready-{rank}").touch()
if rank == 0:
    dist.all_reduce(torch.ones(1), group=first)
elif rank == 1:
    next(iter(DataLoader(Slow(), num_workers=1)))
else:
    dist.barrier(group=last)
