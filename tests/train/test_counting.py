"""Losses that count their tokens: in ranks, beside transformers, and what a loss function may return."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ezpz
from ezpz.errors import UsageError
from ezpz.train.counting import Tally, ignored_targets, nominal_count, read_computed
from lab.require import require

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".test" / "hugging_face" / "bin" / "python"
SOURCES = str(Path(ezpz.__file__).parents[1])


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ranks", "chosen"), [(2, ""), (4, "not ddp or weigh or count")])
def test_in_ranks(run_cli, clean_env, ranks, chosen):
    pytest_in_rank = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no"]
    path = os.pathsep.join([SOURCES, str(ROOT / "tests" / "dist")])
    env = {**clean_env, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    line = [sys.executable, "-m", "ezpz.launch", "-n", ranks, *pytest_in_rank, "--timeout=300"]
    done = run_cli([*line, "-k", chosen, HERE / "in_ranks_counted.py"], env, 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_padded_steps_are_those_of_transformers(tmp_path):
    require("hugging_face", "" if PYTHON.exists() else "no .test/hugging_face (tests/lab/setup hugging_face)")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": SOURCES,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=240"]
    line = [PYTHON, *words, HERE / "with_transformers_trainer.py"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_loss_function_may_return():
    loss = torch.tensor(3.0, requires_grad=True)
    assert read_computed(loss) == (loss, None, {})
    assert read_computed((loss, {"a": 1})) == (loss, None, {"a": 1})
    assert read_computed((loss, 4)) == (loss, 4, {})
    assert read_computed((loss, torch.tensor(4), {"a": 1})) == (loss, torch.tensor(4), {"a": 1})
    assert read_computed(loss, 2)[:2] == (6.0, 2)
    assert read_computed((loss, 4), 2)[:2] == (3.0, 4)
    assert read_computed((loss, 4), 0)[:2] == (0.0, 0)


LOSS = torch.tensor(1.0)
LOSSES = {
    "expected a mean": [3.0, (LOSS, 1, 2, {}), ({},)],
    r"Return `output\.loss`; metrics may follow": [SimpleNamespace(loss=LOSS), (SimpleNamespace(loss=LOSS), 4)],
    r"Return `output\[\"loss\"\]`": [{"loss": LOSS, "accuracy": 0.5}],
    # 0.0 and 1.0 are whole, and an accuracy
    "unusable count": [(LOSS, each) for each in ("4", torch.ones(2), 4.0, 0.0, True, torch.tensor(1.0), None)],
}


def test_what_a_loss_function_must_not_return(subtests):
    for said, losses in LOSSES.items():
        for wrong in losses:
            with subtests.test(wrong=wrong), pytest.raises(UsageError, match=said):
                read_computed(wrong)


def test_a_step_that_counts_nothing_moves_nothing_and_is_no_nan():
    tally = Tally(averages=False)
    tally.add(read_computed((torch.tensor(0.0), 0, {"accuracy": torch.tensor(float("nan"))})))
    tally.exchange()
    totals = tally.read()
    assert (totals.factor, totals.means, totals.count, totals.mine) == (0.0, {"loss": 0.0, "accuracy": 0.0}, 0.0, 0.0)


def test_the_nominal_count_is_a_power_of_two():
    assert [nominal_count(count, averages=False) for count in (0, 1, 3, torch.tensor(1000))] == [1.0, 1.0, 4.0, 1024.0]


def test_ignored_targets_are_found_in_any_batch():
    some = torch.tensor([[1, -100], [2, 3]])
    assert ignored_targets({"inputs": torch.zeros(2), "labels": [some]})
    assert not ignored_targets((torch.zeros(2) - 100, torch.tensor([1, -101, -100]), torch.zeros(0, dtype=torch.int64)))
    assert not ignored_targets(["text", 3, torch.zeros(2, dtype=torch.uint8), torch.tensor([True])])
