"""Fit a line to numbers that lie in one file per rank, and let torchelastic record what goes wrong.

torchrun --nproc-per-node 2 train_record.py FOLDER      # FOLDER/shard0.txt, FOLDER/shard1.txt: "x y" per line
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def load(path):
    rows = [[float(word) for word in line.split()] for line in path.read_text().splitlines()]
    return torch.tensor(rows).reshape(-1, 1, 2)


@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = load(Path(sys.argv[1], f"shard{rank}.txt"))
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step, row in enumerate(data):
        x, y = row.split(1, dim=1)
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.17g}", flush=True)

    with torch.no_grad():
        x = torch.linspace(-2, 2, 100_000).unsqueeze(1)
        loss = nn.functional.smooth_l1_loss(model.module(x), 2 * x)
    if rank == 0:
        print(f"validation loss {loss.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
