"""A plain script that saves when asked: each rank writes its step, and goes on after the last one that it finds.

Variables: SAVE_SECONDS of a save, STEP_SECONDS of a step, STEPS in all, RANKS_THAT_SAVE (one, or none), and DEAF_RANKS
that never give a heartbeat.
"""

import os
import time
from pathlib import Path

import ezpz

rank = int(os.environ["RANK"])
file = Path(f"saved-{rank}")
save_seconds = float(os.environ.get("SAVE_SECONDS", "0.1"))
step_seconds = float(os.environ.get("STEP_SECONDS", "0.02"))
deaf = {int(each) for each in os.environ.get("DEAF_RANKS", "").split()}
step = -1


def save() -> None:
    """Write the step as a whole, slowly, in the way of a checkpoint."""
    part = Path(f".part-{rank}")
    part.write_text(f"{step} ")
    time.sleep(save_seconds)
    part.write_text(f"{step} complete\n")
    part.replace(file)
    print(f"rank {rank} saved at {step}", flush=True)


if os.environ.get("RANKS_THAT_SAVE", str(rank)) == str(rank):
    ezpz.on_save(save)
first = int(file.read_text().split()[0]) + 1 if file.exists() else 0
try:
    with ezpz.section("all", timeout="1h"):
        for step in range(first, int(os.environ.get("STEPS", "1000000"))):
            time.sleep(step_seconds * (1 + rank / 100))
            if rank not in deaf:
                ezpz.heartbeat(step)
finally:
    print(f"rank {rank} left after {step}", flush=True)
