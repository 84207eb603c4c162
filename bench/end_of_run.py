"""Print in ms what the end of a run costs: `end_of_run.py METRICS ROWS WHAT FOLDER`.

data      `finalize(plots=False)`, CPU
all       `finalize()`, CPU
wall      `finalize()`, until it returns
report    CPU from the last step to the moment when report.html is there, and
appears   the time
hdf5      numpy and h5py alone: the same columns in a file, CPU
wandb     wandb offline: `finish()`, CPU of this process
"""

import random
import resource
import sys
import time
from pathlib import Path

NAMED = ["train/loss", "val/loss", "train/accuracy", "lr", "grad_norm", "dt", "tokens_per_sec", "mem/peak"]


def main():
    metrics, rows, what, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    chance = random.Random(0)
    names = (NAMED + [f"layers/{number}/norm" for number in range(metrics)])[:metrics]
    table = [{name: chance.gauss(3 / (1 + row / 100), 0.1) for name in names} for row in range(rows)]
    spent = END[what](table, folder / str(time.time_ns()), what)
    print(f"value={spent * 1000:.1f}")


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ezpz_run(table, folder, what):
    from ezpz.track import History

    history = History("end", folder, trackers="")
    for row in table:
        history.update(row, summarize=False)
    now = time.perf_counter if what in {"wall", "appears"} else cpu
    there = []

    def watch(event, arguments):
        if event == "os.rename" and str(arguments[1]).endswith("report.html"):
            there.append(now())

    sys.addaudithook(watch)
    start = now()
    history.finalize(plots=what != "data", show=False)
    return (there[0] if what in {"report", "appears"} else now()) - start


def hdf5_alone(table, folder, _what):
    start = cpu()
    import h5py
    import numpy as np

    folder.mkdir(parents=True)
    with h5py.File(folder / "end.h5", "w") as file:
        for name in table[0]:
            file[name.replace("/", "_")] = np.array([row[name] for row in table])
    return cpu() - start


def wandb_offline(table, folder, _what):
    import wandb

    folder.mkdir(parents=True)
    run = wandb.init(mode="offline", dir=str(folder), project="end")
    for row in table:
        run.log(row)
    start = cpu()
    run.finish()
    return cpu() - start


END = dict.fromkeys(("data", "all", "wall", "report", "appears"), ezpz_run)
END |= {"hdf5": hdf5_alone, "wandb": wandb_offline}

if __name__ == "__main__":
    main()
