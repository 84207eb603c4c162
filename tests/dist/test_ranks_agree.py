"""`in_ranks.py` under every launcher: one launch each, because every rank pays seconds for torch."""

import os
import sys
from pathlib import Path

import pytest

from lab import flavours
from lab.require import require

MATRIX = os.environ.get("EZPZ_MATRIX")  # `make matrix`: every number of ranks under every launcher
IN_RANKS = Path(__file__).with_name("in_ranks.py")


def inside(python):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120"]
    return [python, *words, str(IN_RANKS)]


def check(done, ranks):
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4] if MATRIX else [2])
def test_under_our_own_launcher(run_cli, clean_env, ranks):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", ranks]
    check(run_cli([*launch, *inside(sys.executable)], {**clean_env, "EXPECTED_WORLD": str(ranks)}, 180), ranks)


@pytest.mark.dear
@pytest.mark.slow
def test_under_torchrun(run_cli, clean_env):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    check(run_cli([*torchrun, *inside(sys.executable)], {**clean_env, "EXPECTED_WORLD": "2"}, 180), 2)


@pytest.mark.slow
def test_alone(run_cli, clean_env):
    check(run_cli(inside(sys.executable), {**clean_env, "EXPECTED_WORLD": "1"}, 180), 1)


@pytest.mark.dear
@pytest.mark.parametrize("ranks", [2, 4] if MATRIX else [2])
def test_under_srun_over_two_hosts(slurm, clean_env, ranks):
    line = ["srun", f"-n{ranks}", *map(str, inside(sys.executable))]
    env = {**clean_env, "EXPECTED_WORLD": str(ranks), "EXPECTED_HOSTS": "n01,n02"}
    even = ["-N2", f"-n{ranks}", f"--ntasks-per-node={ranks // 2}"]
    check(slurm.salloc(even, line, env, timeout=180), ranks)


@pytest.mark.dear
@pytest.mark.parametrize("ranks", [1, 2, 4] if MATRIX else [2])
def test_under_a_bare_mpiexec_without_mpi4py_and_without_master_variables(flavour, run_cli, ranks):
    env = flavour.bare_env(EXPECTED_WORLD=str(ranks))
    check(run_cli(flavour.command(ranks, inside(flavour.python)), env, 180), ranks)


@pytest.mark.dear
def test_under_our_launcher_with_each_mpi(drawn_flavour, run_cli):
    flavour = drawn_flavour
    launch = [flavour.python, "-m", "ezpz.launch", "-n", "2"]
    check(run_cli([*launch, *inside(flavour.python)], flavour.env(EXPECTED_WORLD="2"), 180), 2)


@pytest.mark.dear
def test_under_a_bare_mpiexec_with_mpi4py(drawn_flavour, run_cli):
    flavour = drawn_flavour
    env = flavour.bare_env(EXPECTED_WORLD="2", EZPZ_TEST_MPI4PY="1")
    check(run_cli(flavour.command(2, inside(flavour.python)), env, 180), 2)


@pytest.mark.dear
@pytest.mark.slow
def test_where_only_mpi4py_knows_the_ranks(run_cli, home, tag):
    openmpi = flavours.Flavour("openmpi", home, tag)
    require(openmpi.name, openmpi.problem())
    names = " ".join(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    shell = ["bash", "-c", f'unset {names}; exec "$@"', "-", *map(str, inside(openmpi.python))]
    env = openmpi.bare_env(EXPECTED_WORLD="2", EZPZ_TEST_MPI4PY="1")
    check(run_cli(openmpi.command(2, shell), env, 180), 2)
