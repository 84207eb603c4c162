"""`in_ranks_checkpoint.py` with 4 ranks, then with 2 and 1 over what those 4 have saved; one launch each.

`in_ranks_hugging_face.py` shares the first launch.
"""

import sys
from pathlib import Path

import pytest

import ezpz

HERE = Path(__file__).parent
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--noconftest",
    "--color=no",
    "-x",
    "--timeout=600",
]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_checkpoints_of_four_ranks_go_on_with_four_two_and_one(run_cli, clean_env, tmp_path):
    shared = tmp_path / "shared"
    env = {
        **clean_env,
        "PYTHONPATH": str(Path(ezpz.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CHECKPOINTS_OF_TEST": str(shared),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    inside = [*PYTEST, "-o", f"pythonpath={HERE.parent / 'dist'}", HERE / "in_ranks_checkpoint.py"]
    for ranks, more in ((4, [HERE / "in_ranks_hugging_face.py"]), (2, []), (1, [])):
        done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", ranks, *inside, *more], env, 300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(" passed") == ranks, done.stdout
