"""A run that is killed at any moment and resumed ends as if it had never been killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.track.run_reader import open_run
from lab import process, seed

SOURCES = str(Path(ezpz.__file__).parents[1])
STEPS = 40
TRAIN = [
    *("--preset", "debug", "--max_iters", str(STEPS), "--seq_len", "32", "--batch_size", "4", "--save_freq", "4"),
    *("--keep", "2", "--no_plots", "--resume", "auto", "--log_freq", "10"),
]


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


def launch(folder, *more):
    return [
        *(sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, "-m", "ezpz.examples.fsdp_tp"),
        *(*TRAIN, "--outdir", str(folder), *more),
    ]


def final(folder):
    table = open_run(folder).table
    losses = dict(zip(table.cells["loss"].index, table.cells["loss"].values, strict=True))
    return table.steps[-1], losses[len(table.steps) - 1], table.cells["val_loss"].values[-1]


def rows(folder):
    try:
        return (folder / "metrics.jsonl").read_text().count('"loss":')
    except OSError:
        return 0


def kill_rank_0(line, env, folder, after, moment):
    """Start a run and kill its rank 0 a moment after so many rows more; tell whether that came in time."""
    before = rows(folder)
    with subprocess.Popen(
        line, env=env, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        there = lambda: rows(folder) >= before + after or run.poll() is not None  # noqa: E731  # one expression
        process.wait_until(there, 120, "so many rows", every=0.002)
        time.sleep(moment)
        if run.poll() is None:
            os.kill(json.loads((folder / "run.json").read_text())["process"]["pid"], signal.SIGKILL)
        said = run.communicate(timeout=1000)[0]
    assert run.returncode in {0, 137}, said
    return run.returncode == 137


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_again_and_again_it_ends_with_the_loss_of_an_unbroken_run(run_cli, env, tmp_path):
    whole = run_cli(launch(tmp_path / "whole"), env, 200)
    assert whole.returncode == 0, whole.stdout + whole.stderr

    broken, draw = tmp_path / "broken", random.Random(seed.of_the_day())  # pytest's header says which it is
    kills = sum(
        kill_rank_0(launch(broken, *how), env, broken, draw.randint(5, 12), draw.random() * 0.05)
        for how in ((), ("--async_save",))
    )
    assert kills >= 1
    done = run_cli(launch(broken, "--async_save"), env, 200)
    assert done.returncode == 0, done.stdout + done.stderr

    assert final(broken) == final(tmp_path / "whole")
    assert final(broken)[0] == STEPS - 1
    assert sorted(open_run(broken).table.steps) == list(range(STEPS))
