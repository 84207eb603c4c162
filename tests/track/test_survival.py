"""Runs that are killed at random moments, alone and as ranks: what was acknowledged reads back, and makes the rest."""

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

from ezpz.track import read_journal
from ezpz.track.dataset import export_run
from ezpz.track.lazy_dataset import open_dataset
from ezpz.track.run_reader import open_run
from ezpz.view.plots import draw_run
from lab.process import wait_until
from lab.run_folders import environ

MOMENTS = 25

# Tells in shared memory how many rows were acknowledged: what a pipe says could be lost with its writer.
WRITER = """
import mmap, os, struct, sys
from ezpz.track import History
told = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8)
history = History("r", sys.argv[2])
for step in range(10**7):
    history.update({"loss": 1.0 / (step + 1), "train/lr": 0.1, "text": "é", "n": step, "v": [1.0, float("nan")]})
    told[:] = struct.pack("q", step + 1)
"""


def started(code, count, folder):
    count.write_bytes(bytes(8))
    command, env = [sys.executable, "-c", code, count, folder], environ(folder)
    return subprocess.Popen(command, cwd=folder.parent, env=env, stderr=subprocess.DEVNULL)


def acknowledged(count):
    with count.open("r+b") as file, mmap.mmap(file.fileno(), 8) as told:
        return struct.unpack("q", told[:])[0]


@pytest.mark.slow
def test_every_acknowledged_row_outlives_a_kill_at_any_moment(tmp_path):
    chance = random.Random(7)
    for number in range(MOMENTS):
        folder, count = tmp_path / f"run{number}", tmp_path / f"count{number}"
        folder.mkdir()
        with started(WRITER, count, folder) as process:
            deadline = time.monotonic() + 60
            while not acknowledged(count) and number % 5 and time.monotonic() < deadline:
                time.sleep(0.005)  # every fifth may be killed before its first row
            time.sleep(chance.random() * 0.15)
            process.kill()
        promised = acknowledged(count)
        rows = read_journal(folder) if (folder / "metrics.jsonl").exists() else []
        assert promised <= len(rows) <= promised + 1
        assert [row["step"] for row in rows] == list(range(len(rows)))
        if not rows:
            continue
        assert open_run(folder).state == "died"
        dataset = open_dataset(export_run(folder))
        assert dataset["n"].values.tolist() == list(range(len(rows)))
        if number % 10 == 1:
            made, problems = draw_run(open_run(folder), "stamp", show=False)
            assert problems == []
            assert (folder / "report.html").stat().st_size > 1000
            assert (made["tplot"] / "loss.txt").read_text().count("\n") == 25


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    folder, count = tmp_path / "run", tmp_path / "count"
    folder.mkdir()
    promised = 0
    for _ in range(3):
        with started(WRITER, count, folder) as process:
            deadline = time.monotonic() + 60
            while acknowledged(count) < 20 and time.monotonic() < deadline:
                time.sleep(0.005)
            process.kill()
        promised += acknowledged(count)
    run = open_run(folder)
    assert promised <= len(run.rows) <= promised + 3
    assert set(run.rows.attempts) == {1, 2, 3}
    assert [fact["attempt"] for fact in run.facts["earlier"]] == [1, 2]
    assert run.table.steps == sorted(run.table.steps)
    dataset = open_dataset(export_run(folder))
    assert dataset.sizes["draw"] == len(run.rows.steps)


RANKS = """
import mmap, os, struct, sys, time
if sys.argv[3] == "torch":
    import ezpz
    ezpz.setup_torch()
from ezpz.track import History
rank = int(os.environ["RANK"])
told = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 24)
told[8 + 8 * rank : 16 + 8 * rank] = struct.pack("q", os.getpid())
history = History("r", sys.argv[2], window=5)
for step in range(10**7):
    history.update({"loss": float(step), "rank": rank})
    if rank == 0:
        told[:8] = struct.pack("q", step + 1)
    time.sleep(0.001)
"""


def killed(tmp_path, number, library, moment):
    """Kill one of two ranks, rank 0 at even numbers, and return what was promised, the folder and what launch said.

    That is after so many seconds, or None for when values of both have arrived.
    """
    folder, count = tmp_path / f"run{number}", tmp_path / f"count{number}"
    folder.mkdir()
    count.write_bytes(bytes(24))
    env = environ(tmp_path, TORCH_DEVICE="cpu")
    program = [sys.executable, "-c", RANKS, count, folder, library]
    command = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--flavour", "local", *program]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as launch:
        try:
            wait_until(lambda: min(shared(count)), 120, "a row and both ranks", every=0.005)
            if moment is None:
                wait_until(lambda: b'"k":"ranks"' in (folder / "metrics.jsonl").read_bytes(), 120, "a record of both")
            else:
                time.sleep(moment)
            os.kill(shared(count)[1 + number % 2], signal.SIGKILL)
            out, _ = launch.communicate(timeout=120)
        finally:
            launch.kill()
    assert launch.returncode == 128 + signal.SIGKILL, out.decode()
    return shared(count)[0], folder, out.decode()


def shared(count):
    with count.open("r+b") as file, mmap.mmap(file.fileno(), 24) as told:
        return struct.unpack("3q", told[:])


def check_what_is_left(promised, folder, number):
    rows = read_journal(folder)
    assert promised <= len(rows) <= promised + 1
    run = open_run(folder)
    assert run.state == ("stopped" if number % 2 else "died")  # the other rank had SIGTERM, and time for a last word
    if number % 2:
        assert open_dataset(folder / "r.h5")["loss"].values.tolist() == [float(step) for step in range(len(rows))]
    assert open_dataset(export_run(folder))["loss"].values.tolist() == [float(step) for step in range(len(rows))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_row_of_two_ranks_outlives_a_kill_of_either_at_any_moment(tmp_path):
    chance = random.Random(11)
    for number in range(MOMENTS):
        promised, folder, _ = killed(tmp_path, number, "no torch", chance.random() * 0.1)
        check_what_is_left(promised, folder, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_values_of_the_other_rank_that_had_arrived_outlive_a_kill_too(tmp_path, number):
    promised, folder, out = killed(tmp_path, number, "torch", None)
    check_what_is_left(promised, folder, number)
    windows = open_run(folder).windows
    assert windows, out
    assert windows[0]["m"]["keys"]["rank"]["max"][0] == 1.0


FULL = """
import resource, signal, sys
from ezpz.track import History
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
history = History("r", "out")
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))   # a disk that is full from here on
for step in range(500):
    history.update({"loss": float(step)})
print("trained to the end")
if sys.argv[1] != "exit":
    history.finalize(plots=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["finalize", "exit"])
def test_a_disk_that_stays_full_is_told_truly_at_the_end(run_python, tmp_path, how):
    result = run_python(FULL, how)
    out = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == 0, out
    steps = [row["step"] for row in read_journal(tmp_path / "out")]
    assert steps == list(range(len(steps)))
    assert 20 < len(steps) < 100
    told = f"{500 - len(steps)} rows of steps {len(steps)} to 499 could not be written"
    assert f"metrics.jsonl is not complete: {told}." in out
    assert told in open_run(tmp_path / "out").facts["problems"]
    assert "every row" not in out.lower()
    assert "is complete" not in out
