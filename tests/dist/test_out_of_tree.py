"""ezpz on a registered out-of-tree device (torch's PrivateUse1), with a torch that has no accelerator of its own.

Needs a C++ compiler, Python's headers and ninja; the first run builds for half a minute into ``.test/``.
"""

import sys
from pathlib import Path

import pytest

IN_RANKS = Path(__file__).with_name("in_ranks_outoftree.py")


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_fsdp2_ddp_and_all_of_set_up_work_on_a_device_outside_torch(hostram, run_cli, clean_env):
    pytest_args = ["-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120", IN_RANKS]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2"]
    env = {**clean_env, "TORCH_DEVICE": "hostram", "EZPZ_NGPU_PER_HOST": "2"}
    done = run_cli([*launch, sys.executable, "-m", "pytest", *pytest_args], env, 180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("8 passed") == 2, done.stdout
