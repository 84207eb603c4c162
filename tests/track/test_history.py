import json
import math
import time

import numpy as np
import pytest

from ezpz.errors import TrackError, UsageError
from ezpz.track import History, read_journal


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_from_first_step_to_last_file(tmp_path, capsys):
    history = History("train")
    assert history.outdir.parent == tmp_path / "outputs" / "train"
    line = history.update({"iter": 0, "loss": 0.1234561, "accuracy": 0.912, "dt": 0.001234})
    assert line == "iter=0 loss=0.123456 accuracy=0.912 dt=0.001234"
    history.update({"iter": 1, "loss": 0.1, "accuracy": 0.95, "dt": 0.001})
    assert run_json(history.outdir)["state"] == "running"
    capsys.readouterr()

    dataset = history.finalize()

    assert dict(dataset.sizes) == {"draw": 2}
    assert list(dataset.data_vars) == ["iter", "loss", "accuracy", "dt"]
    assert dataset["iter"].dtype == np.int64
    assert dataset["loss"].values.tolist() == [0.1234561, 0.1]
    assert files(history.outdir) == [
        "metrics.jsonl",
        *sorted(f"plots/mplot/{kind}s/{name}.{kind}" for kind in ("png", "svg") for name in ("accuracy", "dt", "loss")),
        *sorted(f"plots/tplot/{name}.txt" for name in ("accuracy", "dt", "loss")),
        "report.html",
        "run.json",
        "train.h5",
    ]
    made = {key: str(path.relative_to(history.outdir)) for key, path in history.paths.items()}
    folders = {"tplot": "plots/tplot", "pngs": "plots/mplot/pngs", "svgs": "plots/mplot/svgs"}
    data = {"run": "run.json", "journal": "metrics.jsonl", "dataset": "train.h5"}
    assert made == {**data, **folders, "report": "report.html"}
    assert all(path.is_absolute() and path.exists() for path in history.paths.values())
    facts = run_json(history.outdir)
    assert facts["state"] == "finished"
    assert facts["paths"] == made
    assert "problems" not in facts
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown if line.rstrip().endswith("]") and "[2" in line[:60]][:2] == [
        "loss",
        "accuracy",
    ]
    labels = [
        line[:14].strip() for line in shown[next(n for n, line in enumerate(shown) if "── train finished" in line) :]
    ]
    assert labels[1:] == ["loss", "accuracy", "step", "first step", "report", "next"]


@pytest.mark.slow
def test_finalize_twice_is_finalize_once(history):
    history.update({"loss": 1.0})
    dataset = history.finalize(show=False)
    before = {path: (history.outdir / path).stat() for path in files(history.outdir)}
    assert history.finalize() is dataset
    assert history.export() == history.paths["dataset"]
    assert {path: (history.outdir / path).stat() for path in files(history.outdir)} == before
    with pytest.raises(TrackError, match="is finalized; expected no update after that"):
        history.update({"loss": 2.0})
    assert len(read_journal(history.outdir)) == 1


