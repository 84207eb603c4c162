"""Training and evaluation modes of a model's parts, which a user may have set one by one."""

import pytest
import torch
from torch import nn

from ezpz.train import Loop, evaluate


@pytest.fixture(autouse=True)
def _kept_environment(monkeypatch, tmp_path):
    """torch's optimizers set this variable where it is not set."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


class Rows:
    def update(self, row, **_):
        pass


class Merging(nn.Linear):
    """A layer whose own `train` does more than to set a flag, as those of LoRA do."""

    merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


def frozen():
    """A model with a batch norm and a dropout that are in evaluation for good."""
    model = nn.Sequential(Merging(3, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)))
    model[1].eval()
    model[2][0].eval()
    return model


def modes(model):
    return [module.training for module in model.modules()]


def compute(model, batch):
    return model(batch).pow(2).mean()


def train(model, evaluation=None):
    seen = []

    def loss(model, batch):
        seen.append(modes(model))
        return compute(model, batch)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    Loop(
        *(model, optimizer, loss, lambda _: data),
        steps=3,
        batch_size=4,
        evaluate=None if evaluation is None else lambda: evaluation(model, data),
        eval_every=1,
    ).run(Rows())
    return seen


def by_hand(model, data):
    model.eval()
    value = compute(model, data).item()
    model.train()
    return {"val": value}


@pytest.mark.parametrize(
    "evaluation",
    [None, by_hand, lambda model, data: evaluate(model, [data], compute)],
    ids=["none", "by hand", "evaluate"],
)
def test_what_was_put_into_evaluation_stays_there(evaluation):
    model = frozen()
    before, statistics = modes(model), model[1].running_mean.clone()
    assert train(model, evaluation) == [before] * 3
    assert modes(model) == before
    assert torch.equal(model[1].running_mean, statistics)
    assert not model[0].merged


def test_all_of_a_model_that_is_in_evaluation_as_a_whole_is_trained():
    model = frozen().eval()
    assert train(model) == [[True] * 6] * 3
    assert not model[0].merged


def test_evaluation_is_over_also_when_it_fails():
    model = frozen()
    before = modes(model)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, [torch.ones(2, 3)], lambda _model, _batch: 1 / 0)
    assert modes(model) == before
