"""A plain script that saves when asked: each rank writes its step, and goes on after the last one that it finds.

Variables: SAVE_SECONDS of a save, STEP_SECONDS of a step, STEPS in all, RANKS_THAT_SAVE (one, or none), DEAF_RANKS
that never give a heartbeat, EVALUATES for so many seconds after the last step, HANDLER of SIGTERM (``exit`` or
``flag``, set after `on_save`), SAVE_FAILS on this rank, and FAILS after this step of rank 1.
"""

import os
import signal
import sys
import time
from pathlib import Path

import ezpz

rank = int(os.environ["RANK"])
file = Path(f"saved-{rank}")
save_seconds = float(os.environ.get("SAVE_SECONDS", "0.1"))
step_seconds = float(os.environ.get("STEP_SECONDS", "0.02"))
deaf = {int(each) for each in os.environ.get("DEAF_RANKS", "").split()}
step, told = -1, False


def save() -> None:
    """Write the step as a whole, slowly, in the way of a checkpoint."""
    if os.environ.get("SAVE_FAILS") == str(rank):
        raise ValueError("planted in the save")
    part = Path(f".part-{rank}")
    part.write_text(f"{step} ")
    time.sleep(save_seconds)
    part.write_text(f"{step} complete\n")
    part.replace(file)
    print(f"rank {rank} saved at {step}", flush=True)


def handle(number: int, _: object) -> None:
    """Note the signal, and end: here, or where the loop looks."""
    global told
    with Path(f"term-{rank}").open("a", encoding="utf-8") as log:
        log.write(f"{step}\n")
    if os.environ["HANDLER"] == "exit":
        sys.exit(3)
    told = True


if os.environ.get("RANKS_THAT_SAVE", str(rank)) == str(rank):
    ezpz.on_save(save)
if "HANDLER" in os.environ:
    signal.signal(signal.SIGTERM, handle)
first = int(file.read_text().split()[0]) + 1 if file.exists() else 0
try:
    with ezpz.section("all", timeout="1h"):
        for step in range(first, int(os.environ.get("STEPS", "1000000"))):
            time.sleep(step_seconds * (1 + rank / 100))
            if rank not in deaf:
                ezpz.heartbeat(step)
            if step == first + 5:
                Path(f"up-{rank}").touch()
            if rank == 1 and str(step) == os.environ.get("FAILS"):
                raise ValueError("planted in a step")
            if told:
                break
        Path(f"evaluates-{rank}").touch()
        time.sleep(float(os.environ.get("EVALUATES", "0")))
finally:
    print(f"rank {rank} left after {step}", flush=True)
