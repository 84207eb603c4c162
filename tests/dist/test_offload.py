"""Numbers come off a device exactly, and with one copy per kind."""

import pytest
import torch

from ezpz.track.device_metrics import fetch


def test_every_kind_comes_back_exactly_and_in_order():
    tensors = [
        torch.tensor(2**62 + 1),
        torch.tensor(0.1),
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor(True),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor(200, dtype=torch.uint8),
        torch.tensor(-(2**63)),
        torch.tensor([7.5]),
        torch.tensor(False),
        torch.tensor(float("inf"), requires_grad=True),
    ]
    numbers = fetch(tensors)
    assert numbers == [tensor.item() for tensor in tensors]
    assert [type(number) for number in numbers] == [int, float, float, bool, float, int, int, float, bool, float]


def test_nothing_comes_from_nothing():
    assert fetch([]) == []


def test_a_thousand_tensors_of_one_kind_are_read_together(monkeypatch):
    reads = []
    plain = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(self.shape) or plain(self))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: reads.append("item"))
    tensors = [torch.tensor(float(number)) for number in range(1000)] + [torch.tensor(3), torch.tensor(4)]
    assert fetch(tensors) == [*map(float, range(1000)), 3, 4]
    assert reads == [(1000,), (2,)]


def test_more_than_one_element_is_refused():
    with pytest.raises(RuntimeError):
        fetch([torch.ones(2)])
