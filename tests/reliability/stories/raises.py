"""A training loop of Lightning Fabric or of accelerate (first argument) that raises on one rank."""

import sys

import torch


def train(rank):
    weights = torch.ones(2, requires_grad=True)
    for step in range(3):
        if rank == 1 and step == 2:
            raise ValueError("loss is nan at step 2")
        weights.sum().backward()


if sys.argv[1] == "fabric":
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    train(fabric.global_rank)
    fabric.barrier()
else:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    train(accelerator.process_index)
    accelerator.wait_for_everyone()
