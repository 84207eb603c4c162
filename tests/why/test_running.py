"""A launch that hangs and still runs: `ezpz why` and `ezpz stacks` name the rank that the others wait for."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz import register
from ezpz.launch.ask_launch import ask
from lab import process

SCRIPT = Path(__file__).parent / "scripts" / "trouble.py"
PATIENCE = 60  # seconds for ranks of torch to start and to hang


@pytest.fixture
def hung(clean_env, draw, home, tmp_path):
    """A launch of two ranks, one of which computes for ever; `.rank` is that, `.record` the file of its record."""
    rank, step = draw.randrange(2), draw.randrange(2, 30)
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, SCRIPT, "computes", str(rank), str(step)]
    with (tmp_path / "err").open("wb") as errors:
        launch = subprocess.Popen(line, env=clean_env, cwd=tmp_path, stdout=errors, stderr=errors)
    launch.rank, launch.step, launch.errors = rank, step, tmp_path / "err"
    launch.record = process.wait_until(lambda: next(home.glob("**/launches/*/run.json"), None), PATIENCE, "a record")
    yield launch
    if launch.poll() is None:
        launch.send_signal(signal.SIGKILL)
        launch.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rank_that_others_wait_for_is_named_while_the_launch_runs(hung, run_cli):
    def verb(*words):
        done = run_cli([sys.executable, "-m", "ezpz", *words], timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def named():
        causes = verb("why", "--json")["causes"]
        return [(cause["cause"], cause["rank"]) for cause in causes] == [("collective-missing", hung.rank)]

    process.wait_until(named, PATIENCE, f"the cause: {verb('why', '--json')}, {hung.errors.read_text()}", every=1.0)
    answer = verb("stacks", json.loads(hung.record.read_text())["launch_id"], "--json")  # others run, too
    assert answer["why"].startswith(f"rank {hung.rank} is in trouble (trouble.py:")
    assert len(answer["ranks"]) == 2
    answer = ask(register.as_here(register.read(str(hung.record))), "stacks")
    told = {each["rank"]: each["entries"][-1]["state"] for each in answer["collectives"]["ranks"]}
    assert (told[hung.rank], told[1 - hung.rank]) == ("completed", "scheduled")
