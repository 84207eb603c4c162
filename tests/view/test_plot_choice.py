import os

import pytest

from ezpz.errors import UsageError
from ezpz.track.named import folder_of, newest_run
from ezpz.view.terminal.metric_choice import choose, listed, matching, sorted_out

NAMES = ["train/loss", "val/loss", "dt", "dtf", "grad_norm"]


def test_a_word_means_a_name_or_a_last_part_or_a_pattern():
    losses = ["train/loss", "val/loss"]
    meant = {"dt": ["dt"], "dt*": ["dt", "dtf"], "loss": losses, "*loss": losses, "train/*": losses[:1]}
    meant |= {"los": [], "Loss": []}
    assert {word: matching(word, NAMES) for word in meant} == meant
    assert matching("loss", ["train/loss", "loss"]) == ["loss"]
    assert matching("a[0]", ["a[0]", "a0"]) == ["a[0]"]
    assert choose(["dt", "loss", "train/loss"], NAMES, "x") == ["dt", "train/loss", "val/loss"]
    assert choose([], NAMES, "x") == NAMES


def test_a_misspelt_metric_is_an_error_that_names_those_near():
    with pytest.raises(UsageError, match=r"'los' .* of outputs/a .* Did you mean train/loss\?"):
        choose(["los"], NAMES, "outputs/a")
    with pytest.raises(UsageError, match="expected one of none: no number has been recorded"):
        choose(["x"], [], "a")
    assert listed([f"m{number}" for number in range(30)]).endswith("m11 and 18 more (`--list` shows them)")


def a_run(folder, age=0.0):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    then = folder.stat().st_mtime - age
    os.utime(folder / "metrics.jsonl", (then, then))
    return folder


def test_the_newest_run_is_the_one_whose_journal_changed_last(tmp_path):
    assert newest_run(tmp_path) is None
    old, new = a_run(tmp_path / "a/1", 50), a_run(tmp_path / "b/2", 10)
    a_run(tmp_path / ".hidden/3")
    a_run(tmp_path / "1/2/3/4/5/too-deep")
    a_run(new / "inside")
    assert newest_run(tmp_path) == new
    assert newest_run(old) == old
    assert folder_of(str(tmp_path)) == new
    assert folder_of(str(old / "metrics.jsonl")) == old
    (tmp_path / "a/1/run.json").write_text("{}")
    assert newest_run(tmp_path) == old


def test_words_are_sorted_into_folders_and_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "r")
    assert sorted_out(["r", "loss", "r/metrics.jsonl", "dt"]) == (["r", "r/metrics.jsonl"], ["loss", "dt"])
    assert sorted_out([]) == ([], [])
    assert sorted_out(["loss"]) == ([], ["loss"])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match="no run or launch 'loss'"):
        sorted_out(["loss"])
    (tmp_path / "empty" / "outputs").mkdir()
    assert sorted_out(["train/loss"]) == ([], ["train/loss"])
    for word in ("outputs/gone", "./gone", "/gone", "gone/"):
        with pytest.raises(UsageError, match=r"no run or launch .*gone"):
            sorted_out([word])
