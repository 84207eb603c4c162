"""`in_ranks_seams.py` on two ranks under our own launcher, once: every rank pays seconds for torch."""

import sys
from pathlib import Path

import pytest

import ezpz

IN_RANKS = Path(__file__).with_name("in_ranks_seams.py")


@pytest.mark.slow
def test_what_does_not_fit_together_is_said(run_cli, clean_env):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120"]
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", 2, sys.executable, *words, IN_RANKS], env, 180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
