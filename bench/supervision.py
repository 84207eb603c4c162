"""What it costs to look after ranks: ``supervision.py cpu|memory|shim|shim_rss COMMAND…`` starts a launch of ranks that sleep 5 s.

After 4 s it prints, as ``value=…``, for all processes of the launch but the sleepers: CPU seconds so far, resident memory in MB with
shared pages divided among those that share them (PSS), or the largest of one shim, by PSS or with all shared pages (``shim_rss``).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

what, line = sys.argv[1], sys.argv[2:]
run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
time.sleep(4.0)
mark = f"EZPZ_BENCH={os.environ['EZPZ_BENCH']}".encode()
cpu, shared, shim, shim_rss = 0.0, 0.0, 0.0, 0.0
for folder in Path("/proc").glob("[0-9]*"):
    try:
        if mark not in (folder / "environ").read_bytes().split(b"\0") or int(folder.name) == os.getpid():
            continue
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        words = rest.split()
        if name == "sleep":
            continue
        cpu += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        smaps = (folder / "smaps_rollup").read_text().splitlines()
        pss, rss = (
            next(int(row.split()[1]) for row in smaps if row.startswith(key)) / 1024 for key in ("Pss:", "Rss:")
        )
        shared += pss
        if name == "ezpz-shim":
            shim, shim_rss = max(shim, pss), max(shim_rss, rss)
    except (OSError, StopIteration):
        continue  # it has just ended
code = run.wait()
print(f"value={ {'cpu': cpu, 'memory': shared, 'shim': shim, 'shim_rss': shim_rss}[what]:.2f}")
sys.exit(code)
