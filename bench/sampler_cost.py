"""What the sampler of a host costs: ``sampler_cost.py [LIBRARY]`` prints its CPU in µs per second, as ``value=…``.

It reads the host and 8 AMD cards that stand in a folder of files; with LIBRARY, an NVML or what stands for one, that
library's devices as well. The sampler sleeps 5 s between two samples; here it reads without a pause, and the CPU of one
sample is divided by these 5 s.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from ezpz.cluster.devices.nvml import Nvml
from ezpz.cluster.devices.visible_devices import Ranks
from ezpz.watch.hardware.sampler.counter_files import Files
from ezpz.watch.hardware.sampler.sampled_host import Host

SAMPLES, EVERY, CARDS = 300, 5.0, 8

with tempfile.TemporaryDirectory() as root:
    for card in range(CARDS):
        base = Path(root, f"class/drm/card{card}/device")
        (base / "hwmon/hwmon0").mkdir(parents=True)
        for name, text in {
            "vendor": "0x1002",
            "uevent": f"PCI_SLOT_NAME=0000:{card:02x}:00.0",
            "hwmon/hwmon0/power1_average": "312000000",
            "hwmon/hwmon0/freq1_input": "2100000000",
            "hwmon/hwmon0/freq2_input": "1300000000",
            "hwmon/hwmon0/temp1_input": "55000",
            "gpu_busy_percent": "97",
            "mem_info_vram_used": "51539607552",
            "mem_info_vram_total": "206158430208",
        }.items():
            (base / name).write_text(text)
    ranks = Ranks([os.getpid()], [{"LOCAL_RANK": str(rank)} for rank in range(CARDS)])
    sources = [Files(ranks, root), Host(ranks), *([Nvml(ranks, sys.argv[1])] if len(sys.argv) > 1 else [])]
    assert len(sources[0].read()) == CARDS
    begin = time.process_time()
    for _ in range(SAMPLES):
        for source in sources:
            source.read()
    share = (time.process_time() - begin) / SAMPLES / EVERY
print(f"value={1e6 * share:.1f}")
