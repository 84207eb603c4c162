"""`in_ranks.py` under every launcher: one launch each, because every rank pays seconds for torch."""

import sys
from pathlib import Path

import pytest

IN_RANKS = Path(__file__).with_name("in_ranks.py")


def inside(python):
    return [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "--color=no",
        "--timeout=120",
        str(IN_RANKS),
    ]


def check(done, ranks):
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_under_our_own_launcher(run_cli, clean_env, ranks):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", ranks]
    check(run_cli([*launch, *inside(sys.executable)], {**clean_env, "EXPECTED_WORLD": str(ranks)}, 180), ranks)


def test_under_torchrun(run_cli, clean_env):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    check(run_cli([*torchrun, *inside(sys.executable)], {**clean_env, "EXPECTED_WORLD": "2"}, 180), 2)


def test_alone(run_cli, clean_env):
    check(run_cli(inside(sys.executable), {**clean_env, "EXPECTED_WORLD": "1"}, 180), 1)


def test_under_a_bare_mpiexec_without_mpi4py_and_without_master_variables(flavour, run_cli):
    env = flavour.bare_env(EXPECTED_WORLD="3")
    check(run_cli(flavour.command(3, inside(flavour.python)), env, 180), 3)


def test_under_our_launcher_with_each_mpi(flavour, run_cli):
    launch = [flavour.python, "-m", "ezpz.launch", "-n", "2"]
    check(run_cli([*launch, *inside(flavour.python)], flavour.env(EXPECTED_WORLD="2"), 180), 2)
