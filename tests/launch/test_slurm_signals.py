"""Slurm signals its tasks, and what they have started only if it follows parents: a rank gets each signal once."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from lab import process
from lab.idle import Deadline

RANK = """
import os, signal, time
log = os.open("got." + os.environ["RANK"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
end = time.monotonic() + 250
def note(number, _):
    global end
    os.write(log, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        end = time.monotonic() + 1.5  # a second one would have come by then
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, note)
os.write(log, b"up\\n")
while time.monotonic() < end:
    time.sleep(0.02)
"""


def settle():
    """Let shims tell the agent that their ranks run."""
    deadline = Deadline(0.5)
    while not deadline.is_over():
        time.sleep(0.1)


STEP, BATCH = ["--signal=USR2"], ["--batch", "--signal=USR2"]


# SIGUSR2 goes to the processes of the step, or to launch alone; SIGTERM, from scancel, to all processes of the job.
@pytest.mark.parametrize(
    ("flavour", "hosts", "ways"),
    [("srun", 2, [STEP, BATCH]), ("srun --mpi no", 2, [STEP, BATCH]), ("local", 1, [BATCH])],
    ids=["srun", "agents", "local"],
)
def test_a_rank_gets_each_signal_of_slurm_once(each_slurm, clean_env, tmp_path, flavour, hosts, ways):
    (tmp_path / "rank.py").write_text(RANK)
    line = f"exec {sys.executable} -m ezpz.launch --flavour {flavour} -n 2 {sys.executable} rank.py"
    expected = ["up"]

    def got():
        return [path.read_text().split() for path in sorted(tmp_path.glob("got.*"))]

    with each_slurm.submitted(line, clean_env, tmp_path, hosts) as job:
        process.wait_until(lambda: got() == [expected] * 2, 30, "two ranks")
        settle()
        for way in ways:
            each_slurm.run(["scancel", *way, job])
            expected.append("SIGUSR2")
            process.wait_until(lambda: got() == [expected] * 2, 5, "SIGUSR2 in every rank")
            time.sleep(2.5)  # a second one would have come by now, and would count as another from now on
        each_slurm.run(["scancel", job])
        process.wait_until(lambda: all("SIGTERM" in words for words in got()), 5, "SIGTERM in every rank")
    assert got() == [[*expected, "SIGTERM"]] * 2


SAVES = """
import os, signal, sys, time
def save(number, _):
    time.sleep(12)  # longer than the 10 s that launch gives elsewhere
    open("saved." + os.environ["RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("up." + os.environ["RANK"], "w").close()
time.sleep(250)
"""
UTILS = Path(__file__).resolve().parents[2] / "src/ezpz/bin/utils.sh"


def test_ranks_have_the_time_to_save_that_slurm_gives_them(slurm_by_groups, clean_env, tmp_path):
    """Slurm signals the script's shell; when that ends, Slurm kills at once all that it has started."""
    slurm = slurm_by_groups
    rank = f"{sys.executable} rank.py"
    ways = {  # the job of two hosts first: the others would fill one of them
        "plain": (2, f"{sys.executable} -m ezpz.launch --flavour srun -n 2 {rank}"),
        "exec": (1, f"exec {sys.executable} -m ezpz.launch --flavour local -n 2 {rank}"),
        "utils.sh": (1, f"source {UTILS}\nset -euo pipefail\nlaunch --flavour local -n 2 {rank}"),
    }
    with contextlib.ExitStack() as stack:
        jobs = []
        for name, (hosts, line) in ways.items():
            folder = tmp_path / name
            folder.mkdir()
            (folder / "rank.py").write_text(SAVES)
            jobs.append(stack.enter_context(slurm.submitted(line, clean_env, folder, hosts)))
        process.wait_until(lambda: len(list(tmp_path.glob("*/up.*"))) == 6, 60, "the ranks of three jobs")
        settle()
        slurm.run(["scancel", *jobs])
        process.wait_until(lambda: not slurm.run(["squeue", "--noheader"]).stdout, 60, "the end of the jobs")
    told = {name: (tmp_path / name / "out").read_text() for name in ways}
    assert {name: len(list((tmp_path / name).glob("saved.*"))) for name in ways} == dict.fromkeys(ways, 2), told
    assert [name for name, text in told.items() if "ends of the first signal" in text] == ["plain"]


TWO_SPEEDS = """
import os, signal, sys, time
rank, came = os.environ["RANK"], []
def end(number, _):
    came.append(number)
    if rank == "1":
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, end)
open("up." + rank, "w").close()
while not came:
    time.sleep(0.02)
time.sleep(6)  # longer than a rank has when another one has failed
open("saved." + str(len(came)), "w").close()
"""


def test_a_rank_that_ends_sooner_of_slurms_signal_hurries_no_other(slurm_by_groups, clean_env, tmp_path):
    (tmp_path / "rank.py").write_text(TWO_SPEEDS)
    line = f"exec {sys.executable} -m ezpz.launch --flavour srun -n 2 {sys.executable} rank.py"
    slurm = slurm_by_groups
    with slurm.submitted(line, clean_env, tmp_path, 2) as job:
        process.wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 2, 30, "two ranks")
        settle()
        slurm.run(["scancel", "--signal=TERM", job])
        process.wait_until(lambda: not slurm.run(["squeue", "--noheader"]).stdout, 40, "the end of the job")
    assert [path.name for path in tmp_path.glob("saved.*")] == ["saved.1"], (tmp_path / "out").read_text()
