"""The quick tests and every trainer under each Python that `.test/pythons` has (`make pythons`).

Each test is a row of a table in docs/reliability.md, in this order.
"""

import os
import re

import pytest
from pythons import Python, versions

from lab import process
from lab.checkout import ROOT
from lab.require import require

if not os.environ.get("EZPZ_MATRIX"):
    pytest.skip("`make pythons` makes the environments, and has the time", allow_module_level=True)

STEPS = 6
TRAINERS = {  # module: its words for a small training
    "ezpz.test_dist": f"--train-iters {STEPS}",
    "ezpz.examples.minimal": f"--max_iters {STEPS}",
    "ezpz.examples.fsdp": "--preset debug --epochs 1 --batch_size 256",
    "ezpz.examples.vit": f"--preset debug --max_iters {STEPS} --batch_size 4",
    "ezpz.examples.fsdp_tp": f"--preset debug --max_iters {STEPS} --seq_len 32 --batch_size 4 --save_freq 3",
    "ezpz.examples.gpt": f"--preset debug train.max_iters={STEPS} train.warmup_iters=2 optimizer.lr_decay_iters={STEPS}"
    " data=shakespeare train.eval_iters=2 train.sample_tokens=10",
    "ezpz.examples.llm": f"--preset debug --training.steps {STEPS} --training.warmup_steps 2 --training.seq_len 16",
}


@pytest.fixture(scope="module", params=versions())
def python(request):
    """Each Python in turn."""
    value = Python(request.param)
    require("pythons", value.problem())
    return value


@pytest.fixture
def row(python, record_property):
    """`row(text)` names the row of the table that a test fills; `row(text, note)` adds what is told beside it."""

    def told(text, note=""):
        record_property("cell", f"{python.version} {text}")
        record_property("note", note)

    return told


@pytest.mark.timeout(3600)
def test_the_quick_tests_pass(python, row, tag, home):
    row("the quick tests (`pytest`)")
    words = [python.program, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = process.run(words, python.env(home, tag), timeout=3000, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    row("the quick tests (`pytest`)", ", ".join(re.findall(r"\d+ (?:passed|skipped)", done.stdout.splitlines()[-1])))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("module", TRAINERS)
def test_a_trainer_trains_and_python_warns_of_nothing_in_ezpz(python, row, tag, home, tmp_path, module, subtests):
    row(f"`{module}` on one rank and on two")
    require("pythons", python.torch_problem())
    env = python.env(home, tag, PYTHONWARNINGS="default", OMP_NUM_THREADS="1", EZPZ_DATA=str(tmp_path / "data"))
    for ranks in (1, 2):
        with subtests.test(ranks):
            folder = tmp_path / str(ranks)
            words = ["-m", "ezpz.launch", "-n", ranks, python.program, "-m", module, *TRAINERS[module].split()]
            done = process.run([python.program, *words, "--outdir", folder], env, timeout=500, cwd=tmp_path)
            assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
            assert list(folder.glob("*.h5")), done.stdout[-5000:]
            assert not re.findall(r"^.*/ezpz/\S+:\d+: \w*Warning: .*$", done.stdout + done.stderr, re.MULTILINE)
