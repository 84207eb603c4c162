"""Keywords and calls of a history that public scripts know."""

import json

import pytest

import ezpz
from ezpz.errors import TrackError, UsageError
from ezpz.track import History, older_calls


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    monkeypatch.setattr(older_calls, "_warned", set())


def test_a_history_takes_what_older_scripts_pass_and_leaves_things_where_they_look(tmp_path, capsys):
    history = History(
        keys=["loss", "never"],
        project_name="p",
        backends="csv",
        config={"lr": 0.1},
        outdir=tmp_path / "run",
        distributed_history=False,
        jsonl_path=tmp_path / "m.jsonl",
        report_dir=tmp_path / "reports",
    )
    for step in range(10):
        line = history.update(
            {"train/iter": step, "train/loss": 1 / (step + 1), "dt": 0.5}, precision=2, use_wandb=True
        )
    assert history.distributed_history is False
    assert line == "train/iter=9 train/loss=0.10 dt=0.50"
    assert history.history["train/iter"] == history.data["train/iter"] == list(range(10))
    assert history.history["never"] == []
    assert history["train/iter"][-2:] == [8, 9]
    assert history.groups["train"]["iter"] == list(range(10))
    assert list(history.history_to_dict()["dt"]) == [0.5] * 10
    dataset = history.finalize(
        outdir=tmp_path / "results", run_name="mmm", dataset_fname="train", warmup=0.3, timings={"main": 1.5}, title="t"
    )
    assert list(dataset["train_iter"].values) == list(range(3, 10))
    for made in ("results/train.h5", "results/report.html", "results/plots", "reports/report.html", "m.jsonl"):
        assert (tmp_path / made).exists(), made
    assert (tmp_path / "m.jsonl").read_bytes() == (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "run" / "trackers" / "csv").exists() or list((tmp_path / "run" / "trackers").iterdir())
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["lr"], config["run_name"], config["timings"]) == (0.1, "mmm", {"main": 1.5})
    assert capsys.readouterr().out.count("finalize: title has no effect") == 1


def test_plot_false_and_report_enabled_false_draw_nothing(tmp_path):
    history = History(["loss"], outdir=tmp_path / "run", report_enabled=False)
    history.update({"loss": 1.0})
    history.finalize(plots=True, show=False)
    assert not (tmp_path / "run" / "report.html").exists()
    other = History(outdir=tmp_path / "other")
    other.update({"loss": 1.0})
    other.finalize(plot=False, save=True)
    assert not (tmp_path / "other" / "plots").exists()
    assert not (tmp_path / "other" / "report.html").exists()


def test_a_keyword_that_no_edition_had_is_an_error_with_a_hint_before_the_training():
    with pytest.raises(TypeError, match=r"'report_dirr'\. Did you mean report_dir"):
        History(report_dirr="x")
    with pytest.raises(UsageError, match="no name of a run: 3"):
        History(3)


def test_no_keyword_of_the_end_takes_the_report_away(tmp_path, capsys):
    """The training is over: what nobody knows is one warning."""
    history = History(outdir=tmp_path / "run", report_dir=tmp_path / "reports")
    for step in range(4):
        history.update({"loss": 1.0 / (step + 1)})
    given = (None, None, "data", 128, 2)  # in the order of older scripts: the last are num_chains and warmup
    dataset = history.finalize(*given, tile="x", plot=False, verbose=True, xkey="iter")
    assert list(dataset["loss"].values) == pytest.approx([1 / 3, 1 / 4])
    assert (tmp_path / "run" / "data.h5").exists()
    said = capsys.readouterr().out
    assert said.count("History.finalize: 'tile' is no keyword and has no effect. Did you mean title?") == 1
    assert "finalize: verbose, xkey have no effect" in said
    assert "no report is in report_dir=" in said
    assert "ezpz report" in said

    assert history.finalize(outdir=tmp_path / "again", warmup="many", timings={"main": 1.5}).sizes["draw"] == 4
    said = capsys.readouterr().out
    assert [path.suffix for path in (tmp_path / "again").iterdir()] == [".h5"]
    assert "finalize: timings came after the end of the run and cannot be noted" in said
    assert "warmup='many' has no effect" in said
    assert history.finalize(outdir=3).sizes["draw"] == 4
    assert "finalize: nothing is copied" in capsys.readouterr().out


