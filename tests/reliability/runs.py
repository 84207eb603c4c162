"""One launch that runs: its ranks, its launcher and what stands between, found in /proc."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lab import process

WORLD = 3


class Run:
    """One launch that runs: `pid` of the launcher, `up()` the ranks, and ways to find its other processes."""

    def __init__(self, stage, started):
        self.stage, self.process = stage, started
        self.folder, self.pid = stage.folder, started.pid
        self.since = time.monotonic()

    def mark(self):
        """From now on the time until the prompt counts."""
        self.since = time.monotonic()

    def go(self):
        (self.folder / "go").touch()

    def up(self, ranks=WORLD, timeout=30):
        """``{rank: (pid, host)}`` as soon as all ranks said so."""

        def told():
            found = known(self.folder)
            if self.process.poll() is not None and len(found) < ranks:
                raise AssertionError(f"the launch ended with {self.process.returncode} before its ranks ran")
            return found if len(found) >= ranks else None

        try:
            return process.wait_until(told, timeout, f"{ranks} ranks that run", every=0.03)
        except AssertionError as error:
            raise AssertionError(f"{error}; so far: {sorted(known(self.folder))}") from None

    def rank(self, rank):
        return self.up()[rank][0]

    def output(self):
        return (self.folder / "out").read_bytes()

    def errors(self):
        return (self.folder / "err").read_text(errors="replace")

    def left(self):
        """``{pid: command line}`` of what still lives of this launch."""
        return process.survivors(self.stage.tag)

    def named(self, comm, host=""):
        """Pids of this launch's processes with that name in /proc/PID/comm, on the lab's host `host`."""

        def found():
            among = set(self.stage.hosts[host].pids()) if host and self.stage.over_hosts else None
            return [pid for pid in self.left() if fact(pid, "comm") == comm and (among is None or pid in among)]

        return process.wait_until(found, 3, f"a process called {comm} on {host or 'this host'}", every=0.05)

    def agent(self, host=""):
        return self.named("ezpz-agent", host)[0]

    def shim(self, rank):
        """The shim in front of a rank, by that name."""
        shim = process.shim_of(self.rank(rank))
        if fact(shim, "comm") != "ezpz-shim":
            raise AssertionError(f"in front of rank {rank} is {fact(shim, 'comm')!r}, not ezpz-shim\n{self.left()}")
        return shim

    def mpiexec(self):
        """The foreign launcher that ours started: its child that is no agent."""
        found = [pid for pid in self.left() if parent_of(pid) == self.pid and fact(pid, "comm") != "ezpz-agent"]
        if not found:
            raise AssertionError(f"the launcher has no child of its own: {self.left()}")
        return min(found)


def known(folder):
    """What the ranks have said of themselves so far; a line without its end is not said yet."""
    found = {}
    for path in folder.glob("up.*"):
        text = path.read_text()
        if text.endswith("\n"):
            pid, host = text.split()
            found[int(path.suffix[1:])] = (int(pid), host)
    return found


def fact(pid, name):
    try:
        return Path("/proc", str(pid), name).read_text().strip()
    except OSError:
        return ""


def parent_of(pid):
    stat = fact(pid, "stat").rpartition(")")[2].split()
    return int(stat[1]) if stat else 0


def bash(script):
    return ["bash", "-c", script]


def python(program):
    return [sys.executable, "-I", "-S", "-c", program]


def python_with_packages(program):
    return [sys.executable, "-c", program]
