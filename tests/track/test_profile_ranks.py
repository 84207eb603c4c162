"""`in_ranks_profile.py` on two ranks: one launch, because every rank pays seconds for torch."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

IN_RANKS = Path(__file__).with_name("in_ranks_profile.py")
SRC = str(Path(__file__).parents[2] / "src")
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120"]


@pytest.mark.dear
@pytest.mark.slow
def test_two_ranks_profile_and_look_side_by_side(run_cli, clean_env, tmp_path):
    env = {**clean_env, "PYTHONPATH": SRC, "EZPZ_TEST_FOLDER": str(tmp_path / "run")}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, *PYTEST, str(IN_RANKS)], env, 180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
