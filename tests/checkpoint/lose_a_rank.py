"""Two ranks save asynchronously, and rank 1 ends in the middle of its second save; run by `test_checkpoint_damage.py`.

    launch -n 2 lose_a_rank.py FOLDER

Rank 0 must be told in one line.
"""

import os
import sys
from pathlib import Path

import torch

import ezpz
from ezpz.checkpoint import Checkpoints, storage
from ezpz.errors import EzpzError


def end(self, data):
    os._exit(0)  # as a host that is gone, but for the connections: nobody is told


ezpz.setup_torch()
model = ezpz.wrap_model(torch.nn.Linear(64, 64), "ddp", ezpz.init_mesh(), dtype="fp32")
checkpoints = Checkpoints(Path(sys.argv[1]), model=model, asynchronous=True)
checkpoints.save(1)
checkpoints.wait()
if ezpz.get_rank() == 1:
    storage._Stream.write = end
checkpoints.save(2)
try:
    checkpoints.wait()
except EzpzError as error:
    print("told:", error, flush=True)
os._exit(0)  # leaving the group would wait for rank 1
