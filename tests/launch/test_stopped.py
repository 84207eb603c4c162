"""Ctrl-Z: `launch` stops with all its ranks, `fg` and `bg` continue them, and no time limit counts the time between."""

import functools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ezpz import proc
from lab import process as lab

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")]

COUNT = "echo $$; n=0; until [ -e go ]; do n=$((n + 1)); echo $n >count.$RANK; sleep 0.05; done"
BEAT = """
import os, time
import ezpz
print(os.getpid(), flush=True)
while not os.path.exists("go"):
    ezpz.heartbeat()
    time.sleep(0.2)
"""


@pytest.fixture
def start(start_launch):
    """Start a launch as a shell's job: in a process group of its own, whose parent can stop and continue it."""
    return functools.partial(start_launch, start_new_session=False, preexec_fn=os.setpgrp)


def state(pid):
    fields = proc.stat(pid)
    return fields.state if fields else ""


def all_stand(*pids):
    """Whether all are stopped; a shell whose child was stopped between vfork and exec waits in state D for it."""
    return {state(pid) for pid in pids} <= {"T", "D"}


def stop_and_continue(job, pids, seconds=0.6):
    """Ctrl-Z and `fg`, as the terminal and a shell give them."""
    os.killpg(job.pid, signal.SIGTSTP)
    lab.wait_until(lambda: all_stand(job.pid, *pids), 10, "all stop", every=0.02)
    time.sleep(seconds)
    assert all_stand(job.pid, *pids)
    os.killpg(job.pid, signal.SIGCONT)
    lab.wait_until(lambda: "T" not in {state(pid) for pid in (job.pid, *pids)}, 10, "all go on", every=0.02)


def check(job, tmp_path, times=2):
    pids = [int(job.stdout.readline()) for _ in range(2)]
    for _ in range(times):
        stop_and_continue(job, pids)
    (tmp_path / "go").touch()
    errors = job.communicate(timeout=200)[1]
    assert job.returncode == 0, errors


def test_ctrl_z_stops_all_and_works_again(start, tmp_path):
    check(start("-n", "2", "sh", "-c", COUNT), tmp_path)


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_ctrl_z_stops_the_ranks_of_an_mpi(flavour, start, tmp_path):
    check(start("-n", "2", "sh", "-c", COUNT, env=flavour.env()), tmp_path)


def test_no_time_limit_counts_the_time_between(start, tmp_path):
    job = start("--idle-timeout", "10", "--timeout", "20", "-n", "2", sys.executable, "-c", BEAT)
    pids = [int(job.stdout.readline()) for _ in range(2)]
    stop_and_continue(job, pids, seconds=21)
    (tmp_path / "go").touch()
    errors = job.communicate(timeout=200)[1]
    assert job.returncode == 0, errors


def test_a_stopped_launch_that_is_killed_takes_its_ranks_with_it(start):
    job = start("-n", "2", "sh", "-c", COUNT)
    pids = [int(job.stdout.readline()) for _ in range(2)]
    os.killpg(job.pid, signal.SIGTSTP)
    lab.wait_until(lambda: all_stand(job.pid, *pids), 10, "all stop", every=0.02)
    job.kill()
    job.wait(200)


def test_sigterm_to_a_stopped_launch_counts_when_it_goes_on(start):
    job = start("-n", "2", "sh", "-c", f"trap 'echo got TERM; exit 0' TERM; {COUNT}")
    pids = [int(job.stdout.readline()) for _ in range(2)]
    os.killpg(job.pid, signal.SIGTSTP)
    lab.wait_until(lambda: all_stand(job.pid, *pids), 10, "all stop", every=0.02)
    job.terminate()
    os.killpg(job.pid, signal.SIGCONT)
    output = job.communicate(timeout=200)[0]
    assert (job.returncode, output.count("got TERM")) == (143, 2)


def test_where_no_shell_could_continue_it_ctrl_z_is_without_effect(start_launch, tmp_path):
    job = start_launch("-n", "2", "sh", "-c", COUNT)  # a session of its own: its group is orphaned
    for _ in range(2):
        job.stdout.readline()

    def counts():
        return [int((tmp_path / f"count.{rank}").read_text() or 0) for rank in (0, 1)]

    lab.wait_until(lambda: len(list(tmp_path.glob("count.*"))) == 2, 20, "both ranks")
    before = counts()
    os.kill(job.pid, signal.SIGTSTP)
    lab.wait_until(lambda: min(now - was for now, was in zip(counts(), before, strict=True)) > 4, 20, "going on")
    (tmp_path / "go").touch()
    job.communicate(timeout=200)
    assert job.returncode == 0
