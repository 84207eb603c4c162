"""The checkpoint that a run begins with, and who takes up whose random numbers; files by hand, without torch."""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

import pytest

import ezpz
from ezpz.checkpoint import choose, describe, find_latest
from ezpz.checkpoint.layout import Layout, place_of, source_of
from ezpz.checkpoint.manifest import Manifest
from ezpz.errors import UsageError

SHA_256 = sha256(b"abc").hexdigest()


def manifest(step, number, saved, **more):
    told = {"world_size": 4, "mesh": {}, "files": {"data": 3}, "sha256": {"data": SHA_256}, **more}
    return Manifest(
        step,
        number,
        saved,
        torch="2",
        ezpz="0",
        model={},
        optimizer=None,
        schedule="",
        state=[],
        own_objects=False,
        **told,
    )


def write(run, step, number=None, *, age=0, name=None):
    """Make a checkpoint that is complete as far as files tell; ``age`` in hours."""
    folder = run / "checkpoints" / (name or f"step-{step:08d}")
    folder.mkdir(parents=True)
    (folder / "data").write_text("abc")
    saved = datetime(2026, 11, 20, 12, tzinfo=timezone.utc) - timedelta(hours=age)
    (folder / "checkpoint.json").write_bytes(manifest(step, number or step, saved.isoformat()).to_json())
    return folder


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "train"


def test_none_begins_afresh(outputs):
    write(outputs / "a", 1)
    assert choose("none", name="train", outdir=None) == (None, None)
    assert choose("none", name="train", outdir="here") == (Path.cwd() / "here", None)


def test_auto_takes_the_newest_of_all_runs_of_that_name(outputs, capsys):
    assert choose("auto", name="train", outdir=None) == (None, None)
    assert "no complete checkpoint in outputs/train/*: a fresh run" in capsys.readouterr().out
    write(outputs / "2026-11-20-1", 50, age=3)
    newest = write(outputs / "2026-11-20-2", 10, age=1)
    (outputs / "2026-11-20-3").mkdir()
    write(outputs.with_name("other") / "a", 99)
    assert choose("auto", name="train", outdir=None) == (outputs / "2026-11-20-2", newest)


def test_auto_looks_nowhere_else_when_the_folder_is_given(outputs, tmp_path):
    write(outputs / "a", 1)
    mine = tmp_path / "mine"
    assert choose("auto", name="train", outdir="mine") == (mine, None)
    latest = write(mine, 7)
    assert choose("auto", name="train", outdir="mine") == (mine, latest)


def test_a_path_is_a_run_folder_or_a_checkpoint_and_the_run_goes_on_there(outputs, tmp_path):
    run = outputs / "a"
    first, second = write(run, 1), write(run, 2)
    assert choose(str(run), name="x", outdir=None) == (run, second)
    assert choose(str(first.parent), name="x", outdir=None) == (run, second)
    assert choose(str(first), name="x", outdir=None) == (run, first)
    assert choose(str(first), name="x", outdir="fork") == (tmp_path / "fork", first)


def test_what_cannot_be_resumed_from_names_what_can(outputs):
    run = outputs / "a"
    checkpoints = [write(run, step) for step in (100, 200, 300)]
    with pytest.raises(UsageError, match=r"there is nothing; .* The nearest are \S+00200 and \S+00300\."):
        choose(str(run / "checkpoints" / "step-00000240"), name="x", outdir=None)
    there = next(path for path in sorted((run / "checkpoints").iterdir()) if path.name.startswith("step-"))
    short = there.with_name(f"step-{int(there.name.partition('-')[2])}")
    assert choose(str(short), name="x", outdir=None).checkpoint == there
    (checkpoints[1] / "data").write_text("abcd")
    with pytest.raises(UsageError, match="data has 4 bytes instead of 3; expected a complete checkpoint"):
        choose(str(checkpoints[1]), name="x", outdir=None)
    with pytest.raises(
        UsageError, match=r"there is nothing; expected a run folder or a checkpoint. The newest is \S+00300\."
    ):
        choose(str(run / "nowhere"), name="x", outdir=None)
    (outputs / "empty").mkdir()
    with pytest.raises(UsageError, match="it holds no complete checkpoint"):
        choose(str(outputs / "empty"), name="x", outdir=None)
    (outputs / "file").write_text("")
    with pytest.raises(UsageError, match="it is a file"):
        choose(str(outputs / "file"), name="x", outdir=None)


def test_a_hidden_folder_never_counts_even_when_it_is_whole(outputs, capsys):
    run = outputs / "a"
    first = write(run, 1)
    write(run, 2, name=".step-00000002.abcd.tmp")
    assert find_latest(run) == first
    assert ".step-00000002.abcd.tmp: it is being saved or removed" in capsys.readouterr().out
    assert [found.step for found in describe(run)] == [1]


def test_the_newest_is_the_last_saved_whatever_its_step(outputs):
    run = outputs / "a"
    write(run, 300, number=1)
    newest = write(run, 100, number=2)
    assert find_latest(run) == newest


def test_no_content_of_checkpoint_json_is_an_accident(subtests, outputs):
    run = outputs / "a"
    first, second = write(run, 1), write(run, 2)
    said = json.loads((first / "checkpoint.json").read_text())
    for content in ("", "[]", "7", '{"schema": 1}', '{"schema": 1, "step": "x"}', "\x00"):
        with subtests.test(content):
            (second / "checkpoint.json").write_text(content)
            assert find_latest(run) == first
    for key in said:
        with subtests.test(key):
            (second / "checkpoint.json").write_text(json.dumps({**said, key: None}))
            assert find_latest(run) in {first, second}
            assert describe(run)


def test_finding_loads_no_torch(outputs, clean_env):
    write(outputs / "a", 1)
    code = """
import sys, ezpz
from ezpz.checkpoint import choose, describe, find_latest
assert find_latest("outputs/train/a").name == "step-00000001" and describe("outputs/train/a")[0].step == 1
assert not {"torch", "numpy"} & set(sys.modules)
"""
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=os.getcwd(), check=True, timeout=60)  # noqa: PTH109  # the test's


def test_a_place_is_that_of_the_mesh():
    assert [place_of(rank, {}) for rank in range(4)] == [0, 1, 2, 3]
    assert [place_of(rank, {"dp_shard": 2, "tp": 2}) for rank in range(4)] == [0, 0, 1, 1]
    mesh = {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 1}
    assert [place_of(rank, mesh) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_each_rank_takes_up_the_numbers_of_its_data_parallel_place(subtests):
    for saved, now, sources in [
        ((4, {}), (4, {"dp_shard": 4}), [0, 1, 2, 3]),
        ((4, {"dp_shard": 2, "tp": 2}), (4, {"dp_shard": 2, "tp": 2}), [0, 1, 2, 3]),
        ((4, {}), (4, {"dp_shard": 2, "tp": 2}), [0, 0, 1, 1]),
        ((4, {"dp_shard": 2, "tp": 2}), (4, {}), [0, 2, None, None]),
        ((4, {}), (2, {}), [0, 1]),
        ((2, {}), (4, {}), [0, 1, None, None]),
    ]:
        said = manifest(1, 1, "", world_size=saved[0], mesh=saved[1])
        with subtests.test(saved=saved, now=now):
            assert [source_of(Layout(*now, rank), said) for rank in range(now[0])] == sources
