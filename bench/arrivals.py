"""Measure what a rank pays for telling when it came to collectives: CPU of one look, and of 30 s, by size of the ring.

    python3 bench/arrivals.py

The recorder itself is torch's, and is on unless TORCH_FR_BUFFER_SIZE is 0; its cost per collective is the difference of
the two lines of `all_reduce` of one rank on gloo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_ONE = 2500  # collectives: more than the largest ring holds
_LOOKS = 20


def _measure() -> None:
    import torch
    import torch.distributed as dist

    from ezpz.dist import arrivals

    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    values = torch.ones(10)
    costs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(_ONE // 5):
            dist.all_reduce(values)
        costs.append((time.process_time() - began) / (_ONE // 5))
    line = f"ring {os.environ['TORCH_FR_BUFFER_SIZE']:>5}: all_reduce {min(costs) * 1e6:6.1f} µs of CPU"
    if os.environ["TORCH_FR_BUFFER_SIZE"] != "0":
        from torch._C import _distributed_c10d as c10d

        looks = []
        for _ in range(_LOOKS):
            began = time.thread_time()
            arrivals.arrivals(arrivals._entries(c10d._dump_fr_trace(True, False, False)), {}, 256)  # noqa: SLF001
            arrivals._counters()  # noqa: SLF001
            arrivals._cores()  # noqa: SLF001  # all that a look does but to send
            looks.append(time.thread_time() - began)
        began = time.thread_time()
        for _ in range(1000):
            arrivals.where(sys._getframe())  # noqa: SLF001  # as the thread sees it
        place = (time.thread_time() - began) / 1000
        look = sorted(looks)[_LOOKS // 2]
        line += f", a look {look * 1e3:6.2f} ms, 30 s {(look + 60 * place) * 1e3:6.2f} ms of CPU"
    print(line)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:]:
        _measure()
    else:
        for size in ("0", "64", "256", "2000"):
            subprocess.run(  # each ring is made with its process
                [sys.executable, __file__, "measure"], env={**os.environ, "TORCH_FR_BUFFER_SIZE": size}, check=True
            )
