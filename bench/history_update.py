"""Print the median time in µs of one `History.update` of 8 scalars, journal on. The clock is read around each call."""

import statistics
import sys
import time

from ezpz.track import History

STEPS = 3000

history = History(name="bench", outdir=sys.argv[1])
spent = []
for step in range(STEPS):
    metrics = {f"train/metric{index}": step * 0.5 + index for index in range(8)}
    start = time.perf_counter()
    history.update(metrics, step=step, summarize=False)
    spent.append(time.perf_counter() - start)
print(f"value={statistics.median(spent[100:]) * 1e6:.2f}")
history.finalize()
