"""Print the ms that becoming a rank takes, torch being imported.

``setup_torch.py FOLDER hand|ezpz`` runs on every rank of one host.

The ranks first wait for each other in FOLDER, so that the time at which each has torch ready is not measured.
"""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

folder, how = Path(sys.argv[1]), sys.argv[2]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
run = os.environ["TORCHELASTIC_RUN_ID"]
folder.mkdir(exist_ok=True)
(folder / f"{run}-{rank}").touch()
while len(list(folder.glob(f"{run}-*"))) < world:
    time.sleep(0.001)

start = time.perf_counter()
if how == "ezpz":
    import ezpz

    ezpz.setup_torch()
else:
    dist.init_process_group("gloo")
spent = time.perf_counter() - start
if rank == 0:
    print(f"value={spent * 1000:.2f}")
dist.barrier()
dist.destroy_process_group()
time.sleep(0.05)  # gloo's threads abort an interpreter that ends at once (torch 2.13)
