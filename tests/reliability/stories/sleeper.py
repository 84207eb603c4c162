"""One rank sleeps where the others reduce; it knows nothing of ezpz."""

import time

import torch
import torch.distributed as dist


def oversleep():
    time.sleep(600)


dist.init_process_group("gloo")
for step in range(5):
    if step == 3 and dist.get_rank() == 1:
        oversleep()
    dist.all_reduce(torch.ones(1))
print("never")
