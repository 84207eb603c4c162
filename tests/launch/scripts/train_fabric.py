"""Teach a small classifier two interleaved half circles with Lightning Fabric.

torchrun --nproc-per-node 2 train_fabric.py
"""

import math

import torch
from lightning_fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def half_circles(count):
    angle = torch.rand(count) * math.pi
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    points = torch.cat([upper, lower]) + 0.1 * torch.randn(2 * count, 2)
    return TensorDataset(points, torch.arange(2).repeat_interleave(count))


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    seed_everything(42, verbose=False)

    loader = fabric.setup_dataloaders(DataLoader(half_circles(32), batch_size=8, shuffle=True))
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    model.train()
    for step, (points, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        fabric.backward(loss)
        optimizer.step()
        fabric.print(f"step {step} loss {loss.item():.17g}", flush=True)

    model.eval()
    with torch.no_grad():
        points, labels = half_circles(100_000).tensors
        loss = nn.functional.cross_entropy(model(points), labels)
    fabric.print(f"validation loss {loss.item():.17g}", flush=True)


if __name__ == "__main__":
    main()
