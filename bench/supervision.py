"""What it costs to look after ranks: ``supervision.py cpu|memory|shim COMMAND… sleep 5`` starts ranks that sleep.

It prints, as ``value=…``, the CPU seconds of all processes from start to end, ranks included; or, 2 s after all ranks
have begun, the resident memory in MB of all but the ranks, with shared pages divided among those that share them (PSS);
or the most that stands in front of one rank and is shared with nobody (USS): a shim and its holder.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

RANKS = 64


def processes():
    """The folder in /proc and the command line of each process of the launch."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                yield folder, (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended


def kilobytes(folder, *keys):
    rows = [row.split() for row in (folder / "smaps_rollup").read_text().splitlines()]
    return sum(int(row[1]) for row in rows if row[0].removesuffix(":") in keys)


mark = f"EZPZ_BENCH={os.environ['EZPZ_BENCH']}".encode()
what, line = sys.argv[1], sys.argv[2:]
rank = "\0".join([*line[-2:], ""]).encode()
run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
while sum(words == rank for _, words in processes()) < RANKS and run.poll() is None:
    time.sleep(0.2)
time.sleep(2.0)
shared, shims = 0, [0]
for folder, words in processes():
    try:
        if words == rank:
            continue
        shared += kilobytes(folder, "Pss")
        own = kilobytes(folder, "Private_Clean", "Private_Dirty")
        if (folder / "comm").read_text().strip() == "ezpz-shim":
            shims.append(own)
    except OSError:
        continue  # it has just ended
code = run.wait()
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
values = {"cpu": usage.ru_utime + usage.ru_stime, "memory": shared / 1024, "shim": max(shims) / 1024}
print(f"value={values[what]:.2f}")
sys.exit(code)
