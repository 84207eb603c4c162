"""`launch` in a batch script of Slurm, which signals the script's shell alone."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from shells import UTILS

from lab.process import wait_until

pytestmark = pytest.mark.parametrize("shell", ["bash"], indirect=True)

# In place of launch: answers that ezpz is importable, notes what it gets, and ends with 5 unless a signal ends it.
PYTHON = """#!/bin/bash
case "$*" in *find_spec*) exit 0 ;; esac
if [ -e slow ]; then echo starts >>got; sleep 1; fi
for name in TERM USR1 USR2 HUP; do trap "echo $name >>got" "$name"; done
cat >input
echo up >>got
while ! grep -q TERM got && [ ! -e over ]; do sleep 0.02; done
if grep -q TERM got; then sleep 0.3; echo saved >>got; exit 143; fi
exit 5
"""


@pytest.fixture
def script(shell):
    """`script(text)` -> Popen of a stand-in for slurmstepd, `.shell` the pid of the script that it runs."""
    shell.program("python3", PYTHON)
    shutil.copy("/bin/sh", shell.bin / "slurmstepd")
    started = []

    def start(text):
        (shell.cwd / "script").write_text(f"#!/bin/bash\nset -euo pipefail\nsource {UTILS}\n{text}\n")
        line = "bash script <given & echo $! >pid; code=0; wait $! || code=$?; echo $code >code"
        (shell.cwd / "given").write_text("a line\n")
        env = {**shell.env, "SLURM_JOB_ID": "1"}
        process = subprocess.Popen([shell.bin / "slurmstepd", "-c", line], cwd=shell.cwd, env=env)
        started.append(process)
        wait_until(lambda: got(shell), 20, "launch in the script")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(120)


def got(shell):
    file = shell.cwd / "got"
    return file.read_text().split() if file.exists() else []


def signal_script(shell, number):
    os.kill(int((shell.cwd / "pid").read_text()), number)


def code(shell, process):
    process.wait(120)
    return int((shell.cwd / "code").read_text())


def test_sigterm_reaches_launch_and_the_script_ends_of_it_when_all_is_saved(shell, script):
    process = script("launch python3 train.py\ntouch after")
    signal_script(shell, signal.SIGTERM)
    assert code(shell, process) == 143
    assert got(shell) == ["up", "TERM", "saved"]
    assert not (shell.cwd / "after").exists()
    assert (shell.cwd / "input").read_text() == "a line\n"


def test_sigusr_is_passed_on_and_ends_nothing(shell, script):
    process = script("code=0; launch python3 train.py || code=$?; trap >traps; exit $code")
    for name in ("USR2", "USR1"):
        signal_script(shell, getattr(signal, f"SIG{name}"))
        wait_until(lambda name=name: name in got(shell), 10, name)
    time.sleep(0.1)
    (shell.cwd / "over").touch()
    assert code(shell, process) == 5
    assert got(shell) == ["up", "USR2", "USR1"]
    assert "ezpz" not in (shell.cwd / "traps").read_text()


@pytest.mark.slow
def test_sigusr_waits_for_a_launch_that_only_starts(shell, script):
    """Until its first lines have run, a Python ends of it."""
    (shell.cwd / "slow").touch()
    process = script("launch python3 train.py")
    assert got(shell) == ["starts"]
    signal_script(shell, signal.SIGUSR2)
    wait_until(lambda: "USR2" in got(shell) or process.poll() is not None, 10, "SIGUSR2")
    (shell.cwd / "over").touch()
    assert code(shell, process) == 5
    assert sorted(got(shell)) == ["USR2", "starts", "up"]


def test_sigterm_ends_a_script_in_which_a_warning_waits(shell, script):
    (shell.cwd / "slow").touch()
    process = script("launch python3 train.py")
    signal_script(shell, signal.SIGUSR2)
    signal_script(shell, signal.SIGTERM)
    assert code(shell, process) == 143
    # Which trap bash runs first is open.
    assert sorted(got(shell)) in (["starts"], ["TERM", "USR2", "saved", "starts", "up"])


def test_a_signal_that_the_script_traps_is_its_own(shell, script):
    process = script("trap 'touch mine' USR1\nlaunch python3 train.py || exit 6")
    signal_script(shell, signal.SIGUSR1)
    wait_until((shell.cwd / "mine").exists, 10, "the script's own trap")
    assert got(shell) == ["up"]
    signal_script(shell, signal.SIGHUP)
    wait_until(lambda: "HUP" in got(shell), 10, "SIGHUP")
    signal_script(shell, signal.SIGTERM)
    assert code(shell, process) == 143
    assert got(shell) == ["up", "HUP", "TERM", "saved"]
