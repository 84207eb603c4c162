"""A run that draws or exports is not idle: neither the rank that does, nor those that wait for it."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest

pytestmark = pytest.mark.slow

# Rank 0 ends its run, which takes longer than the limit; the other rank waits for it as in a barrier: without a beat.
# What is stuck in drawing is told after a second, which otherwise is a minute.
SCRIPT = """
import os, pathlib, sys, time
import ezpz, ezpz.progress
from ezpz.view import plots
def work():
    end = time.monotonic() + 5
    while time.monotonic() < end: sum(range(10_000))
def stuck():
    time.sleep(600)
plots.draw_all = lambda *_, **__: {how}() or ({{}}, [])
ezpz.progress._WAITS = 1.0
history = ezpz.History(outdir="run")
for step in range(3):
    history.update({{"loss": 1.0}})
    time.sleep(0.4)
recorded, done = pathlib.Path("recorded"), pathlib.Path("done")
if os.environ["RANK"] == "0":
    recorded.touch()
    history.finalize(show=False)
    {then}
    done.touch()
else:
    while not recorded.exists():  # rank 0 may have started later
        ezpz.heartbeat()
        time.sleep(0.05)
    while not done.exists(): time.sleep(0.05)
print("rank", os.environ["RANK"], "is through", flush=True)
"""


def launch(run_cli, tmp_path, how, then="pass"):
    (tmp_path / "script.py").write_text(SCRIPT.format(how=how, then=then))
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--idle-timeout", "2", sys.executable, "script.py"]
    return run_cli(line, timeout=60)


def test_a_run_that_draws_longer_than_the_limit_is_not_ended(run_cli, tmp_path):
    done = launch(run_cli, tmp_path, "work", "time.sleep(1)")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall("rank . is through", done.stdout)) == ["rank 0 is through", "rank 1 is through"]
    assert "--idle-timeout" not in done.stderr


def test_one_that_is_stuck_in_drawing_is_ended_and_named(run_cli, tmp_path):
    done = launch(run_cli, tmp_path, "stuck")
    assert done.returncode == 124
    assert "ezpz: rank 0 on host" in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"


def test_time_counts_again_when_the_end_is_over(run_cli, tmp_path):
    done = launch(run_cli, tmp_path, "work", "time.sleep(600)")
    assert done.returncode == 124
    assert "has shown no progress for 2 s (--idle-timeout)" in done.stderr


def test_a_busy_rank_that_dies_holds_the_others_up_no_longer(run_cli, tmp_path):
    done = launch(run_cli, tmp_path, "os._exit(0) or work")
    assert done.returncode == 124
    assert "ezpz: rank 1 on host" in done.stderr


FAILS_LATE = """
import os, signal, time
import ezpz
ezpz.heartbeat()
if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGSTOP)  # its stack is waited for, also by the second look 2 s later
time.sleep(2 + 2.3)
raise SystemExit(3)
"""


def test_a_rank_that_fails_while_all_are_asked_what_they_do_is_the_cause(run_cli, tmp_path):
    (tmp_path / "script.py").write_text(FAILS_LATE)
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--idle-timeout", "2", sys.executable, "script.py"]
    done = run_cli(line, timeout=60)
    assert "asking every rank what it is doing" in done.stderr
    assert "ezpz: rank 1 on host" in done.stderr
    assert "exited with code 3" in done.stderr
    assert done.returncode == 3, done.stderr


# The program has ended, and takes longer than the idle limit of 2 s to be gone. That of an end is 5 minutes, here 4 s.
ENDS = """
import atexit, os, sys, threading, time
import ezpz, ezpz.progress
from concurrent.futures import ThreadPoolExecutor
ezpz.progress._ENDING = 4.0
ezpz.heartbeat()
def linger():
    time.sleep(float(sys.argv[2]))
if sys.argv[1] == "atexit":
    atexit.register(linger)
elif sys.argv[1] == "thread":
    threading.Thread(target=linger).start()
elif sys.argv[1] == "pool":
    ThreadPoolExecutor().submit(linger)
elif sys.argv[1] == "raises":
    atexit.register(linger)
    sys.exit(3)
"""
HANGS = "has come to the end of its program, and Python has not ended for 4 seconds since (--idle-timeout)"
PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (f"exec {PYTHON} ends.py atexit 3.2", 0, ""),
        (f"exec {PYTHON} ends.py thread 3.2", 0, ""),
        (f"exec {PYTHON} ends.py pool 3.2", 0, ""),
        (f"exec {PYTHON} ends.py raises 3.2", 3, "exited with code 3"),
        (f"{PYTHON} ends.py none 0; sleep 5", 0, ""),  # another program, of which nothing is expected
        (f"exec {PYTHON} ends.py atexit 600", 124, HANGS),
    ],
)
def test_a_program_that_has_ended_has_longer_to_be_gone(run_cli, tmp_path, command, code, words):
    (tmp_path / "ends.py").write_text(ENDS)
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--idle-timeout", "2", "sh", "-c", command]
    done = run_cli(line, timeout=60)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
