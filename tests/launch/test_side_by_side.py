"""Launches that must not disturb each other, ports that are taken, and interfaces that lead to the others."""

import shlex
import sys

import pytest

from lab import process

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
MEET = """
import os, socket, sys, time
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.create_server((os.environ["MASTER_ADDR"], port))
    others = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    for other in others:
        other.sendall(sys.argv[1].encode())
    print("met", len(others), flush=True)
else:
    end = time.monotonic() + 200
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], port), 5)
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert peer.recv(64).decode() == sys.argv[1]
open(f"met-{sys.argv[1]}", "w").close()
while not all(os.path.exists(f"met-{other}") for other in sys.argv[1:]):  # they run at the same time
    time.sleep(0.05)
"""


def meet(word, *others):
    return [sys.executable, "-c", MEET, word, *others]


@pytest.mark.slow
def test_launches_on_one_host_meet_apart(start_launch):
    runs = [start_launch("-n", "3", *meet(word, "one", "two", "three")) for word in ("one", "two", "three")]
    for run in runs:
        out, err = run.communicate(timeout=200)
        assert (run.returncode, out) == (0, "met 2\n"), err


def test_two_launches_in_one_slurm_allocation_run_at_the_same_time(slurm, clean_env, tmp_path):
    line = " ".join([*LAUNCH, "-n", "2", sys.executable, str(tmp_path / "meet.py")])
    (tmp_path / "meet.py").write_text(MEET)
    script = f"{line} one two & one=$!; {line} two one & two=$!; wait $one && wait $two"
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", script], clean_env, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "met 1\nmet 1\n"), done.stderr


# A launch on head whose first two choices of a port for n01 are known.
CHOOSES = """
import sys
from ezpz.launch import master
from ezpz.launch.entry import main
ports = iter([23456, 23457])
master.choose_port = lambda *_: (next(ports), "random", None)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def taken(slurm, clean_env):
    """Port 23456 of n01 is taken by somebody else."""
    hold = "import socket, time; held = socket.create_server(('', 23456)); print('held', flush=True); time.sleep(600)"
    taker = slurm.hosts["n01"].popen([sys.executable, "-c", hold], clean_env, stdout=-1, text=True)
    assert taker.stdout.readline() == "held\n"
    yield
    process.kill_group(taker)


@pytest.mark.usefixtures("taken")
def test_a_port_that_is_taken_on_the_first_host_is_exchanged(slurm, clean_env, tmp_path):
    """And the input is not lost to the first start."""
    line = [sys.executable, "-c", CHOOSES, "bash", "-c", 'cat; exec "$@"', "bash", *meet("x")]
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", f"echo to rank 0 | {shlex.join(line)}"], clean_env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "to rank 0\nmet 1\n"), done.stderr
    assert "port 23456 is taken on n01; starting again with another" in done.stderr


@pytest.mark.usefixtures("taken")
def test_a_users_port_that_is_taken_on_the_first_host_is_not_exchanged(slurm, clean_env):
    done = slurm.salloc(["-N2", "-n2"], [*LAUNCH, "true"], {**clean_env, "MASTER_PORT": "23456"})
    assert done.returncode == 2
    assert "port 23456 (from MASTER_PORT): it is taken on n01" in done.stderr


def test_ranks_on_several_hosts_are_told_the_interface_that_leads_to_rank_0(slurm, clean_env):
    show = [sys.executable, "-c", "import os; print(os.environ.get('GLOO_SOCKET_IFNAME'), flush=True)"]
    done = slurm.salloc(["-N2", "-n2"], [*LAUNCH, *show], clean_env)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert len(names) == 2
    assert all(name.startswith("e") for name in names)
    assert f" through {names[0][:2]}" in done.stderr
    mine = slurm.salloc(["-N2", "-n2"], [*LAUNCH, *show], {**clean_env, "GLOO_SOCKET_IFNAME": "lo"})
    assert mine.stdout.split() == ["lo", "lo"]
