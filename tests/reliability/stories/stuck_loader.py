"""A worker of one rank's data loader never delivers; the rank waits in its loader, and the others for the rank."""

import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import ezpz


class Samples(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 9 and dist.get_rank() == 1:
            time.sleep(600)
        return torch.ones(1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for batch in DataLoader(Samples(), batch_size=2, num_workers=1):
        ezpz.heartbeat()
        dist.all_reduce(batch)
    print("never")
