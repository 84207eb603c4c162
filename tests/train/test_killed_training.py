"""Trainings with data of three kinds, killed anywhere and resumed on other ranks: every id once per epoch."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import ezpz

HERE = Path(__file__).parent
SAMPLES, EPOCHS = 60, 3
KINDS = ("stream", "map", "state", "parts", "batches")
LIMIT = 300  # seconds for one attempt, on a machine that is busy


def rows_that_count(folder, attempts):
    """The ids of all steps that no later attempt rolled back: an attempt counts up to where the next one began."""
    starts = {n: int(file.read_text()) for n in range(attempts) if (file := folder / f"attempt-{n}-start").exists()}
    found = Counter()
    for attempt in starts:
        limit = min((start for later, start in starts.items() if later > attempt), default=10**9)
        for file in folder.glob(f"attempt-{attempt}-rank-*"):
            for line in file.read_text().splitlines():
                _, _, step, *ids = map(int, line.split())
                if step < limit:
                    found.update(ids)
    return found


def plan(kills, chance):
    """(ranks, batch size, rows of rank 0 after which it is killed) of each attempt; the last may end.

    Every number of ranks comes once before one comes again, as ranks are what an attempt costs.
    """
    ranks = [each for _ in range(0, kills, 4) for each in chance.sample((1, 2, 3, 4), 4)][:kills]
    return [*((each, chance.randint(1, 3), chance.randint(1, 12)) for each in ranks), (chance.randint(1, 2), 3, None)]


def train(folder, env, kills, seed, kind):
    folder.mkdir()
    attempts = plan(kills, random.Random(seed))
    for attempt, (ranks, batch_size, at) in enumerate(attempts):
        line = [sys.executable, "-m", "ezpz.launch", "-n", ranks, sys.executable, HERE / "train_until_killed.py"]
        line = [*map(str, line), str(folder), str(attempt), str(batch_size), kind]
        with (folder / "output").open("a") as output:
            run = subprocess.Popen(line, env=env, stdout=output, stderr=output, cwd=folder, start_new_session=True)
            end = time.monotonic() + LIMIT
            noted = folder / f"attempt-{attempt}-rank-0"
            while run.poll() is None and time.monotonic() < end:
                if at is not None and noted.exists() and noted.read_text().count("\n") >= at:
                    os.killpg(run.pid, signal.SIGKILL)
                    break
                time.sleep(0.02)
            if run.poll() is None and time.monotonic() >= end:
                os.killpg(run.pid, signal.SIGKILL)
            run.wait(60)
        if (folder / "finished").exists():
            return attempt + 1
    raise AssertionError(f"{kind} {attempts} with seed {seed!r}: not finished\n{(folder / 'output').read_text()}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kills", [pytest.param(4), pytest.param(60, marks=[pytest.mark.learn, pytest.mark.timeout(14000)])]
)
def test_killed_anywhere_every_id_comes_once_per_epoch(kills, clean_env, tmp_path):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    seed, left, trainings = os.environ.get("EZPZ_SEED") or "0", kills, 0
    while left > 0:
        folder = tmp_path / f"training-{trainings}"
        kind = KINDS[trainings % len(KINDS)]
        attempts = train(folder, env, min(left, 6), f"{seed} {trainings}", kind)
        expected = Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
        assert rows_that_count(folder, attempts) == expected, f"EZPZ_SEED={seed} {kind}"
        left -= max(1, attempts - 1)
        trainings += 1
        print(f"EZPZ_SEED={seed}: {kills - left} of {kills} kills, {trainings} trainings, now {kind}", flush=True)
