"""How a run ends: well, by an exception, by a plot that fails, by a full disk, or without being ended."""

import json
import subprocess
import sys

import pytest
from folders import environ
from test_history import files, run_json

from ezpz.errors import TrackError, UsageError
from ezpz.track import History, read_journal


def test_a_folder_used_again_is_added_to(make_history):
    first = make_history()
    first.update({"loss": 3.0})
    first.update({"loss": 2.0})
    first.finalize(plots=False)
    second = make_history()
    second.update({"loss": 1.0})
    dataset = second.finalize(plots=False)
    assert dataset["loss"].values.tolist() == [3.0, 2.0, 1.0]
    assert dataset["step"].values.tolist() == [0, 1, 2]
    assert [run["state"] for run in run_json(second.outdir)["earlier"]] == ["finished"]


def test_an_exception_marks_the_run_and_keeps_its_data(tmp_path):
    def train():
        with History("train", tmp_path / "run") as history:
            history.update({"loss": 1.0})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert run_json(tmp_path / "run")["state"] == "failed"
    assert files(tmp_path / "run") == ["metrics.jsonl", "run.json", "train.h5"]


@pytest.mark.slow
def test_a_collision_is_told_at_once_and_is_an_error_at_the_end(history, capsys):
    history.update({"train/loss": 1.0, "train_loss": 2.0, "dt": 0.1})
    history.update({"train/loss": 1.0, "train_loss": 2.0, "dt": 0.1})
    assert capsys.readouterr().out.count("'train/loss' and 'train_loss'") == 1
    for _ in range(2):
        with pytest.raises(TrackError, match="'train/loss' and 'train_loss'"):
            history.finalize(show=False)
        with pytest.raises(TrackError, match="'train/loss' and 'train_loss'"):
            history.export()
    assert [row["m"]["train_loss"] for row in read_journal(history.outdir)] == [2.0, 2.0]
    assert "plots/tplot/dt.txt" in files(history.outdir)
    facts = run_json(history.outdir)
    assert facts["state"] == "finished"
    assert "'train/loss' and 'train_loss'" in facts["problems"][0]


@pytest.mark.slow
def test_an_export_that_fails_does_not_hide_the_exception_of_the_training(tmp_path, capsys):
    def train():
        with History("train", tmp_path / "run") as history:
            history.update({"a/b": 1.0, "a_b": 2.0})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert "cannot export metrics" in capsys.readouterr().out
    with pytest.raises(TrackError, match="cannot export"), History("train", tmp_path / "run2") as history:
        history.update({"a/b": 1.0, "a_b": 2.0})


@pytest.mark.slow
def test_a_plot_that_raises_stops_neither_data_nor_program(run_python, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plotext.py").write_text("raise RuntimeError('no plots today')")
    (tmp_path / "site" / "matplotlib.py").write_text("raise RuntimeError('no pictures today')")
    code = """
import sys
sys.path.insert(0, "site")
from ezpz.track import History
with History("train", "out") as history:
    history.update({"loss": 1.0})
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    shown = result.stdout.decode()
    assert shown.count("[W]") == 3
    for what in ("the text plot of loss", "the plot on the terminal of loss", "the picture of loss"):
        assert f"cannot draw {what}: RuntimeError" in shown
    assert (tmp_path / "out" / "train.h5").is_file()
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["state"] == "finished"
    assert len(facts["problems"]) == 3


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("end", "state", "code"),
    [("", "exited", 0), ("1 / 0", "failed", 1), ("sys.exit(3)", "exited", 3)],
    ids=["end", "exception", "sys.exit"],
)
@pytest.mark.parametrize("loaded", ["", "import h5py, matplotlib"], ids=["bare", "h5py loaded"])
def test_a_program_that_forgets_finalize_leaves_its_journal(
    run_python, tmp_path, end, state, code, loaded
):  # fixtures and table columns, all by name
    result = run_python(
        f"import sys\n{loaded}\nfrom ezpz.track import History\nh = History('a', 'out')\nh.update({{'x': 1}})\n{end}"
    )
    assert result.returncode == code, result.stderr
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["state"] == state
    assert facts.get("cause", "").startswith("ZeroDivisionError: " if end == "1 / 0" else "")
    assert len(read_journal(tmp_path / "out")) == 1
    assert (tmp_path / "out" / "a.h5").exists() == bool(loaded)


@pytest.mark.slow
def test_a_forked_child_leaves_the_run_alone(run_python, tmp_path):
    code = """
import os, sys
from ezpz.track import History
history = History("a", "out")
history.update({"x": 1})
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(open("out/run.json").read().count('"running"'))
history.finalize(plots=False)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode().splitlines()[0] == "1"


def test_a_run_without_a_row_ends_well(history):
    dataset = history.finalize()
    assert dict(dataset.sizes) == {"draw": 0}
    assert run_json(history.outdir)["state"] == "finished"


def test_a_folder_that_vanished_is_an_error_and_not_a_crash(history):
    history.update({"a": 1})
    for name in files(history.outdir):
        (history.outdir / name).unlink()
    history.outdir.rmdir()
    with pytest.raises(TrackError, match="cannot read the journal"):
        history.finalize()


def test_missing_rows_are_told_at_the_end_and_nobody_says_that_all_are_there(history, capsys, monkeypatch, full_disk):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    history.update({"a": 1})
    full_disk(history.outdir / "metrics.jsonl")
    history.update({"a": 2})
    history.update({"a": 3})
    monkeypatch.setattr("ezpz.track.dataset.Replacement", full)
    with pytest.raises(TrackError, match=r"No space left on device .* metrics.jsonl stays as it is: `ezpz export`"):
        history.finalize(plots=False)
    monkeypatch.undo()
    said = capsys.readouterr().out
    told = [line for line in said.splitlines() if "[W]" in line]
    assert len(told) == 2
    assert "Training continues; rows from step 1 on wait in memory, at most 64 MB" in told[0]
    assert "is not complete: 2 rows of steps 1 to 2 could not be written." in told[1]
    assert run_json(history.outdir)["problems"][0] == "2 rows of steps 1 to 2 could not be written"
    assert [row["step"] for row in read_journal(history.outdir)] == [0]
    assert "safe" not in said


def test_a_full_disk_at_the_start_is_told_with_the_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")  # of a write, which knows no name

    monkeypatch.setattr("ezpz.track.folder.write_whole", full)
    with pytest.raises(UsageError) as error:
        History(outdir=tmp_path / "run")
    assert f"{tmp_path}/run: No space left on device (from outdir); expected" in str(error.value)


@pytest.mark.slow
def test_two_processes_that_start_in_one_second_do_not_share_a_folder(tmp_path):
    code = "from ezpz.track import History; h = History('a'); h.update({'x': 1}); print(h.outdir)"
    known = {"cwd": tmp_path, "env": environ(tmp_path), "stdout": subprocess.PIPE}
    children = [subprocess.Popen([sys.executable, "-c", code], **known) for _ in range(4)]
    outputs = [child.communicate(timeout=60)[0].decode().splitlines()[0] for child in children]
    assert len(set(outputs)) == 4
    assert all(len(read_journal(path)) == 1 for path in outputs)
