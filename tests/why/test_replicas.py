"""Weights and batches of data-parallel ranks, in real gloo ranks: faults are found, and no healthy way is one."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("replicas.py")
KINDS = {"weights-differ", "same-batches"}


@pytest.mark.timeout(900)
def test_ranks_that_train_apart_are_named_and_others_are_not(ended, tmp_path, subtests):
    pytest.importorskip("torch")
    from replicas import PLANTED, WAYS

    end = ended([sys.executable, PROGRAM, tmp_path / "runs"], ranks=4, timeout=800)
    assert end.code == 0, end.err
    for name in WAYS:
        with subtests.test(name):
            run = json.loads((tmp_path / "runs" / name / "run.json").read_text())
            found = [(each["kind"], each["ranks"]) for each in run["findings"] if each["kind"] in KINDS]
            assert found == ([PLANTED[name]] if name in PLANTED else [])


def test_switched_off_nothing_of_it_is_recorded(ended, tmp_path, clean_env):
    pytest.importorskip("torch")
    words = [sys.executable, PROGRAM, tmp_path / "runs", "begins_with_other_weights"]
    end = ended(words, ranks=4, env={**clean_env, "EZPZ_COMPARE_WEIGHTS": "0"}, timeout=300)
    assert end.code == 0, end.err
    journal = (tmp_path / "runs" / "begins_with_other_weights" / "metrics.jsonl").read_text()
    assert '"k":"ranks"' in journal
    assert '"weights"' not in journal
    assert '"k":"seen"' not in journal
