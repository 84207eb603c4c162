"""Scripts of people who never heard of ezpz: each runs as it is, and its losses are torchrun's to the last digit.

Each script validates after its last step, and not only because users' scripts do. gloo's threads finish the work of a
backward pass some moments after it was waited for, and need Python's lock for that; an interpreter that ends meanwhile
aborts the process (torch 2.13 on CPUs, under every launcher, torchrun included, and ``destroy_process_group`` does not
wait for these threads). A script that ends within milliseconds of its last backward pass would test that race.
"""

import functools
import sys
from pathlib import Path

import pytest

from lab import flavours, process

SCRIPTS = Path(__file__).parent / "scripts"
# torchrun gives each of several ranks one thread, `ezpz launch` its share of the cores, and the order of a sum depends
# on the threads: whoever compares to the last digit says how many.
THREADS = {"OMP_NUM_THREADS": "1"}
SLICES = {"shard0.txt": "0.5 1.25\n-1 -0.75\n0.25 0.9\n1.5 3.1\n", "shard1.txt": "2 4\n-0.5 0.2\n-2 -3\n0.1 0.7\n"}


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """The folder of numbers that the script with ``@record`` reads."""
    folder = tmp_path_factory.mktemp("shards")
    for name, text in SLICES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def words(shards):
    """`words(name)` -> what the user of that script types behind ``launch`` or ``torchrun``, without ``python3``."""
    more = {"record": [str(shards)], "chars": ["--device=cpu", "--backend=gloo", "--max_steps=4"]}
    return lambda name: [str(SCRIPTS / f"train_{name}.py"), *more.get(name, [])]


@pytest.fixture(scope="session")
def torchruns(tmp_path_factory, words):
    """`torchruns(name)` -> the lines of that script under torchrun; each is run once for the whole session."""
    home = tmp_path_factory.mktemp("torchrun")
    env = {**process.minimal_env(home, f"ezt-{home.name}", flavours.base_bin()), **THREADS}
    env["ACCELERATE_USE_CPU"] = "true"  # as `accelerate launch --cpu` says it; under torchrun each rank trained alone
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    @functools.cache
    def lines(name):
        done = process.run([*torchrun, *words(name)], env, timeout=120, cwd=home)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" loss ") >= 4, done.stdout
        return done.stdout.splitlines()

    return lines


def same(done, expected):
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("name", ["chars", "fabric", "accelerate"])
def test_on_this_host_without_any_mpi(name, torchruns, words, launch, clean_env):
    done = launch("-n", "2", "python3", *words(name), env={**clean_env, **THREADS}, timeout=120)
    same(done, torchruns(name))
    assert "local launcher" in done.stderr


# accelerate reads MPI's world size before torchrun's, and every flavour leaves other variables around a rank.
@pytest.mark.dear
@pytest.mark.parametrize(
    ("flavour", "name"),
    [("mpich", "ddp"), ("mpich", "fabric"), ("openmpi", "accelerate"), ("openmpi4", "chars"), ("impi", "record")],
    indirect=["flavour"],
)
def test_under_one_mpi_each(flavour, name, torchruns, words, launch):
    done = launch("-n", "2", "python3", *words(name), env=flavour.env(**THREADS), timeout=120)
    same(done, torchruns(name))
    assert f"launcher ({flavour.mpiexec} on PATH)" in done.stderr


def test_a_ddp_tutorial_over_two_hosts_of_slurm(slurm, torchruns, words, clean_env):
    line = [sys.executable, "-m", "ezpz.launch", sys.executable, *words("ddp")]
    done = slurm.salloc(["-N2", "-n2"], line, {**clean_env, **THREADS}, timeout=120)
    same(done, torchruns("ddp"))
    assert "2 ranks on 2 hosts" in done.stderr
    assert "srun launcher" in done.stderr


@pytest.mark.slow
def test_an_exception_under_record_is_shown_once_and_is_the_exit_code(launch, clean_env, tmp_path):
    (tmp_path / "shard0.txt").write_text(SLICES["shard0.txt"])
    (tmp_path / "shard1.txt").write_text("2 4\n-0.5 oops\n")
    script = SCRIPTS / "train_record.py"
    done = launch("-n", "2", "python3", script, tmp_path, env={**clean_env, **THREADS}, timeout=120)

    assert done.returncode == 1, done.stderr
    assert not done.stdout
    assert done.stderr.count("ValueError: could not convert string to float: 'oops'\n") == 1
    assert f'File "{script}", line' in done.stderr
    assert "rank 1 on host " in done.stderr
