"""One rank waits in another collective than the others."""

import torch
import torch.distributed as dist

import ezpz

dist.init_process_group("gloo")
for step in range(5):
    ezpz.heartbeat()
    if step == 3 and dist.get_rank() == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(1))
print("never")
