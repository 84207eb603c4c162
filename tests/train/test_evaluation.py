"""What `evaluate` counts in one process; in ranks: `in_ranks_counted.py` and `in_ranks_place.py`."""

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch

from ezpz.errors import UsageError
from ezpz.train import evaluate, evaluation


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


PLAIN = torch.arange(6.0).reshape(3, 2)
BATCHES = {
    "tensor": PLAIN,
    "tuple": (PLAIN, PLAIN),
    "dict": {"x": PLAIN},
    "mapping": UserDict(x=PLAIN),  # what a tokenizer of transformers returns is one
    "dict of lists": {"x": [PLAIN]},
    "dataclass": Pair(PLAIN, PLAIN),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_samples_are_counted_in_every_container(batch):
    means = iter((torch.tensor(1.0), torch.tensor(4.0)))
    found = evaluate(torch.nn.Linear(2, 1), [batch, PLAIN[:1]], lambda _model, _batch: next(means))
    assert found == {"loss": (3 * 1.0 + 1 * 4.0) / 4}


@pytest.mark.parametrize("batch", ["text", {"x": "text"}, [], torch.tensor(1.0), 3], ids=repr)
def test_a_batch_without_samples_is_refused(batch):
    with pytest.raises(UsageError, match="no samples can be counted in a batch of type"):
        evaluate(torch.nn.Linear(2, 1), [batch], lambda _model, _batch: torch.tensor(1.0))


PADDED, WHOLE = (PLAIN, torch.tensor([1, -100, -100])), (PLAIN, torch.tensor([1, 0, 1]))


@pytest.mark.parametrize(
    ("batches", "computed", "warnings"),
    [
        ([PADDED, WHOLE], torch.tensor(1.0), 1),
        ([PADDED, WHOLE], (torch.tensor(1.0), 3), 0),
        ([PADDED], torch.tensor(1.0), 0),  # the only batch weighs what it should
        ([WHOLE, WHOLE], torch.tensor(1.0), 0),
    ],
)
def test_a_mean_beside_ignored_targets_is_warned_of_once(monkeypatch, batches, computed, warnings):
    evaluation._warn_of_ignored.cache_clear()
    warned = []
    monkeypatch.setattr("ezpz.log.logging.Logger.warning", lambda _self, text, *_, **__: warned.append(text))
    for _ in range(2):
        evaluate(torch.nn.Linear(2, 1), batches, lambda _model, _batch: computed)
    assert len([text for text in warned if "ignored targets (-100)" in text]) == warnings
