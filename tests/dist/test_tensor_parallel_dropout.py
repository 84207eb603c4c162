"""`in_ranks_dropout.py` on two gloo ranks under our own launcher, once."""

import sys
from pathlib import Path

import pytest

IN_RANKS = Path(__file__).with_name("in_ranks_dropout.py")


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_ranks(run_cli, clean_env):
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no"]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", 2, *inside, "--timeout=200", IN_RANKS]
    done = run_cli(launch, {**clean_env, "OMP_NUM_THREADS": "1"}, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
