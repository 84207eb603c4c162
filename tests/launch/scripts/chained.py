"""A training without torch: it saves every few steps, goes on from what it has saved, and notes whoever else writes."""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

import ezpz

folder, last, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
pause, bug = float(sys.argv[4]), int(sys.argv[5])
if os.environ["RANK"] != "0":
    time.sleep(3600 if os.environ.get("FOREVER") else 0)
    sys.exit()
folder.mkdir(exist_ok=True)
lock = (folder / "lock").open("w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel gives it back whatever ends this process
except BlockingIOError:
    (folder / "two").touch()
log = (folder / "log").open("a")
saved = sorted(int(path.stem) for path in folder.glob("*.json"))
step = json.loads((folder / f"{saved[-1]:06}.json").read_text())["step"] if saved else 0
print(f"began {step}", file=log, flush=True)


def save():
    draft = folder / "draft"
    draft.write_text(json.dumps({"step": step, "weights": [step] * 1000}))
    draft.rename(folder / f"{step:06}.json")
    print(f"saved {step}", file=log, flush=True)


def save_and_end(*_):
    print(f"asked {step}", file=log, flush=True)
    save()
    sys.exit(143)


if "save-at-term" in sys.argv:
    signal.signal(signal.SIGTERM, save_and_end)
while step < last:
    step += 1
    time.sleep(pause)
    while (folder / "hold").exists():
        time.sleep(pause)
    if step == bug:
        raise ValueError("planted")
    if step % every == 0 or step == last:
        save()
    ezpz.heartbeat(step)
