"""Launches over 8 and 64 hosts, one rank each: ``hosts.py [--hosts 8,64] [--rounds 3] [--look] [--markdown]``.

It needs Linux and root. ``--look`` compares launches that look at their hosts first with ``--check off`` instead.

Each host is a network namespace of this machine, reached by a stand-in for ssh, so that all of them share its cores:
what is measured is the work of launchers, agents and ranks, not a network. In turn for each way to start:

    all up    from the start of the launcher until its stdout has a line of every rank
    failure   from the end of one rank, killed on the last host, until the launcher has ended
    traffic   bytes that the first host's network card has sent and received until all were up
    links     TCP connections of processes of the first host to or from other hosts while the ranks run
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from lab import hosts as lab  # noqa: E402
from lab.flavours import Flavour  # noqa: E402

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
RANK = ["sh", "-c", "echo up; exec sleep 987"]
LIMIT = 300
COLUMNS = {"all up": "{:.2f} s", "failure to prompt": "{:.2f} s", "traffic": "{:.0f} KB", "links": "{:.0f}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="8,64", help="numbers of hosts, with commas between")
    parser.add_argument("--rounds", type=int, default=3, help="launches of each kind, medians are taken over")
    parser.add_argument("--look", action="store_true", help="compare `--check fast` with `--check off` instead")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    options = parser.parse_args()
    why = lab.problem()
    if why:
        print(f"no table of several hosts: {why}", file=sys.stderr)
        return 0
    rows = [row for number in map(int, options.hosts.split(",")) for row in measure(number, options)]
    print(table(rows, markdown=options.markdown))
    return 0


def measure(number, options):
    """The rows of one number of hosts: everybody in turn, as many rounds as the options say."""
    rounds, chosen = options.rounds, looks if options.look else contenders
    names = [f"n{index:02}" for index in range(1, number + 1)]
    with lab.Hosts("head", *names) as hosts:
        samples = {name: [] for name, _ in chosen(hosts, names)}
        for turn in range(rounds):
            for name, (line, env) in chosen(hosts, names):
                print(f"{number} hosts, round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                samples[name].append(once(hosts, names, line, env))
    return [
        (str(number), name, [statistics.median(each) for each in zip(*found, strict=True)])
        for name, found in samples.items()
    ]


def contenders(hosts, names):
    """Names, and the command line and environment of each."""
    mpich = Flavour("mpich", hosts.folder, hosts.prefix)
    many = ["--hosts", ",".join(names), "--ppn", "1"]
    by_ssh = {**lab.process.minimal_env(hosts.folder, hosts.prefix), "EZPZ_SSH": str(hosts.rsh)}
    by_mpi = mpich.env(HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=str(hosts.rsh))
    ours = {"PYTHONPATH": str(ROOT / "src"), "EZPZ_NGPU_PER_HOST": "0"}
    yield "mpiexec (MPICH)", (mpich.command(len(names), RANK, hosts=names, rsh=hosts.rsh), mpich.bare_env())
    yield "ezpz launch, MPICH", ([*LAUNCH, "--flavour", "mpich", *many, *RANK], {**by_mpi, **ours})
    yield (
        "ezpz launch, MPICH, --mpi no",
        ([*LAUNCH, "--flavour", "mpich", "--mpi", "no", *many, *RANK], {**by_mpi, **ours}),
    )
    yield "ezpz launch, ssh", ([*LAUNCH, "--flavour", "ssh", *many, *RANK], {**by_ssh, **ours})


def looks(hosts, names):
    """The same launches with and without the look at each host before its rank begins."""
    ours = [(name, line, env) for name, (line, env) in contenders(hosts, names) if name.startswith("ezpz")]
    for name, line, env in ours:
        for check in ("off", "fast"):
            yield f"{name}, --check {check}", ([*LAUNCH, "--check", check, *line[len(LAUNCH) :]], env)


def once(hosts, names, line, env):
    """One launch: the figures of all columns."""
    head = hosts["head"]
    before, begin = traffic(head), time.monotonic()
    run = head.popen(line, env, cwd=hosts.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        up = 0
        while up < len(names):
            said = run.stdout.readline()
            if not said:
                raise SystemExit(f"{line}: ended with {run.wait(LIMIT)}: {run.stderr.read()}")
            up += said.strip() == "up"
        all_up, bytes_up, links = time.monotonic() - begin, traffic(head) - before, connections(head)
        victim = next(pid for pid in hosts[names[-1]].pids() if is_sleeper(pid))
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        run.communicate(timeout=LIMIT)
        failure = time.monotonic() - begin
        lab.process.wait_until(lambda: not any(hosts[name].pids() for name in names), 30, "the end of all ranks")
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    return all_up, failure, bytes_up / 1000, links


def traffic(host):
    """Bytes that a host's network card has received and sent so far."""
    rows = host.run(["cat", "/proc/self/net/dev"]).stdout.splitlines()
    words = next(row for row in rows if row.strip().startswith("eth0:")).partition(":")[2].split()
    return int(words[0]) + int(words[8])


def connections(host):
    """Established TCP connections of a host, those over loopback left out."""
    rows = [row.split() for row in host.run(["cat", "/proc/self/net/tcp"]).stdout.splitlines()[1:]]
    return sum(row[3] == "01" and not row[2].startswith("0100007F") for row in rows)


def is_sleeper(pid):
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes() == b"sleep\x00987\x00"
    except OSError:
        return False


def table(rows, *, markdown):
    heads = ["hosts", "launcher", *COLUMNS]
    forms = COLUMNS.values()
    cells = [
        [hosts, name, *(form.format(value) for form, value in zip(forms, found, strict=True))]
        for hosts, name, found in rows
    ]
    if markdown:
        lines = [heads, ["---"] * len(heads), *cells]
        return "\n".join(f"| {' | '.join(row)} |" for row in lines)
    widths = [max(len(row[place]) for row in (heads, *cells)) for place in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *cells)
    )


if __name__ == "__main__":
    sys.exit(main())