def test_what_cannot_be_copied_is_a_warning_after_the_training(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    history = History(outdir=tmp_path / "run", jsonl_path=tmp_path / "file" / "m.jsonl")
    history.update({"loss": 1.0})
    assert history.finalize(plot=False, outdir=tmp_path / "file" / "results").sizes["draw"] == 1
    assert capsys.readouterr().out.count("cannot copy") == 2


def test_datasets_and_arrays(tmp_path):
    history = History(outdir=tmp_path / "run")
    for step in range(4):
        history.update({"a/x": step, "b": 2.0 * step})
    assert list(history.get_dataset()["a_x"].values) == [0, 1, 2, 3]
    assert list(history.get_dataset(warmup=1)["b"].values) == [2, 4, 6]
    assert set(history.get_grouped_datasets()) == {"a", "dataset"}
    assert history.to_DataArray([1.0, 2.0]).dims == ("draw",)
    assert history.to_DataArray([[1, 2], [3, 4], [5, 6]]).shape == (2, 3)
    assert history.to_DataArray([[[1, 2]], [[3, 4]]], warmup=0.5).dims == ("chain", "leapfrog", "draw")
    with pytest.raises(TrackError, match="0 dimensions"):
        history.to_DataArray(3.0)
    path = history.save_dataset(tmp_path / "d", fname="mine")
    assert path.name == "mine.h5"
    from ezpz.utils import dataset_from_h5pyfile

    assert list(dataset_from_h5pyfile(path)["b"].values) == [0, 2, 4, 6]
    history.finalize(plot=False)
    assert list(history.history["a/x"]) == [0, 1, 2, 3]  # after the end, too


def test_drawing_on_demand_and_a_line_without_a_row(tmp_path, capsys):
    history = History(outdir=tmp_path / "run")
    for step in range(3):
        history.update({"x": step, "loss": 1.0 / (step + 1)})
    history.tplot_all(outdir=tmp_path / "out", verbose=True)
    assert sorted(path.name for path in (tmp_path / "out" / "plots" / "tplot").iterdir()) == ["loss.txt", "x.txt"]
    history.log_metrics({"train/loss": 0.25, "hist/x": [1]}, precision=2, include_summary=True)
    assert "loss=0.25\n" in capsys.readouterr().out
    assert len(history.history["loss"]) == 3
    assert history.tracker.wandb_run is None
    assert history.tracker.get_backend("wandb") is None
    history.tracker.log_image("sample", "x.png")
    assert "History.tracker.log_image does nothing" in capsys.readouterr().out


@pytest.mark.slow
def test_pictures_on_demand(tmp_path):
    history = History(outdir=tmp_path / "run")
    for step in range(3):
        history.update({"loss": 1.0 / (step + 1)})
    assert history.plot_all(outdir=tmp_path / "out", num_chains=128).sizes["draw"] == 3
    assert (tmp_path / "out" / "plots" / "mplot" / "pngs" / "loss.png").stat().st_size > 1000


def test_a_backend_of_an_older_script_gets_every_row(tmp_path):
    from ezpz.tracker import TrackerBackend, register_backend

    class Mine(TrackerBackend):
        name = "mine"

        def __init__(self, **given):
            self.rows, self.configs, self.given, self.ended = [], [], given, False

        def log(self, metrics, step=None, commit=True):
            self.rows.append((step, metrics))

        def log_config(self, config):
            self.configs.append(config)

        def finish(self):
            self.ended = True

    register_backend("mine", Mine)
    history = ezpz.History(backends="mine", outdir=tmp_path / "run", config={"lr": 1})
    history.update({"loss": 2.0})
    history.finalize(plot=False)
    backend = history.tracker.get_backend("mine")
    assert backend.rows == [(0, {"loss": 2.0})]
    assert {"lr": 1} in backend.configs
    assert backend.ended
    with pytest.raises(UsageError, match="no backend: object without log"):
        register_backend("broken", object)
