"""Train with three epochs of a DataLoader; note which ids each step of each attempt trained with.

    train_until_killed.py FOLDER ATTEMPT BATCH map|stream|state|parts|batches

Data with a length are read by a worker; a stream, whose samples are tensors and which shuffles itself, by a worker or
by the process, and one of the two kinds has a state. A stream in parts shares itself out over two workers of each rank.
Batches are those of a batch sampler, of two sizes.

A program of `test_killed_training.py`: rank files hold lines ``epoch step id id …``, written before the step is over.
"""

import os
import random
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import ezpz
from ezpz.checkpoint import Checkpoints, choose
from ezpz.train import Loop

folder, attempt, size, kind = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
SAMPLES, EPOCHS = 60, 3


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    """Draws an order from the process' own generators, which `prepare` sees to."""

    def __iter__(self):
        order = list(range(SAMPLES))
        random.shuffle(order)
        for number in torch.tensor(order)[torch.randperm(SAMPLES)]:
            yield number[None].float()


class WithState(IterableDataset):
    """Knows its place, and has another order in each epoch."""

    epoch = at = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        while self.at < SAMPLES:
            self.at += 1
            yield order[self.at - 1][None].float()
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Parts(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        order = torch.randperm(SAMPLES)[info.id :: info.num_workers] if info else torch.randperm(SAMPLES)
        yield from (number[None].float() for number in order)


class Batches:
    """A batch sampler."""

    def __iter__(self):
        order = torch.randperm(SAMPLES).tolist()
        while order:
            count = size + len(order) % 2
            yield order[:count]
            order = order[count:]


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
data = {"map": Numbers, "stream": Stream, "state": WithState, "parts": Parts, "batches": Numbers}[kind]()
workers = {"map": 1, "parts": 2}.get(kind, attempt % 2)
how = {"batch_sampler": Batches()} if kind == "batches" else {"batch_size": size}
loader = ezpz.prepare(DataLoader(data, shuffle=True if kind == "map" else None, num_workers=workers, **how))
noted = (folder / f"attempt-{attempt}-rank-{ezpz.get_rank()}").open("a")
done = [0]


def compute_loss(model, batch):
    if loader.samples:
        ids = " ".join(str(int(number)) for number in batch.flatten())
        # The place is after the step already, and after the epoch with its last one.
        noted.write(f"{loader.epoch} {loader.consumed} {done[0]} {ids}\n")
        noted.flush()
    torch.rand(ezpz.get_rank() + 1)  # a rank that draws more than others
    return model(batch).square().mean()


def ended():
    done[0] += 1


checkpoints = Checkpoints(folder, model=model, optimizer=optimizer)
loop = Loop(
    *(model, optimizer, compute_loss),
    data=loader,
    epochs=EPOCHS,
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
