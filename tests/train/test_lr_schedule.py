"""Learning rates at exact steps."""

import math

import pytest
import torch

from ezpz.errors import UsageError
from ezpz.train import make_schedule


@pytest.fixture(autouse=True)
def _inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers set it


def rates(kind, steps, **more):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = make_schedule(optimizer, kind, steps=steps, **more)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_constant_stays():
    assert rates("constant", 4) == [2.0] * 4
    assert rates("constant", 4, min_ratio=0.1) == [2.0] * 4


def test_linear_falls_evenly_and_would_end_at_its_least():
    assert rates("linear", 4) == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert rates("linear", 4, min_ratio=0.5) == pytest.approx([2.0, 1.75, 1.5, 1.25])


def test_cosine_is_half_way_in_the_middle():
    found = rates("cosine", 8, min_ratio=0.2)
    assert found[0] == 2.0
    assert found[4] == pytest.approx(1.2)
    assert found[2] == pytest.approx(2 * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4))))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_warm_up_begins_above_nothing_and_ends_at_the_highest_rate(kind):
    found = rates(kind, 10, warmup=4)
    assert found[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert max(found) == 2.0


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="unknown schedule 'step'"):
        rates("step", 4)
    with pytest.raises(UsageError, match="a warm-up of 4 steps does not fit a run of 4; expected 0 to 3"):
        rates("linear", 4, warmup=4)
