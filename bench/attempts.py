"""How soon the next attempt begins: ``attempts.py [--rounds 5] [--markdown]``.

A rank of two ends with 9 in the first attempt. Taken is the time from that moment until both ranks of the next attempt
run, by the ranks' own clocks:

    ezpz launch --attempts 2        it decides from evidence; without any it probes the host, and pauses for a second
    a shell loop around ezpz launch until it succeeds
    torchrun --max-restarts 1

Where network namespaces can be made (Linux, root), the same over three hosts and a spare, reached by a stand-in for
ssh: the agent of one host is killed, which is evidence.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from lab import hosts as lab  # noqa: E402

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
# A rank of the first attempt waits for the other one, and then rank 1 ends; one of the next says when it is there.
RANK = """
import os, sys, time
rank, folder = os.environ["RANK"], sys.argv[1]
if os.path.exists(f"{folder}/ended"):
    open(f"{folder}/again.{rank}", "w").write(repr(time.time()))
    sys.exit(0)
open(f"{folder}/first.{rank}", "w").close()
while not all(os.path.exists(f"{folder}/first.{each}") for each in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)
if rank == "1" and sys.argv[2] == "fail":
    open(f"{folder}/ended", "w").write(repr(time.time()))
    os._exit(9)
time.sleep(60)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turns; medians are taken over them")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    options = parser.parse_args()
    taken = {name: [] for name in ("ezpz launch --attempts 2", "a shell loop around ezpz launch", "torchrun")}
    why = lab.problem()
    over_hosts = "ezpz launch --attempts 2, three hosts and a spare, an agent killed"
    taken |= {} if why else {over_hosts: []}
    for turn in range(options.rounds):
        for name, samples in taken.items():
            print(f"round {turn + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                rank = [sys.executable, "-c", RANK, folder]
                samples.append(over_three_hosts(rank, folder) if name == over_hosts else here(name, rank, folder))
    if why:
        print(f"no row of several hosts: {why}", file=sys.stderr)
    rows = [(name, f"{statistics.median(each):.2f} s", f"{min(each):.2f} s") for name, each in taken.items()]
    head = ("from the failure until the next attempt runs", "median", "min")
    if options.markdown:
        print(*(f"| {' | '.join(row)} |" for row in (head, ("---",) * 3, *rows)), sep="\n")
    else:
        print(*(f"{row[0]:<68} {row[1]:>8} {row[2]:>8}" for row in (head, *rows)), sep="\n")


def here(name, rank, folder):
    """Return the seconds of one way to start again on this host."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_STATE_HOME": folder, "OMP_NUM_THREADS": "1"}
    once = [*LAUNCH, "--flavour", "local", "-n", "2"]
    line = {
        "torchrun": [*TORCHRUN, "--no-python", *rank, "fail"],
        "ezpz launch --attempts 2": [*once, "--attempts", "2", *rank, "fail"],
    }.get(name, ["bash", "-c", f"until {shlex.join([*once, *rank, 'fail'])}; do :; done"])
    subprocess.run(line, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    return seconds(folder, float(Path(folder, "ended").read_text()), 2)


def over_three_hosts(rank, folder):
    """Return the seconds after the agent of one of three hosts was killed."""
    names = ("n01", "n02", "n03", "n04")
    with lab.Hosts("head", *names) as hosts:
        env = {"PYTHONPATH": str(ROOT / "src"), "EZPZ_SSH": str(hosts.rsh), "EZPZ_NGPU_PER_HOST": "0"}
        env |= {"PATH": os.environ["PATH"], "HOME": folder, "XDG_STATE_HOME": folder}
        options = ["--hosts", ",".join(names), "--nhosts", "3", "--ppn", "1", "--attempts", "2", "--flavour", "ssh"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        launch = hosts["head"].popen([*LAUNCH, *options, *rank, "wait"], env, cwd=folder, **quiet)
        while not all(Path(folder, f"first.{number}").exists() for number in range(3)):
            time.sleep(0.01)
        comm = {pid: Path("/proc", str(pid), "comm").read_text().strip() for pid in hosts["n02"].pids()}
        killed = time.time()
        Path(folder, "ended").touch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(next(pid for pid, name in comm.items() if name == "ezpz-agent"), signal.SIGKILL)
        if launch.wait(300):
            raise SystemExit("the second attempt has failed as well")
    return seconds(folder, killed, 3)


def seconds(folder, since, ranks):
    """Return the seconds until the last rank of the next attempt was there."""
    return max(float(Path(folder, f"again.{rank}").read_text()) for rank in range(ranks)) - since


if __name__ == "__main__":
    main()
