"""Train with two epochs of a DataLoader with a worker; note which ids each step of each attempt trained with.

    train_until_killed.py FOLDER ATTEMPT BATCH

A program of `test_killed_training.py`: rank files hold lines ``epoch step id id …``, written before the step is over.
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import ezpz
from ezpz.checkpoint import Checkpoints, choose
from ezpz.train import Loop

folder, attempt, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


class Numbers(Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class NoRows:
    """Takes the place of a history, whose files are another test's, and cost what a rank costs."""

    def update(self, row, **_):
        pass

    def sync(self):
        pass


ezpz.setup_torch(seed=1)
torch.set_num_threads(1)
choice = choose("auto", name="killed", outdir=str(folder))
model = ezpz.wrap_model(torch.nn.Linear(1, 1), dtype="fp32")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = ezpz.prepare(DataLoader(Numbers(), batch_size=size, shuffle=True, num_workers=1))
noted = (folder / f"attempt-{attempt}-rank-{ezpz.get_rank()}").open("a")
done = [0]


def compute_loss(model, batch):
    if loader.samples:
        ids = " ".join(str(int(number)) for number in batch.flatten())
        # The place is after the step already, and after the epoch with its last one.
        noted.write(f"{loader.epoch} {loader.consumed} {done[0]} {ids}\n")
        noted.flush()
    return model(batch).square().mean()


def ended():
    done[0] += 1


checkpoints = Checkpoints(folder, model=model, optimizer=optimizer)
loop = Loop(
    *(model, optimizer, compute_loss),
    data=loader,
    epochs=2,
    checkpoints=checkpoints,
    save_every=2,
    resume=choice.checkpoint,
    ended=ended,
    log=lambda _: None,
)
done[0] = loop._start  # the step of the checkpoint, which the run tells at its end alone
if ezpz.get_rank() == 0:
    (folder / f"attempt-{attempt}-start").write_text(str(loop._start))
loop.run(NoRows())
if ezpz.get_rank() == 0:
    (folder / "finished").write_text(str(attempt))
ezpz.cleanup()
os._exit(0)
