"""Timing of processes, one at a time and in turns, and the figures that come of it."""

from __future__ import annotations

import os
import re
import resource
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass, field

LIMIT = 120
GIVE_UP = 2  # failures after which a contender is not run again; one is told beside its figures


@dataclass
class Contender:
    """One row: a command line in an environment, timed as a whole, by its CPU time, or printing ``value=…`` itself."""

    group: str
    name: str
    argv: list
    env: dict
    peer: str = ""  # the row of the same group that it is measured against
    repeat: int = 1  # runs per round: more where one run is short
    unit: str = "ms"
    budget: str = ""
    fresh_port: bool = False  # a new MASTER_PORT for each run
    cpu: bool = False  # CPU time, user and system, of it and of all that it has waited for, in place of wall time
    samples: list = field(default_factory=list)
    failures: list = field(default_factory=list)  # "rc 1" or "over 120 s" of each run that failed

    @property
    def median(self):
        return statistics.median(self.samples)


def run_once(contender, folder):
    """One run: its time in ms, or the value it printed; a failure is noted in the contender."""
    env = {**contender.env, "MASTER_PORT": str(free_port())} if contender.fresh_port else contender.env
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        contender.argv,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        contender.failures.append(f"over {LIMIT} s")
        return
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (time.perf_counter() - start) * 1000
    if contender.cpu:
        spent = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000
    if process.returncode:
        contender.failures.append(f"rc {process.returncode}")
        (folder / "failures.log").open("a").write(f"== {contender.group}: {contender.name}\n{output}\n")
        return
    printed = re.search(r"^value=([\d.]+)$", output, re.MULTILINE)
    contender.samples.append(float(printed[1]) if printed else spent)


def measure(contenders, rounds, folder, tell):
    """Everybody in turn, `rounds` times, so that a slow minute of the machine meets all of them."""
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for contender in contenders:
            for _ in range(contender.repeat):
                if len(contender.failures) < GIVE_UP:
                    run_once(contender, folder)


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
