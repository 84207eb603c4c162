"""Data-parallel ranks on identical batches, in real gloo ranks: found, and nothing else taken for it."""

import json
import sys

import pytest
from planted import judge

PROGRAM = """\
import sys
import torch
import ezpz
from torch import nn
from ezpz.train import Loop

case, one, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = ezpz.setup_torch(backend="gloo", seed=0)
if case == "tensor parallel":
    ezpz.init_mesh(tp=2)
model = nn.Sequential(nn.Linear(4, 1))
how = ("none", None, None, True, {"0": "replicate"}) if case == "tensor parallel" else ("ddp",)
model = ezpz.wrap_model(model, *how)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def batches(position):
    part = {"own": rank, "tensor parallel": 0, "one batch": 0}.get(case, one if rank == other else rank)
    seed = 0 if case == "one batch" else 100 * position + part
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)

def loss(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()

with ezpz.History("mine", outdir="run") as history:
    Loop(model, optimizer, loss, batches, steps=60, batch_size=8, log_every=1000).run(history)
    history.finalize(plots=False, show=False)
ezpz.cleanup()
"""


def train(ended, tmp_path, case, ranks, *pair):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    end = ended([sys.executable, program, case, *(pair or (0, 0))], ranks=ranks, timeout=300)
    assert end.code == 0, end.err
    return end, json.loads((tmp_path / "run" / "run.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_two_ranks_with_the_same_batches_are_named_at_the_end(ended, draw, tmp_path):
    one, other = sorted(draw.sample(range(3), 2))
    end, run = train(ended, tmp_path, "shared", 3, one, other)
    (found,) = [each for each in run["findings"] if each["kind"] == "same-batches"]
    assert found["ranks"] == [one, other]
    judge("equal data on two ranks", end.causes)
    assert f"ezpz: ranks {one} and {other} train on identical batches from step 0 on\n" in end.err


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize("case", ["own", "tensor parallel", "one batch"])
def test_ranks_with_data_of_their_own_or_by_design_the_same_are_not(ended, tmp_path, case):
    end, run = train(ended, tmp_path, case, 2)
    assert [each for each in run["findings"] if each["kind"] == "same-batches"] == []
    assert "identical" not in end.err
