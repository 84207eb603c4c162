"""Trainings with a DataLoader that are killed anywhere and resumed on other ranks: every id once per epoch."""

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


def train(folder, env, kills, seed):
    chance = random.Random(seed)
    folder.mkdir()
    for attempt in range(kills + 1):
        ranks = chance.randint(1, 4)
        line = [sys.executable, "-m", "ezpz.launch", "-n", ranks, sys.executable, HERE / "train_until_killed.py"]
        line = [*map(str, line), str(folder), str(attempt), str(chance.randint(1, 3))]
        with (folder / "output").open("a") as output:
            run = subprocess.Popen(line, env=env, stdout=output, stderr=output, cwd=folder, start_new_session=True)
            end, at = time.monotonic() + LIMIT, chance.randint(1, 12)
            noted = folder / f"attempt-{attempt}-rank-0"
            while run.poll() is None and time.monotonic() < end:
                lines = noted.read_text().count("\n") if noted.exists() else 0
                if attempt < kills and lines >= at:
                    os.killpg(run.pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
            run.wait(30)
        if (folder / "finished").exists():
            return attempt + 1
    raise AssertionError((folder / "output").read_text())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kills", [pytest.param(4), pytest.param(60, marks=[pytest.mark.learn, pytest.mark.timeout(14000)])]
)
def test_killed_anywhere_every_id_comes_once_per_epoch(kills, clean_env, tmp_path):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    trainings = 0
    while kills > 0:
        folder = tmp_path / f"training-{trainings}"
        attempts = train(folder, env, min(kills, 6), trainings)
        assert rows_that_count(folder, attempts) == Counter(dict.fromkeys(range(90), 2))
        kills -= max(1, attempts - 1)
        trainings += 1
