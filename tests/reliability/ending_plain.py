"""A plain script with a `History`: it has no handlers, saves every tenth step, and goes on from there.

python3 ending_plain.py PATH RUN_FOLDER STEPS    it waits for PATH as others wait for a compiler
"""

import sys
import time
from pathlib import Path

while not Path(sys.argv[1]).exists():
    time.sleep(0.05)

import torch  # noqa: E402  # after the wait

import ezpz  # noqa: E402

folder, steps = Path(sys.argv[2]), int(sys.argv[3])
saved = folder / "saved.pt"
rank = ezpz.setup_torch()
start = torch.load(saved)["done"] if saved.exists() else 0
weights = torch.zeros(100)
with ezpz.History("plain", folder) as history:
    for step in range(start, steps):
        weights += 1
        time.sleep(0.1)
        history.update({"loss": 1.0 / (step + 1), "rank": rank}, step=step)
        if rank == 0 and (step + 1) % 10 == 0:
            torch.save({"done": step + 1, "weights": weights}, folder / "saved.tmp")
            (folder / "saved.tmp").replace(saved)
ezpz.cleanup()
