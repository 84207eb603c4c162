"""Launches inside jobs of a real OpenPBS, over three hosts that no ssh reaches: its task manager starts the daemons."""

import pytest

from lab import hosts as lab_hosts
from lab import openpbs
from lab.flavours import NAMES, Flavour
from lab.require import require

ROOT = openpbs.Path(__file__).parents[2]
JOB = """#!/bin/bash
export PATH={path} PYTHONPATH={source} EZPZ_NGPU_PER_HOST=0
launch() {{ /usr/bin/python3 -m ezpz.launch -n 6 bash -c "$1"; echo "ended with $?"; }}
launch 'echo rank $RANK on $(hostname)'
launch 'if [ $RANK = 4 ]; then exit 7; fi; sleep 600'
launch 'if [ $RANK = 5 ]; then kill -KILL $$; fi; sleep 600'
"""


@pytest.fixture(scope="module")
def open_pbs(_can_make_hosts):
    require("hosts", _can_make_hosts)
    require("openpbs", openpbs.problem())
    with lab_hosts.Hosts("head", "n01", "n02", "n03") as hosts:
        pbs = openpbs.OpenPbs(hosts).start()
        yield pbs
        pbs.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_task_manager_reaches_hosts_without_ssh_behind_the_mpiexec_of_pbs(open_pbs, name):
    mpi = Flavour(name)
    require(name, mpi.problem())
    path = f"{openpbs.PREFIX}/bin:{mpi.bin}:/usr/bin:/bin"
    options = ["-l", "select=3:ncpus=2:mpiprocs=2", "-l", "place=scatter"]
    done = open_pbs.job(JOB.format(path=path, source=ROOT / "src"), *options, timeout=200)
    lines = done.stdout.splitlines()
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert ranks == [f"rank {rank} on n0{rank // 2 + 1}" for rank in range(6)], done.stdout
    assert [line for line in lines if line.startswith("ended with ")] == [
        "ended with 0",
        "ended with 7",
        "ended with 137",
    ]
    assert f"/mpiexec, to which {openpbs.PREFIX}/bin/mpiexec only passes on)" in done.stdout
    assert "rank 4 on host n03" in done.stdout
    left = [pid for host in ("n01", "n02", "n03") for pid in open_pbs.hosts[host].pids() if is_rank(pid)]
    assert not left


def is_rank(pid):
    try:
        return b"sleep\0600" in (openpbs.Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
