"""`ezpz compare` on networks that were really trained: nine pairs of runs, and the story of two silent dropouts."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ezpz.cli.compare import main
from ezpz.track.run_reader import open_run
from ezpz.view.compare.comparison import compare_runs
from lab.run_folders import environ

HERE = Path(__file__).parent
# The small one keeps the promise in every run; `make learn` trains the other two as well.
TRANSFORMERS = [pytest.param(name, marks=pytest.mark.learn) for name in ("transformer", "transformer-bf16")]
NETWORKS = ["mlp", *TRANSFORMERS]
CASES = [
    ("identical-rerun", 0, "identical: 450 steps"),
    ("numerics-noise", 0, "same within numerics: no divergence in 450 steps"),
    ("dropout", 1, "different from step 0: stochastic layers ("),
    ("dropout-other-seed", 1, "different from step 0: stochastic layers ("),
    ("lr-decay", 1, "diverges at step 301: learning-rate schedule (lr "),
    ("lr-decay-and-noise", 1, "diverges at step 30"),
    ("data-order", 1, "data differs from step 0"),
    ("init-seed", 1, "different seed, same quality"),
    ("higher-lr", 1, "differs from step 1 on: lr "),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # ten small networks are trained for each base


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(network)` -> the folder of its runs, trained when they are first asked for."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("trained")

    @cache
    def train(network):
        line = [sys.executable, HERE / "compare_transformer.py", folder / network, network]
        subprocess.run(line, env=environ(folder), check=True, timeout=550, capture_output=True)
        return folder / network

    return train


def compared(folder, first, *others):
    return compare_runs([open_run(folder / name) for name in (first, *others)])


@pytest.mark.parametrize("network", NETWORKS)
def test_each_of_nine_pairs_gets_its_verdict(trained, network, subtests):
    folder = trained(network)
    for case, code, said in CASES:
        with subtests.test(case):
            [found] = compared(folder, "first", case)
            assert found.verdict.text.startswith(said)
            assert found.verdict.exit_code == code


@pytest.mark.parametrize("network", NETWORKS)
def test_a_change_of_the_schedule_is_found_at_its_step_also_under_noise(trained, network):
    for case in ("lr-decay", "lr-decay-and-noise"):
        [found] = compared(trained(network), "first", case)
        assert abs(found.divergence.numerics - 301) <= 2
        assert {item.key for item in found.verdict.likely} >= {"lr at step 300 in B only", "schedule.lr.449"}


@pytest.mark.parametrize("network", TRANSFORMERS)
def test_two_silent_dropouts_are_named_and_their_removal_confirmed(trained, network, capsys):
    before = [str(trained(network) / name) for name in ("first", "math-with-defaults")]
    assert main([*before, "--no-picture"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("different from step 0: stochastic layers (attention_dropout 0.0 -> 0.1")
    likely = lines[lines.index("likely cause") + 1 :]
    assert likely[0].split() == ["dropout.blocks.0.attention_dropout", "0.0", "->", "0.1"]
    assert likely[1].split() == ["dropout.blocks.0.hidden_dropout", "0.0", "->", "0.1"]
    assert max(map(len, lines)) <= 80
    assert "dropout" not in json.loads((trained(network) / "math-with-defaults" / "run.json").read_text())["config"]
    after = [str(trained(network) / name) for name in ("first", "math")]
    assert main([*after, "--no-picture"]) == 0
    assert capsys.readouterr().out.startswith("same within numerics: no divergence in 450 steps\n")
