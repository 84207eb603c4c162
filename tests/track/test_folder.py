import json
from datetime import datetime

import pytest

from ezpz.errors import UsageError
from ezpz.files import write_whole
from ezpz.track.run_folder import RunFile, make_folder

STAMP = "2026-11-20-162001"


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    made = [make_folder("train", None, STAMP) for _ in range(3)]
    assert made == [tmp_path / "outputs" / "train" / f"{STAMP}{tail}" for tail in ("", "-2", "-3")]
    assert all(folder.is_dir() for folder in made)


def test_outdir_is_the_folder_itself_made_with_its_parents_and_kept(tmp_path):
    folder = make_folder("train", "deep/down/here", STAMP)
    assert folder == tmp_path / "deep" / "down" / "here"
    (folder / "mine.txt").write_text("kept")
    assert make_folder("train", folder, STAMP) == folder
    assert (folder / "mine.txt").read_text() == "kept"


def test_a_file_or_a_closed_door_in_the_place_of_the_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    with pytest.raises(
        UsageError, match=r"run folder: .*taken: File exists \(from outdir\); expected .* Use History\(outdir"
    ):
        make_folder("train", "taken", STAMP)
    with pytest.raises(UsageError, match=r"taken/below: Not a directory \(from outdir\)"):
        make_folder("train", "taken/below", STAMP)
    (tmp_path / "outputs").write_text("")
    with pytest.raises(UsageError, match=r"outputs/train: Not a directory \(from the current folder\)"):
        make_folder("train", None, STAMP)
    monkeypatch.setattr("os.access", lambda *_: False)  # root, as tests may run, can write everywhere
    with pytest.raises(UsageError, match="not writable"):
        make_folder("train", tmp_path, STAMP)


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_whole(path, b"old", sync=True)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_run_json_tells_start_and_end(tmp_path):
    run = RunFile(tmp_path, "train", {"host": "n01"})
    run.save()
    first = json.loads((tmp_path / "run.json").read_text())
    assert [first[key] for key in ("schema", "name", "state", "host")] == [1, "train", "running", "n01"]
    run.end("failed", {"journal": tmp_path / "metrics.jsonl", "tplot": tmp_path / "plots" / "tplot"}, ["no room"])
    last = json.loads((tmp_path / "run.json").read_text())
    assert last["state"] == "failed"
    assert last["started"] == first["started"]
    assert last["paths"] == {"journal": "metrics.jsonl", "tplot": "plots/tplot"}
    assert last["problems"] == ["no room"]
    assert datetime.fromisoformat(last["ended"]).tzinfo is not None
    assert datetime.fromisoformat(last["ended"]) >= datetime.fromisoformat(last["started"])


def test_runs_that_used_the_folder_before_are_kept_oldest_first(tmp_path):
    for name in ("one", "two", "three"):
        RunFile(tmp_path, name, {}).save()
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["name"] == "three"
    assert [run["name"] for run in facts["earlier"]] == ["one", "two"]
    assert not any("earlier" in run for run in facts["earlier"])


@pytest.mark.parametrize("content", ["{broken", "[1]"], ids=["no JSON", "a list"])
def test_a_run_json_that_is_not_ours_is_kept_as_text(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    RunFile(tmp_path, "one", {}).save()
    assert json.loads((tmp_path / "run.json").read_text())["earlier"] == [content]
