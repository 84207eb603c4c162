"""Fit a small regression with DistributedDataParallel.

torchrun --nproc-per-node 2 train_ddp.py [EPOCHS]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def samples(count):
    inputs = torch.randn(count, 20)
    return TensorDataset(inputs, inputs[:, :1] * 3 - inputs[:, 1:2].square())


def train(model, loader, optimizer, device, epochs):
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.17g}", flush=True)


def validate(model, data, device):
    inputs, targets = (tensor.to(device) for tensor in data.tensors)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(inputs), targets)
    if dist.get_rank() == 0:
        print(f"validation loss {loss.item():.17g}", flush=True)


def main(epochs):
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    data = samples(64)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if cuda else None)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))

    train(model, loader, torch.optim.AdamW(model.parameters(), lr=1e-2), device, epochs)
    validate(model.module, samples(100_000), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
