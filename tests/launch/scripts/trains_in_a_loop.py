"""A small training with `ezpz.train.Loop` and checkpoints in `run`, resumed from the newest; a save takes 2 s more."""

import os
import time

import torch

import ezpz
from ezpz.checkpoint import Checkpoints, choose
from ezpz.train import Loop

ezpz.setup_torch(seed=1)
choice = choose("auto", name="small", outdir="run")
model = ezpz.wrap_model(torch.nn.Linear(4, 1), "ddp")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Slow:
    """What a checkpoint holds besides, and waits for."""

    def state_dict(self):
        """Take the time that a large state would."""
        time.sleep(2)
        return {}

    def load_state_dict(self, state):
        """Nothing is in it."""


def loss(model, batch):
    time.sleep(0.05)
    return model(batch).square().mean()


with ezpz.History("small", choice.outdir) as history:
    state = {"slow": Slow()}
    loop = Loop(
        model,
        optimizer,
        loss,
        lambda position: torch.full((2, 4), float(position % 7)),
        steps=int(os.environ.get("STEPS", "100000")),
        batch_size=2,
        checkpoints=Checkpoints(history.outdir, model=model, optimizer=optimizer, state=state),
        resume=choice.checkpoint,
        log_every=1000,
    )
    outcome = loop.run(history)
    print("trained to the end:", outcome.steps, flush=True)
ezpz.cleanup()
