"""Saves in a child until it is killed at a random moment, again and again; a program of `test_checkpoint_files.py`.

    save_and_be_killed.py FOLDER KILLS

Forks, so that torch is imported once. After every kill the newest checkpoint must be found, be whole and hold the
weights of its step.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from ezpz.checkpoint import Checkpoints, describe, find_latest


def make(folder):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, Checkpoints(folder, model=model, optimizer=optimizer, keep=2)


def save_for_ever(folder, pipe):
    model, checkpoints = make(folder)
    step = checkpoints.load(checkpoints.latest) if checkpoints.latest else 0
    os.write(pipe, b"1")
    while True:
        step += 1
        with torch.no_grad():
            model.weight.fill_(step)
        checkpoints.save(step)


def main(folder, kills):
    random.seed(1)
    _, before = make(folder.with_name("before"))
    before.save(1)  # what torch imports late, it imports here
    begin = time.monotonic()
    before.load(before.save(2))
    once = time.monotonic() - begin
    steps = []
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_for_ever(folder, writer)
        os.read(reader, 1)
        time.sleep(random.uniform(0.5, 6) * once)  # in the first saves, however slow the disk is
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        latest = find_latest(folder)
        if latest is None:
            assert not steps
            continue
        model, checkpoints = make(folder)
        step = checkpoints.load(latest)
        assert latest == checkpoints.latest
        assert bool((model.weight == step).all()), (step, model.weight)
        assert step >= max(steps, default=0), (step, steps)
        named = list((folder / "checkpoints").glob("step-*"))
        assert len(named) == len(describe(folder)) <= 3, (
            named
        )  # two are kept, and one more when the kill came before its removal
        steps.append(step)
    assert len(set(steps)) >= 3, steps
    left = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith("."))
    print(f"steps {steps}, left behind {left}")
    make(folder)[1].save(10**6)
    assert [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")] == []


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
