"""A program that shows what a rank sees, and the reading of what all ranks showed."""

from __future__ import annotations

import json
import sys

# One short line per rank: launchers may cut a long one where two ranks write at once.
_PROGRAM = """
import json, os, sys
prefixes = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_NUM", "MINE")
environ = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
print(json.dumps([environ, sys.argv[1:], os.uname().nodename, {}]), flush=True)
"""
SHOW = [sys.executable, "-c", _PROGRAM.replace("{}", "''")]
SHOW_CPUS = "import json, os; print(json.dumps([os.environ['RANK'], sorted(os.sched_getaffinity(0))]), flush=True)"
SHOW_CPUS = [sys.executable, "-c", SHOW_CPUS]
SHOW_INPUT = [sys.executable, "-c", _PROGRAM.replace("{}", "sys.stdin.read()")]


def shown(output):
    """``[(environ, arguments, host, stdin)]`` in the order of ranks."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("[{")]
    return sorted(lines, key=lambda rank: int(rank[0]["RANK"]))