@pytest.mark.slow
def test_export_writes_data_without_drawing_and_without_xarray(run_python, tmp_path):
    code = """
from ezpz.track import History
history = History("train", "out")
history.update({"loss": 1.0})
print(history.export())
history.update({"loss": 2.0})
first = open(history.export(), "rb").read()
assert open(history.export(), "rb").read() == first
import sys
assert not {"xarray", "matplotlib", "plotext", "torch"} & set(sys.modules)
print(history.finalize(plots=False)["loss"].values.tolist())
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.decode().splitlines()
    assert lines[0] == str(tmp_path / "out" / "train.h5")
    assert lines[-1] == "[1.0, 2.0]"
    assert files(tmp_path / "out") == ["metrics.jsonl", "run.json", "train.h5"]


def test_steps_count_on_from_the_last_one_also_without_a_line(history):
    for step in (None, None, 10, None, np.int64(20), None, -5):
        history.update({"a": 1}, step=step)
    assert [row["step"] for row in read_journal(history.outdir)] == [0, 1, 10, 11, 20, 21, -5]
    assert history.update({"a": 1.5}, summarize=False) == ""
    assert read_journal(history.outdir)[-1]["m"] == {"a": 1.5}


def test_a_metric_called_step_is_the_step(history):
    history.update({"step": 7, "a": 1.0})
    history.update({"a": 2.0})
    history.update({"step": 9}, step=9)
    assert history.finalize(plots=False)["step"].values.tolist() == [7, 8, 9]


REFUSED = [
    ({"step": 3}, 4, "the metric 'step' says 3; expected the same int in both"),
    ({"step": 0.5}, None, "the metric 'step' says 0.5"),
    ({"a": 1}, 1.5, r"step 1\.5 .*expected an int"),
    ({"a": 1}, 2**63, "expected an int of 64 bits"),
    ({"a": None}, None, "metric 'a': NoneType"),
    ({"a\n": 1}, None, "expected a printable name"),
]


def test_what_cannot_be_recorded_is_refused_and_leaves_no_trace(subtests, history):
    for metrics, step, match in REFUSED:
        with subtests.test(match), pytest.raises(TrackError, match=match):
            history.update(metrics, step=step)
    history.update({"fine": 1})
    assert [(row["step"], row["m"]) for row in read_journal(history.outdir)] == [(0, {"fine": 1})]


def test_torch_tensors_are_read_without_importing_torch_here(history):
    torch = pytest.importorskip("torch")
    metrics = {
        "loss": torch.tensor(0.5, requires_grad=True),
        "half": torch.tensor(0.1, dtype=torch.bfloat16),
        "n": torch.tensor(2**60),
        "ok": torch.tensor(True),
        "hist": torch.tensor([1, 2]),
    }
    history.update(metrics, step=torch.tensor(3))
    row = read_journal(history.outdir)[0]
    assert row["step"] == 3
    assert row["m"] == {"loss": 0.5, "half": 0.10009765625, "n": 2**60, "ok": True, "hist": [1, 2]}
    with pytest.raises(TrackError, match=r"torch.Tensor of shape \(2, 2\)"):
        history.update({"x": torch.zeros(2, 2)})


def test_other_ranks_return_lines_and_write_nothing(monkeypatch, tmp_path):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with History("train") as history:
        assert history.update({"a": 0.5, "b": math.nan}) == "a=0.5 b=nan"
        assert history.update({"a": 1.0}, summarize=False) == ""
        with pytest.raises(TrackError):  # as on rank 0, so that all ranks end alike
            history.update({"a": object()})
        history.log_config({"lr": 0.1})
        assert history.export() is None
        assert history.outdir is None
        assert history.paths == {}
        assert dict(history.finalize().sizes) == {}
    assert History("train", "there").outdir == tmp_path / "there"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_configuration_is_stored_and_added_to(history):
    history.log_config({"lr": 0.1, "api_key": "hunter2"})
    history.log_config({"lr": 0.2})
    assert run_json(history.outdir)["config"] == {"lr": 0.2, "api_key": "<redacted>"}
    with pytest.raises(TrackError, match="cannot store a configuration: int"):
        history.log_config(3)


def test_a_name_that_is_no_folder_name_is_refused(subtests):
    for name in ["a/b", "..", ".", "", "a\0b"]:
        with subtests.test(repr(name)), pytest.raises(UsageError, match="cannot name a run"):
            History(name)


def test_update_is_cheap(history):
    """The budget of 20 us is measured by a benchmark; this catches what costs far more, on a busy machine too."""
    metrics = {f"metric{i}": i / 7 for i in range(8)}
    took = []
    for _ in range(500):
        start = time.thread_time()
        history.update(metrics)
        took.append(time.thread_time() - start)
    assert sorted(took)[250] < 2e-3
