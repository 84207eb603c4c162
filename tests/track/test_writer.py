"""How a run ends: well, by an exception, by a plot that fails, by a full disk, or without being ended."""

import json
import shutil
import subprocess
import sys
import threading

import h5py
import pytest
from test_history import files, run_json

from ezpz.errors import UsageError
from ezpz.track import History, read_journal
from lab.run_folders import environ


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


def test_a_collision_is_told_at_its_first_step_and_ends_nothing(history, capsys):
    for _ in range(2):
        history.update({"train/loss": 1.0, "train_loss": 2.0, "draw": 3.0})
    dataset = history.finalize(plots=False, show=False)
    said = capsys.readouterr().out
    assert said.count("metric 'train_loss' is 'train_loss_2' in the HDF5 file") == 1
    assert said.count("metric 'draw' is 'draw_2' in the HDF5 file") == 1
    assert {name: dataset[name].attrs["key"] for name in dataset.data_vars} == {
        "train_loss": "train/loss",
        "train_loss_2": "train_loss",
        "draw_2": "draw",
    }
    assert "problems" not in run_json(history.outdir)


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


# What a child, forked inside `with History`, does before it ends by sys.exit, which runs the end of the block.
IN_A_CHILD = ["", "run.update({'x': 2.0})", "run.finalize()", "run.export(); run.sync(); run.log_config({'a': 1})"]


@pytest.mark.few(1)
@pytest.mark.parametrize("does", IN_A_CHILD)
def test_a_forked_child_leaves_the_run_alone(run_python, tmp_path, does):
    code = """
import os, sys
from ezpz.track import History
with History("fork", "out") as run:
    run.update({"x": 1.0})
    if os.fork() == 0:
        exec(sys.argv[1])
        sys.exit(0)
    assert os.wait()[1] == 0
    assert '"running"' in open("out/run.json").read()
    assert {"metrics.jsonl", "run.json"} <= set(os.listdir("out")) <= {"metrics.jsonl", "run.json", "logs"}
    run.update({"x": 3.0})
"""
    result = run_python(code, does)
    assert result.returncode == 0, result.stderr
    said = result.stdout.decode()
    assert said.count("fork finished: 2 steps") == 1
    assert said.count("records nothing") == ("update" in does)
    assert [row["m"]["x"] for row in read_journal(tmp_path / "out")] == [1.0, 3.0]


def test_threads_that_record_side_by_side_share_no_step(history):
    def record(name):
        for number in range(300):
            history.update({name: number})

    threads = [threading.Thread(target=record, args=(f"m{number}",)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert [row["step"] for row in read_journal(history.outdir)] == list(range(1200))


def _rename(folder):
    folder.rename(folder.with_name("good"))


def _remove(folder):
    shutil.rmtree(folder)


def _remove_all(folder):
    shutil.rmtree(folder.parent)


def _remove_journal(folder):
    (folder / "metrics.jsonl").unlink()


def _replace_journal(folder):
    copy = folder / "copy"
    copy.write_bytes((folder / "metrics.jsonl").read_bytes())
    copy.replace(folder / "metrics.jsonl")


def _cut_journal(folder):
    (folder / "metrics.jsonl").write_bytes(b"")


# What somebody does to a run folder in the middle of a run; where the run ends; its rows of 20; a word that tells it.
MOVED = [
    (_rename, "good", 20, "the run goes on in"),
    (_remove, "run", 20, "was removed during the run: all"),
    (_remove_all, "run", 20, "was removed during the run: all"),
    (_remove_journal, "run", 20, "was removed during the run: all"),
    (_replace_journal, "run-2", 20, "was replaced during the run: all"),
    (_cut_journal, "run", 10, "10 rows that this run wrote are no longer in it"),
]


@pytest.mark.parametrize("seen_by", ["thread", "end"])
@pytest.mark.parametrize(("act", "name", "rows", "word"), MOVED, ids=[case[0].__name__[1:] for case in MOVED])
def test_a_folder_that_is_renamed_or_removed_takes_no_row_along(tmp_path, capsys, act, name, rows, word, seen_by):
    made = tmp_path / "runs" / "run"
    history = History("train", made, trackers=[])
    for number in range(20):
        history.update({"loss": float(number)})
        if number == 9:
            act(made)
            if seen_by == "thread":
                history._writer.journal.follow()  # what it does each second
    history.finalize(plots=False, show=False)
    said = capsys.readouterr().out
    assert said.count(word) == 1, said
    folder = tmp_path / "runs" / name
    assert history.outdir == folder
    assert [row["step"] for row in read_journal(folder)] == list(range(20 - rows, 20))
    assert run_json(folder)["state"] == "finished"
    assert h5py.File(folder / "train.h5")["loss"].shape == (rows,)
    assert history.paths == {
        "run": folder / "run.json",
        "journal": folder / "metrics.jsonl",
        "dataset": folder / "train.h5",
    }
    assert made.exists() == (name != "good")


def test_a_folder_that_cannot_be_made_again_is_told_and_its_rows_are_read_back_when_it_can(tmp_path, capsys):
    made = tmp_path / "runs" / "run"
    history = History("train", made, trackers=[])
    history.update({"loss": 1.0})
    shutil.rmtree(made.parent)
    made.parent.write_text("a file")
    history._writer.journal.follow()  # what its thread does each second
    history._writer.journal.follow()
    assert capsys.readouterr().out.count("cannot be made again: ") == 1
    history.update({"loss": 2.0})
    made.parent.unlink()
    history.finalize(plots=False, show=False)
    assert [row["m"]["loss"] for row in read_journal(made)] == [1.0, 2.0]


def test_a_run_without_a_row_ends_well(history):
    dataset = history.finalize()
    assert dict(dataset.sizes) == {"draw": 0}
    assert run_json(history.outdir)["state"] == "finished"


def test_missing_rows_are_told_at_the_end_and_nobody_says_that_all_are_there(history, capsys, monkeypatch, full_disk):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    history.update({"a": 1})
    full_disk(history.outdir / "metrics.jsonl")
    history.update({"a": 2})
    history.update({"a": 3})
    monkeypatch.setattr("ezpz.track.dataset.Replacement", full)
    dataset = history.finalize(plots=False, show=False)
    assert dataset["a"].values.tolist() == [1]
    monkeypatch.undo()
    said = capsys.readouterr().out
    told = [line for line in said.splitlines() if "[W]" in line]
    assert len(told) == 3
    assert "No space left on device" in told[2]
    assert "metrics.jsonl stays as it is: `ezpz export`" in told[2]
    assert "Training continues; rows from step 1 on wait in memory, at most 64 MB" in told[0]
    assert "is not complete: 2 rows of steps 1 to 2 could not be written." in told[1]
    assert run_json(history.outdir)["problems"][0] == "2 rows of steps 1 to 2 could not be written"
    assert [row["step"] for row in read_journal(history.outdir)] == [0]
    assert "safe" not in said


def test_a_full_disk_at_the_start_is_told_with_the_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")  # of a write, which knows no name

    monkeypatch.setattr("ezpz.track.run_folder.write_whole", full)
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
