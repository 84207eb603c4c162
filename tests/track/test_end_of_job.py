"""A real Slurm job that ends before its training does: what lies in the run folder then."""

import os
import sys
import time

import pytest

from ezpz.track.lazy_dataset import open_dataset
from ezpz.track.run_reader import open_run

MATRIX = os.environ.get("EZPZ_MATRIX")  # read now: tests have an environment of their own

TRAIN = """
import sys, time
import ezpz
rank = ezpz.setup_torch()
history = ezpz.History("train", sys.argv[1], window=10)
for step in range(10**6):
    history.update({"loss": 1.0 / (step + 1), "rank": rank})
    time.sleep(0.05)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["scancel", "wall time"])
def test_the_end_of_a_job_leaves_a_complete_export(slurm, clean_env, tmp_path, end):
    if end == "wall time" and not MATRIX:
        pytest.skip("the shortest job that Slurm ends takes over a minute: make matrix")
    script, out = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAIN)
    launch = f"{sys.executable} -m ezpz.launch {sys.executable} {script} {out}"
    job = ["#!/bin/bash"]
    if end == "scancel":
        job.append(f"(while ! grep -q step.:40, {out}/metrics.jsonl; do sleep 0.2; done; scancel $SLURM_JOB_ID) &")
    options = ["-N2", "--ntasks-per-node=1", *(["--time=1"] if end == "wall time" else [])]
    done = slurm.sbatch(options, "\n".join([*job, launch, ""]), {**clean_env, "TORCH_DEVICE": "cpu"}, timeout=300)
    # A cancelled job counts as ended while its processes still use the time that Slurm leaves them to end.
    deadline = time.monotonic() + 60
    while not (out / "train.h5").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    run = open_run(out)
    assert (run.state, run.cause.partition(",")[0]) == ("stopped", "SIGTERM"), done.stdout
    rows = len(run.rows.steps)
    assert rows > 40
    dataset = open_dataset(out / "train.h5")
    assert abs(dataset.sizes["draw"] - rows) <= 1
    assert dataset["rank_max"].values[0] == 1.0  # the other host's values came in time
