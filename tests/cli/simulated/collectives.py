"""What a script may do between ranks: nothing hangs, and objects stay what they are here."""

import os

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ezpz

rank, world = ezpz.setup_torch(), ezpz.get_world_size()
assert (rank, world) == (dist.get_rank(), dist.get_world_size())
dist.barrier()
gathered = [None] * world
dist.all_gather_object(gathered, {"rank": rank})
assert gathered == [{"rank": rank}] * world
objects = [{"rank": rank}]
dist.broadcast_object_list(objects, src=0)
assert objects == [{"rank": rank}]
value = torch.ones(3)
dist.all_reduce(value)
assert value.shape == (3,)
dist.new_group([0, rank])
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model.register_comm_hook(None, None)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
if not os.fork():
    raise SystemExit(0)  # a child that ends as any script does, and is not the rank
os.wait()
dist.destroy_process_group()
print("survived")
