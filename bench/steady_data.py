"""The steady step with a DataLoader of two workers: `ezpz.train.Loop(data=)` beside plain torch, accelerate and Fabric.

Each side trains its own copy of one network on images that two workers crop, flip and scale, in a process of its own;
the sides take turns of some steps, and their order changes from turn to turn. What counts is CPU time per step, of
the process and its workers. A pair is a turn of ours and the turn of another side in the same round; shown are the
median of other / ours over pairs (1: as fast) and its 95 % interval by the bootstrap. The Loop records every step and
prints every tenth; the others do neither. `ezpz.prepare` is a loop of one's own over the loader that it returns.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from steady_step import interval, markdown
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import ezpz
from ezpz.models import CNN
from ezpz.train import Loop

HEADS = ("steady step, 2 workers", "other", "ezpz", "other / ezpz", "95 % interval", "wall", "rounds", "budget")
BATCH, IMAGES, PIXELS = 32, 4096, 28
BUDGETS = {"plain torch": 0.99, "accelerate": 1.0, "Fabric": 1.0}
NEEDS = {"accelerate": "accelerate", "Fabric": "lightning_fabric"}
TURN = 8  # steps
ENDLESS = 10**6


class Images(Dataset):
    """Noise with a border, of which each sample is a random crop, flipped in half of the cases."""

    def __init__(self):
        self.pixels = torch.randint(256, (IMAGES, 1, PIXELS + 4, PIXELS + 4), dtype=torch.uint8)
        self.labels = torch.randint(10, (IMAGES,))

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        top, left, flip = torch.randint(5, (3,)).tolist()
        image = self.pixels[index, :, top : top + PIXELS, left : left + PIXELS]
        image = image.flip(-1) if flip % 2 else image
        return image.to(torch.float32) / 255.0, self.labels[index]


class Side:
    """One way to train, in a process of its own, which runs for some steps at a time."""

    def __init__(self, name, folder):
        spawn = multiprocessing.get_context("spawn")
        self._line, theirs = spawn.Pipe()
        self._process = spawn.Process(target=train_in_turns, args=(name, theirs, folder))
        self._process.start()
        theirs.close()

    def turn(self, steps):
        """Seconds per step by each clock."""
        self._line.send(steps)
        return self._line.recv()  # EOFError: it has failed, and its traceback is on stderr

    def end(self):
        self._process.kill()  # its workers end when they see that
        self._process.join()


class Turns:
    """Counts the steps of a turn, and waits for the next one."""

    def __init__(self, line):
        self._line, self._left, self._steps = line, 0, 0
        self._begin()

    def _begin(self):
        self._spent = self._cpu() if self._steps else 0.0
        self._left = self._steps = self._line.recv()
        self._start = time.perf_counter()

    @staticmethod
    def _cpu():
        return time.process_time() + sum(map(on_cpu, multiprocessing.active_children()))

    def step(self):
        """Called by the training after each of its steps."""
        self._left -= 1
        if self._left:
            return
        wall, spent = time.perf_counter() - self._start, self._cpu() - self._spent
        self._line.send({"wall": wall / self._steps, "cpu": spent / self._steps})
        self._begin()


def train_in_turns(name, line, folder):
    """What a side's process does until it is ended."""
    log = Path(folder, f"{name} log").open("w")  # noqa: SIM115  # where a job's lines go, a file
    with contextlib.redirect_stdout(log):
        torch.set_num_threads(1)
        SIDES[name](Turns(line).step, Path(folder, "run"))


def on_cpu(process):
    """Seconds that all threads of a process have run, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def parts():
    torch.manual_seed(1)
    model = CNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    return model, optimizer, loader


def compute_loss(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def plain_torch(ended, _folder):
    """What a person writes who wants to train and nothing else."""
    model, optimizer, loader = parts()
    model.train()
    while True:
        for batch in loader:
            compute_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ended()


def with_accelerate(ended, _folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*parts())
    model.train()
    while True:
        for batch in loader:
            accelerator.backward(compute_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ended()


def with_fabric(ended, _folder):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model, optimizer, loader = parts()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    model.train()
    while True:
        for batch in loader:
            fabric.backward(compute_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ended()


def with_prepare(ended, _folder):
    ezpz.setup_torch(seed=1)
    model, optimizer, loader = parts()
    model, loader = ezpz.wrap_model(model, "none"), ezpz.prepare(loader)
    model.train()
    while True:
        for batch in loader:
            (compute_loss(model, batch) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ended()


def with_ezpz(ended, folder):
    ezpz.setup_torch(seed=1)
    model, optimizer, loader = parts()
    loop = Loop(model, optimizer, compute_loss, data=loader, steps=ENDLESS, ended=ended)
    loop.run(ezpz.History("steady", folder))


SIDES = {
    "ezpz": with_ezpz,
    "plain torch": plain_torch,
    "accelerate": with_accelerate,
    "Fabric": with_fabric,
    "ezpz.prepare": with_prepare,
}


def measure(sides, seconds):
    """``[{side: {clock: seconds per step}}]``, one per round."""
    names, found = list(sides), []
    for name in names * 2:  # twice before it counts
        sides[name].turn(TURN)
    end = time.perf_counter() + seconds
    while len(found) < 12 or time.perf_counter() < end:
        shift = len(found) % len(names)
        order = names[shift:] + names[:shift]
        order = order[::-1] if (len(found) // len(names)) % 2 else order
        found.append({name: sides[name].turn(TURN) for name in order})
    return found


def row(name, rounds):
    ratios = [each[name]["cpu"] / each["ezpz"]["cpu"] for each in rounds]
    wall = statistics.median(each[name]["wall"] / each["ezpz"]["wall"] for each in rounds)
    low, high = interval(ratios)
    times = (f"{statistics.median(each[side]['cpu'] for each in rounds) * 1e3:.2f} ms" for side in (name, "ezpz"))
    figures = (f"{statistics.median(ratios):.3f}", f"{low:.3f} to {high:.3f}", f"{wall:.3f}", str(len(rounds)))
    budget = BUDGETS.get(name)
    if budget is None:
        return (name, *times, *figures, "")
    verdict = "missed" if high < budget else "held" if low >= budget or budget == 1.0 else "not decided"
    return (name, *times, *figures, f"{'reaches ' if budget == 1.0 else ''}{budget}, {verdict}")


def plain(cells):
    return " ".join(
        f"{cell:<{width}}" for cell, width in zip(cells, (24, 11, 11, 13, 17, 7, 7, 20), strict=True)
    ).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, about")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    options = parser.parse_args()
    names = [name for name in SIDES if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    with tempfile.TemporaryDirectory(prefix="ezpz-steady-") as folder:
        sides = {name: Side(name, folder) for name in names}
        try:
            rounds = measure(sides, options.seconds)
        finally:
            for side in sides.values():
                side.end()
    rows = [row(name, rounds) for name in sides if name != "ezpz"]
    line = markdown if options.markdown else plain
    print(line(HEADS), *(["|---" * len(HEADS) + "|"] if options.markdown else []), *map(line, rows), sep="\n")
    return any(each[-1].endswith("missed") for each in rows)


if __name__ == "__main__":
    sys.exit(main())
