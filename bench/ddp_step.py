"""One training step of a small model on two ranks in plain torch, as torchrun's documentation writes it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def step():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,)))
    loss.backward()
    optimizer.step()


dist.init_process_group("gloo")
step()  # a function, so that the model is gone at the end: gloo's threads abort the process less often (torch 2.13)
dist.barrier()
dist.destroy_process_group()
