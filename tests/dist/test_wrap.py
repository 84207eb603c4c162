"""`in_ranks_wrap.py` and its `_rules` under our own launcher, once per number of ranks, as torch is dear."""

import os
import sys
from pathlib import Path

import pytest

import ezpz
from lab.require import require

HERE = Path(__file__).parent
HUGGING_FACE = HERE.parents[1] / ".test" / "hugging_face" / "bin" / "python"
IN_RANKS = [str(Path(__file__).with_name(name)) for name in ("in_ranks_wrap.py", "in_ranks_wrap_rules.py")]

# What differs with 2 ranks: axes of size 1 beside the one under test; and the compiler,
# which is slow. One rank must work too.
CHOSEN = {
    1: ["-k", "fp16 or (follows and (ddp or zero1 or fsdp) and not tp2 and not sp and not compiled)"],
    2: ["-k", "compiled or hsdp or meta or counts or tp2"],
    4: [],
}


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", CHOSEN)
def test_every_strategy_follows_one_process(run_cli, clean_env, ranks, tmp_path):
    pytest_in_rank = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no"]
    launch = [
        sys.executable,
        "-m",
        "ezpz.launch",
        "-n",
        ranks,
        *pytest_in_rank,
        "--timeout=300",
        *CHOSEN[ranks],
        *IN_RANKS,
    ]
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    env = {**clean_env, "OMP_NUM_THREADS": "1", **inductor}
    done = run_cli(launch, env, 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_models_of_transformers_follow_one_process(run_cli, clean_env, tmp_path):
    require("hugging_face", "" if HUGGING_FACE.exists() else "no .test/hugging_face (tests/lab/setup hugging_face)")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=240"]
    path = os.pathsep.join([str(Path(ezpz.__file__).parents[1]), str(HERE)])
    env = {
        **clean_env,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "FOLDER_OF_TEST": str(tmp_path),
    }
    launch = [sys.executable, "-m", "ezpz.launch", "-n", 2, HUGGING_FACE, *words]
    done = run_cli([*launch, HERE / "with_transformers_models.py"], env, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 2, done.stdout
