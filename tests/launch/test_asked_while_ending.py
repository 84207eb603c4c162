"""Ranks that are asked for their stacks while they end, or have become another program: none comes to harm."""

import os
import signal
import sys

import pytest

from lab import process as lab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and real-time signals")

RANK = """
import faulthandler, os, pathlib, signal, sys, time
import ezpz

number = signal.SIGRTMIN + 11

def end_of_it(*_):  # its handler was there when the agent looked, and is gone when the signal comes
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

ezpz.heartbeat()
time.sleep(0.3)  # until the agent has heard of the signal
if sys.argv[1] == "ends":
    faulthandler.unregister(number)  # as the end of every Python does
elif sys.argv[1] == "races":
    signal.signal(number, end_of_it)
pathlib.Path("up." + os.environ["RANK"]).touch()
if sys.argv[1] == "becomes a shell":
    os.execvp("sh", ["sh", "-c", "until [ -e go ]; do sleep 0.1; done"])
end = time.monotonic() + 240
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.05)
"""
WAYS = ["ends", "becomes a shell", "races"]


@pytest.fixture
def ask(start_launch, run_cli, tmp_path, home, clean_env):
    """Start two ranks, ask them for their stacks, let them end, and return what the launch printed and its code."""

    def run(how, *, env=None, shell=False):
        program = [sys.executable, "-c", RANK, how]
        words = ["sh", "-c", '"$@"; exit $?', "sh", *program] if shell else program
        launched = start_launch("-n", "2", *words, env=env)
        lab.wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 2, 30, "both ranks")
        (folder,) = home.glob(".local/state/ezpz/launches/*")
        asked = run_cli([sys.executable, "-m", "ezpz", "stacks", folder.name.rpartition("-")[2]], env or clean_env)
        (tmp_path / "go").touch()
        errors = launched.communicate(timeout=60)[1]
        assert asked.returncode == 0, asked.stderr
        return errors, launched.returncode

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("how", "shell"), [*((how, False) for how in WAYS), ("ends", True), ("races", True)])
def test_ezpz_stacks_harms_no_rank(ask, how, shell):
    errors, code = ask(how, shell=shell)
    assert code == 0, errors
    assert "killed" not in errors
    assert errors.count("ended of the signal that asks for stacks") == (2 if how == "races" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ends", "races"])
def test_ezpz_stacks_harms_no_rank_of_an_mpi(flavour, ask, how):
    errors, code = ask(how, env=flavour.env())
    assert code == 0, errors
    assert "killed" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_a_time_limit_is_the_cause_and_no_signal_of_ours(launch, how):
    done = launch("--timeout", "2", "-n", "2", sys.executable, "-c", RANK, how)
    assert done.returncode == 124, done.stderr
    assert "killed by" not in done.stderr


def test_what_python_knows_nothing_of_is_seen_too():
    from ezpz import proc

    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert proc.catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not proc.catches("self", signal.SIGUSR2)
    assert not proc.catches(2**22 + 1, signal.SIGUSR2)
