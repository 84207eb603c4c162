"""Print the median time in µs of recording 8 scalars over all ranks at one step; started by a launcher on 2 ranks.

    history    `History.update`: the journal, and values go to rank 0 in the background
    reduce     mean, min, max and standard deviation of the 8 by four all-reduces at every step, as metrics libraries do
    nothing    the clock alone, which reads more after a pause than in a tight loop
    gather     one gather of the 8 to rank 0 at every step

Every 2 ms, so that the background thread is measured at work; the ranks meet at every step, as training does.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist

from ezpz.track import History

STEPS = 1500
BETWEEN = 0.002

mode, folder = sys.argv[1:]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
history = History("bench", f"{folder}/{mode}")


def reduce(metrics):
    values = torch.tensor(list(metrics.values()), dtype=torch.float64)
    for kind, value in (("SUM", values), ("SUM", values**2), ("MIN", values), ("MAX", values)):
        dist.all_reduce(value.clone(), op=getattr(dist.ReduceOp, kind))


def gather(metrics):
    values = torch.tensor(list(metrics.values()), dtype=torch.float64)
    dist.gather(values, [torch.empty_like(values) for _ in range(world_size)] if rank == 0 else None)


dist.barrier()
spent = []
for step in range(STEPS):
    metrics = {f"train/metric{index}": step * 0.5 + index for index in range(8)}
    start = time.perf_counter()
    if mode == "history":
        history.update(metrics, step, summarize=False)
    elif mode == "reduce":
        reduce(metrics)
    elif mode == "gather":
        gather(metrics)
    spent.append(time.perf_counter() - start)
    time.sleep(BETWEEN)
    dist.barrier()
history.finalize(plots=False)
if rank == 0:
    print(f"value={statistics.median(spent[100:]) * 1e6:.2f}")
