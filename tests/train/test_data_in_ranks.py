"""`in_ranks_data.py` and `in_ranks_seams.py` on two gloo ranks under our own launcher, once: torch costs seconds."""

import os
import sys
from pathlib import Path

import pytest

import ezpz

IN_RANKS = [Path(__file__).with_name(f"in_ranks_{name}.py") for name in ("data", "seams")]


@pytest.mark.slow
def test_two_ranks_come_to_the_same_data_or_error_and_say_what_does_not_fit_together(run_cli, clean_env, tmp_path):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120"]
    source = os.pathsep.join([str(Path(ezpz.__file__).parents[1]), str(Path(__file__).parent)])
    env = {**clean_env, "PYTHONPATH": source, "FOLDER": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", 2, sys.executable, *words, *IN_RANKS], env, 240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
