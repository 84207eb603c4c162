"""`in_ranks_models.py` under our own launcher, once per number of ranks: every rank pays seconds for torch."""

import sys
from pathlib import Path

import pytest

import ezpz

IN_RANKS = Path(__file__).with_name("in_ranks_models.py")
# On 2 ranks all of a rank's neighbours are tensor or data parallel; on 4 they are both.
CHOSEN = {2: "not hsdp and not bf16", 4: "hsdp or heads or bf16 or (llama and tp)"}


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", CHOSEN)
def test_the_shipped_models_follow_one_process(run_cli, clean_env, ranks, tmp_path):
    pytest_in_rank = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no"]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", ranks, *pytest_in_rank, "--timeout=1200", "-k", CHOSEN[ranks]]
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    env = {**clean_env, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), **inductor}
    done = run_cli([*launch, str(IN_RANKS)], env, 300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout
