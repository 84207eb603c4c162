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


# By which names code asks for rank, world size, local rank, local world size and host; what contradicts is printed.
_NAMES = """
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE -
PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS -
- - PMI_LOCAL_RANK PMI_LOCAL_SIZE -
PALS_RANKID PALS_SIZE PALS_LOCAL_RANKID PALS_LOCAL_SIZE PALS_NODEID
FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID - -
SLURM_PROCID SLURM_NTASKS SLURM_LOCALID - SLURM_NODEID
- SLURM_NPROCS - - -
- SLURM_STEP_NUM_TASKS - - -
MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE -
JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE -
"""
ROWS = [line.split() for line in _NAMES.strip().splitlines()]
STALE = {name: "7" for row in ROWS for name in row if name != "-"}  # of a launcher around
_AGREE = """
import os
rows, seen = ROWS, os.environ
own = [seen[name] for name in rows[0]]
wrong = [f"{name}={seen[name]}" for row in rows for name, mine in zip(row, own) if seen.get(name, mine) != mine]
print("rank", *own, *wrong, "SLURM_PROCID" in seen, flush=True)
"""
AGREE = [sys.executable, "-c", _AGREE.replace("ROWS", repr(ROWS))]


def agreed(output):
    """Return the lines of `AGREE`, sorted: rank, world size, local rank and size, host, what contradicts, and whether
    Slurm's names are there.
    """
    return sorted(line[5:] for line in output.splitlines() if line.startswith("rank "))
