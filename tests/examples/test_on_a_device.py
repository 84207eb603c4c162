"""Every trainer on a device that is not the CPU: `in_ranks_on_a_device.py` in two ranks."""

import sys
from pathlib import Path

import pytest


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_trainers_train_and_evaluate(hostram, run_cli, clean_env, tmp_path):
    inside = Path(__file__).with_name("in_ranks_on_a_device.py")
    pytest_args = ["-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=1200", inside]
    env = {
        **clean_env,
        "TORCH_DEVICE": "hostram",
        "EZPZ_NGPU_PER_HOST": "2",
        "EZPZ_TEST_FOLDER": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2"]
    done = run_cli([*launch, sys.executable, "-m", "pytest", *pytest_args], env, 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
