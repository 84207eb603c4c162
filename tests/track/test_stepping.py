"""Weights of rows, windows of histories, and the logs that lie in a run's folder."""

import json
import os

import pytest

import ezpz
from ezpz.errors import TrackError, UsageError
from ezpz.log import log_to
from ezpz.track import History, read_journal
from ezpz.track.history import current_folder


def test_a_weight_is_a_number_from_0_on(subtests, history):
    for weight in [-1, float("nan"), float("inf"), "many", object()]:
        with subtests.test(str(weight)[:20]):
            with pytest.raises(TrackError, match="from 0 on"):
                history.update({"loss": 1.0}, weight=weight)
            assert read_journal(history.outdir) == []
    for weight in (0, 3, 2.5, True):
        history.update({"loss": 1.0}, weight=weight)
    assert len(read_journal(history.outdir)) == 4


def test_a_window_that_is_none_is_refused_before_a_folder_is_made(subtests, tmp_path):
    for window in [0, -1, 2.5, "10", True]:
        with subtests.test(repr(window)):
            with pytest.raises(UsageError, match="expected a whole number from 1 on"):
                History("r", tmp_path / "r", window=window)
            assert not (tmp_path / "r").exists()


def test_a_second_history_in_a_folder_in_use_is_refused(make_history):
    first = make_history()
    with pytest.raises(UsageError, match="another process writes it"):
        History("run", first.outdir)
    first.update({"x": 1})
    first.finalize(plots=False)
    make_history().update({"x": 2})


def test_warnings_of_a_run_lie_in_its_folder(make_history, tmp_path, monkeypatch):
    monkeypatch.setattr("ezpz.track.history._logs", "")  # an earlier test's history may have led the log to its folder
    log_to(None)
    history = make_history("one", tmp_path / "one")
    ezpz.get_logger("ezpz.test").info("led to it")
    ezpz.get_logger("ezpz.test").warning("watch out")
    text = (history.outdir / "logs" / "rank-0000.log").read_text()
    assert "led to it" in text
    assert "watch out" in text
    second = make_history("two", tmp_path / "two")
    ezpz.get_logger("ezpz.test").warning("again")
    assert "again" in (second.outdir / "logs" / "rank-0000.log").read_text()
    log_to(tmp_path / "mine")
    make_history("three", tmp_path / "three")
    ezpz.get_logger("ezpz.test").warning("third")
    assert "third" in (tmp_path / "mine" / "rank-0000.log").read_text()
    log_to(None)


def test_the_newest_history_tells_its_folder(make_history):
    history = make_history()
    assert current_folder() == history.outdir


def test_an_effective_configuration_lies_beside_the_given_one(history, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers set it when they are first made
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.25))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history.log_config({"lr": 0.02}, model=model, optimizer=optimizer)
    facts = json.loads((history.outdir / "run.json").read_text())
    assert facts["config"] == {"lr": 0.02}
    effective = json.dumps(facts["effective"])
    assert "0.25" in effective
    assert "0.01" in effective
    assert facts["environment"].keys() <= {"modules", "driver", "library", "system", "variables"}


def test_the_timeline_tells_the_way_to_the_first_step(history):
    history.update({"x": 1})
    found = json.loads((history.outdir / "run.json").read_text())["timeline"]
    assert found["history"] <= found["first_step"]
    assert os.getpid() == json.loads((history.outdir / "run.json").read_text())["process"]["pid"]
