"""Square layers under FSDP: `fsdp.py real|meta|plain LAYERS WIDTH BATCH STEPS`; prints what arithmetic says of it."""

import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import ezpz

how, *numbers = sys.argv[1:]
layers, width, batch, steps = map(int, numbers)
rank = ezpz.setup_torch()
with torch.device("meta" if how == "meta" else "cpu"):
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
if how != "plain":
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
if how == "meta":
    model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(steps):
    model(torch.ones(batch, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank={rank} world={ezpz.get_world_size()} local_rank={ezpz.get_local_rank()}")
