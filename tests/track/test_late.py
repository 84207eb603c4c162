"""Tensors that lie on a device are read once per window, and lose nothing by it."""

from types import SimpleNamespace

import numpy as np
import pytest

from ezpz.errors import TrackError
from ezpz.track import History, read_journal
from ezpz.track.journal_reader import iter_journal


class OnDevice:
    """A tensor on an accelerator that is not there; it counts how often the device is waited for."""

    waited = 0

    class device:  # noqa: N801  # a stand-in for an attribute
        type = "cuda"

    def __init__(self, value):
        self.value = np.asarray(value)
        self.shape, self.ndim = self.value.shape, self.value.ndim

    def detach(self):
        return self

    def clone(self):
        return OnDevice(self.value.copy())

    def item(self):
        OnDevice.waited += 1
        return self.value.item()

    def tolist(self):
        OnDevice.waited += 1
        return self.value.tolist()


@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    fetches = []

    def fetch(tensors):
        fetches.append(len(tensors))
        return [tensor.value.item() for tensor in tensors]

    monkeypatch.setattr("ezpz.track.device_metrics.fetch", fetch, raising=False)
    OnDevice.waited, OnDevice.fetches = 0, fetches


@pytest.fixture
def history(tmp_path):
    with History("run", tmp_path / "run", window=10) as history:
        yield history


def test_the_device_is_asked_once_per_window_and_every_value_arrives(history):
    lines = [history.update({"loss": OnDevice(0.5 * step), "lr": 0.1}) for step in range(25)]
    assert OnDevice.waited == 0
    assert OnDevice.fetches == [1, 10, 10]  # the first at once, so that a loss is seen
    assert lines[0] == "lr=0.1 loss=0"
    assert lines[1] == "lr=0.1"
    assert lines[10] == "lr=0.1 loss=5"
    history.finalize(plots=False)
    rows = read_journal(history.outdir)
    assert [row["m"] for row in rows] == [{"lr": 0.1, "loss": 0.5 * step} for step in range(25)]
    assert sum(row["k"] == "late" for row in iter_journal(history.outdir)) == 25


@pytest.mark.slow
def test_what_is_changed_in_place_afterwards_was_recorded_as_it_was(history):
    history.update({"a": OnDevice(1.0)})
    running = OnDevice(1.0)
    for _ in range(3):
        history.update({"sum": running})
        running.value += 1.0
    history.sync()
    assert [row["m"].get("sum") for row in read_journal(history.outdir)] == [None, 1.0, 2.0, 3.0]


@pytest.mark.slow
def test_rows_behind_a_late_one_keep_their_order(tmp_path):
    passed = []
    mine = SimpleNamespace(
        name="mine",
        start=lambda about: {},
        log=lambda step, values: passed.append((step, dict(values))),
        config=lambda config: None,
        finish=lambda state: None,
    )
    with History("run", tmp_path / "run", trackers=[mine]) as history:
        history.update({"a": OnDevice(1.0)})
        history.update({"a": OnDevice(2.0), "b": 1})
        history.update({"b": 2})
        assert OnDevice.fetches == [1]  # the second is not known yet
        history.finalize(plots=False, show=False)
    assert passed == [(0, {"a": 1.0}), (1, {"b": 1, "a": 2.0}), (2, {"b": 2})]


@pytest.mark.slow
def test_small_arrays_on_a_device_come_late_too_and_large_ones_are_refused(history):
    history.update({"x": 1.0})
    history.update({"v": OnDevice([1.0, 2.0])})
    assert read_journal(history.outdir)[1]["m"] == {"v": [1.0, 2.0]}
    with pytest.raises(TrackError, match="shape"):
        history.update({"v": OnDevice(np.zeros(5000))})


def test_a_device_that_is_lost_costs_one_warning_and_its_values_only(history, monkeypatch, capsys):
    def lost(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("ezpz.track.device_metrics.fetch", lost)
    for step in range(30):
        history.update({"loss": OnDevice(1.0), "step": step})
    history.finalize(plots=False)
    assert capsys.readouterr().out.count("cannot read metrics from the device, from step 0 on") == 1
    assert [row["m"] for row in read_journal(history.outdir)] == [{"step": step} for step in range(30)]


@pytest.mark.slow
def test_a_dtensor_is_read_where_every_rank_has_it_whole(history):
    class Placed(float):
        placements = ()

        def full_tensor(self):
            raise AssertionError("a collective")

        def to_local(self):
            return 2.5

    class Shard:
        def is_replicate(self):
            return False

    history.update({"loss": Placed(1)})
    assert read_journal(history.outdir)[0]["m"] == {"loss": 2.5}
    sharded = Placed(1)
    sharded.placements = (Shard(),)
    with pytest.raises(TrackError, match="full_tensor"):
        history.update({"loss": sharded})
