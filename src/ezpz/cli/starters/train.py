"""Train a small network on handwritten digits, on any number of ranks: change what is marked, and it is yours.

    launch python3 train.py               a rank per device of this machine or job
    launch -n 2 python3 train.py --steps 50
    ezpz open                             what happened, afterwards

It saves its state every 100 steps and when a signal says that the job's time is over, and the next start continues
there; `--outdir D` names the folder of the run.
"""

import argparse

import torch
from torch import nn

import ezpz
from ezpz.checkpoint import Checkpoints, choose
from ezpz.train import BatchIndices, Loop, load_digits

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200, help="steps to train (200)")
parser.add_argument("--batch-size", type=int, default=64, help="samples per step and rank (64)")
parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (0.001)")
parser.add_argument("--outdir", default="outputs/train", help="folder of the run (outputs/train)")


def compute_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss of this rank's batch."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    """Train on every rank."""
    options = parser.parse_args()
    ezpz.setup_torch(seed=1)  # this rank's device, and the process group

    # Your model and optimizer: "ddp" may be fsdp, hsdp or zero1, on whatever device this is.
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = ezpz.wrap_model(network, "ddp")
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=options.lr)

    # Your data: which samples this rank takes at a position of the training is a function of the position, so a
    # training that continues sees what an unbroken one would have seen.
    images, labels = load_digits()
    indices = BatchIndices(len(images), options.batch_size, rank=ezpz.get_rank(), world_size=ezpz.get_world_size())

    def batch(position: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = indices(position)
        return images[chosen], labels[chosen]

    choice = choose("auto", name="train", outdir=options.outdir)  # what an earlier start has saved
    with ezpz.History("train", outdir=choice.outdir) as history:
        loop = Loop(
            model,
            optimizer,
            compute_loss,
            batch,
            steps=options.steps,
            batch_size=options.batch_size,
            checkpoints=Checkpoints(history.outdir, model=model, optimizer=optimizer),
            save_every=100,
            resume=choice.checkpoint,
        )
        loop.run(history)
    ezpz.cleanup()


if __name__ == "__main__":
    main()
