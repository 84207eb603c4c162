"""Layers of 16 MB under DDP with AdamW, three steps; prints by how much this process grew at most."""

from pathlib import Path

import torch
from torch import nn

import ezpz


def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def train(model, steps):
    optimizer = ezpz.make_adamw(model, lr=1e-3)
    for _ in range(steps):
        width = next(model.parameters()).shape[1]
        model(torch.ones(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


ezpz.setup_torch()
torch.set_num_threads(1)
train(ezpz.wrap_model(nn.Linear(8, 8), "ddp"), 2)  # what the first use of everything takes is not the model's
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forget the peak
with torch.device("meta"):
    network = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))
train(ezpz.wrap_model(network, "ddp"), 3)
print(f"grew={resident('VmHWM') - before}")
