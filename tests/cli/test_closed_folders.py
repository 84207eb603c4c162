"""Runs of others, whose folders may not be read: one line that says whose they are, and lists go on without them."""

import json
import shutil
import time

import pytest

from cli.runs_on_disk import write_run
from lab.system import AS_PLAIN_USER


@pytest.fixture
def folders(tmp_path):
    """A run that may be read, and an older one that may not; with a function that closes a part of the latter."""
    if AS_PLAIN_USER and not shutil.which("setpriv"):
        pytest.skip("setpriv (util-linux) is not here, and root may read everything")
    write_run(tmp_path / "outputs/mine/1", {"loss": [2.0, 1.0]}, name="mine")
    theirs = write_run(tmp_path / "outputs/theirs/1", {"loss": [2.0, 1.0]}, name="theirs")
    closed = []

    def close(name=""):
        closed.append(theirs / name if name else theirs)
        closed[-1].chmod(0o000)
        return "outputs/theirs/1"

    yield close
    for path in reversed(closed):
        path.chmod(0o755)


@pytest.fixture
def ezpz(run_cli, clean_env, tmp_path):
    env = {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state")}
    return lambda *words: run_cli([*AS_PLAIN_USER, "ezpz", *words], env=env)


ONE_RUN = (
    ["runs", "--goodput"], ["report"], ["watch", "--once"], ["why"], ["logs"], ["plot"], ["open"], ["export"],
    ["startup"], ["compare", "outputs/mine/1"],
)  # fmt: skip


@pytest.mark.parametrize("what", ["", "run.json"], ids=["folder", "file"])
@pytest.mark.slow
def test_a_closed_run_that_is_named_is_one_line_with_its_owner(folders, ezpz, what):
    run = folders(what)
    for words in ONE_RUN:
        done = ezpz(*words, run)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith("ezpz: no access to "), words
        assert "mode 000" in line, words
        assert "1/run.json" in line if what else "theirs/1" in line, words


def test_a_list_goes_on_without_closed_runs_and_says_so_once(folders, ezpz, tmp_path):
    folders()
    done = ezpz("runs", "--json")
    assert (done.returncode, [run["name"] for run in json.loads(done.stdout)]) == (0, ["mine"])
    assert done.stderr.splitlines() == ["ezpz runs: left out, as they may not be read: outputs/theirs/1"]
    done = ezpz("watch", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "loss=1" in done.stdout
    assert ezpz("runs", "outputs/theirs/1").stderr.startswith("ezpz: no access to outputs/theirs/1 (")


def test_where_every_run_is_closed_the_newest_one_is_no_run_that_is_missing(folders, ezpz, tmp_path):
    folders()
    shutil.rmtree(tmp_path / "outputs/mine")
    for words in (["report", "outputs"], ["watch", "--once"], ["runs", "--goodput"]):
        done = ezpz(*words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "theirs/1 (permission denied): it belongs to " in done.stderr, words


def test_status_shows_a_launch_whose_run_is_closed(folders, ezpz, tmp_path):
    run = folders()
    record = tmp_path / "state/ezpz/launches/2026-11-20-162001-abcd1234/run.json"
    record.parent.mkdir(parents=True)
    fields = {"launch_id": "abcd1234ef", "state": "failed", "started": time.time() - 60, "ended": time.time() - 30}
    more = {
        "command": ["python3", "train.py"],
        "run_folder": str(tmp_path / run),
        "output": str(tmp_path / run / "out"),
    }
    record.write_text(json.dumps({**fields, **more}, indent=1))
    done = ezpz("status")
    assert "train.py" in done.stdout
    assert "Traceback" not in done.stderr
