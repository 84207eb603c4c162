"""What is noticed of a live optimizer and model, and sums of random generators."""

import gc
import random
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ezpz.track import History  # noqa: E402
from ezpz.track.identical_batches import read_seen  # noqa: E402
from ezpz.track.run_reader import open_run  # noqa: E402
from ezpz.view.effective import LiveSettings, generator_sums  # noqa: E402


@pytest.fixture(autouse=True)
def _inductor(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's optimizers may set it to a folder of their own


def model():
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)) for _ in range(3)))


def test_only_what_changed_is_returned():
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=0.01)
    optimizer.param_groups[0].update(betas=(0.9, 0.999), momentum=None)
    live = LiveSettings(optimizer, network)
    assert live.changed() == {"lr": 0.1, "weight_decay": 0.01, "betas.0": 0.9, "betas.1": 0.999, "dropout.*.*": 0.1}
    assert live.changed() == {}
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.param_groups[0]["betas"] = (0.8, 0.999)
    assert live.changed() == {"lr": 0.05, "betas.0": 0.8}
    network[1][1].p = 0.0
    assert live.changed() == {"dropout.1.1": 0.0}
    for layer in network:
        layer[1].p = 0.5
    assert live.changed() == {"dropout.*.*": 0.5}
    assert live.changed() == {}


def test_groups_are_told_apart_and_a_loaded_state_is_seen():
    network = model()
    groups = [{"params": network[0].parameters()}, {"params": network[1].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    live = LiveSettings(optimizer)
    first = live.changed()
    assert (first["groups.0.lr"], first["groups.1.lr"]) == (0.1, 0.2)
    state = optimizer.state_dict()
    state["param_groups"][1]["lr"] = 0.3
    optimizer.load_state_dict(state)
    assert live.changed() == {"groups.1.lr": 0.3}


def test_wrapped_models_are_as_plain_ones_and_tensors_are_not_read():
    class DataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    assert LiveSettings(None, DataParallel(model())).changed() == {"dropout.*.*": 0.1}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.zeros((), device="meta")  # to read it is an error
    live = LiveSettings(optimizer)
    assert "lr" not in live.changed()
    optimizer.param_groups[0]["weight_decay"] = torch.zeros((), device="meta")
    live.changed()
    assert live.changed() == {}


def test_odd_optimizers_and_models_do_no_harm(subtests):
    for odd in [None, 3, object(), type("Odd", (), {"param_groups": 3})()]:
        with subtests.test(repr(odd)[:20]):
            live = LiveSettings(odd, odd)
            assert live.changed() == {}
            assert live.changed() == {}


def test_nothing_is_kept_alive():
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    held = [weakref.ref(each) for each in (optimizer, *network.modules())]
    live = LiveSettings(optimizer, network)
    assert live.changed()["dropout.*.*"] == 0.1
    del network, optimizer
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
    live.changed()


def test_a_history_notices_what_is_changed_in_objects_that_it_was_given(tmp_path):
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with History("mine", outdir=tmp_path / "run") as history:
        history.log_config(model=network)
        history.log_config(optimizer=optimizer)
        for step in range(30):
            if step == 20:
                optimizer.param_groups[0]["lr"] = 0.01
                network[2][1].p = 0.0
            history.update({"loss": 1.0}, step=step, summarize=False)
        history.finalize(plots=False, show=False)
    found = read_seen(open_run(tmp_path / "run")).settings
    assert found["lr"] == [(0, 0.1), (20, 0.01)]
    assert found["dropout.*.*"] == [(0, 0.1)]
    assert found["dropout.2.1"] == [(20, 0.0)]


def test_sums_of_generators_follow_their_states_and_draw_nothing():
    random.seed(3)
    torch.manual_seed(3)
    before = generator_sums()
    assert generator_sums() == before
    random.random()
    after = generator_sums()
    assert {name for name in before if before[name] != after[name]} == {"python"}
    torch.rand(1)
    assert generator_sums()["torch"] != before["torch"]
