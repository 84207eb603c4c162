"""`ezpz logs`: which files it prints, and that it follows what grows, is cut off, is not there yet, and ends."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])
LOGS = [sys.executable, "-m", "ezpz", "logs"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def env(clean_env, tmp_path):
    more = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**clean_env, **more, "PYTHONPATH": SRC, "PATH": "/nowhere"}


@pytest.fixture
def logs(env, tmp_path):
    return lambda *words: process.run([*LOGS, *words], env, cwd=tmp_path)


@pytest.fixture
def launch(tmp_path):
    """`launch(id, **fields)` writes the record of a launch that runs on another host, and returns its folder."""

    def write(name="5f3a90c2", log_dir=None, **fields):
        kept = tmp_path / "state" / "ezpz" / "launches"
        kept.mkdir(parents=True, exist_ok=True)
        entry = kept / f"2026-11-24-101500-{name}"
        if log_dir is None:
            entry.mkdir(exist_ok=True)
        else:
            log_dir.mkdir(exist_ok=True)
            if not entry.exists():
                entry.symlink_to(log_dir)
        told = {"schema": 1, "launch_id": name, "state": "running", "host": "n77", "started": time.time()}
        told |= {"plan": {"hosts": ["n77"], "job_id": "12.head"}, **fields}
        path = entry / "run.json"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").rename(path)
        return entry

    return write


def test_logs_of_ranks_come_first_each_line_with_its_rank(logs, launch, tmp_path):
    folder = launch(log_dir=tmp_path / "logs", output=str(tmp_path / "job.out"), state="finished")
    (tmp_path / "job.out").write_text("of the job\n")
    for rank in (0, 1, 10):
        (folder / f"rank-{rank}.log").write_text(f"a {rank}\nb {rank}")
    done = logs()
    assert done.stdout == "[0]: a 0\n[0]: b 0[1]: a 1\n[1]: b 1[10]: a 10\n[10]: b 10"
    assert logs("12", "--rank", "10").stdout == "a 10\nb 10"
    assert logs("5f3a", "--rank", "1").stdout == "a 1\nb 1"
    plan = {"hosts": ["n77"], "job_id": "13.head", "world_size": 2}
    folder = launch("77aa0000", tmp_path / "first", plan=plan)
    (folder / "rank-1.log").write_text("the first that wrote\n")
    assert logs("77aa0000").stdout == "[1]: the first that wrote\n"
    missing = logs("12.head", "--rank", "7")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("ezpz: no log of rank 7 of launch 5f3a90c2")


def test_then_the_output_of_the_job_then_the_last_words(logs, env, launch, tmp_path):
    folder = launch(output=str(tmp_path / "job.out"), state="failed")
    (folder / "rank-3.log").write_text("ValueError: my bug\n")
    assert logs().stdout == "ValueError: my bug\n"
    (tmp_path / "job.out").write_bytes(b"all of it\n\xff\n")
    done = subprocess.run(LOGS, env=env, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"all of it\n\xff\n"


def test_nothing_kept_and_an_unknown_name_are_one_line(logs, launch):
    launch(state="finished")
    done, unknown = logs(), logs("nowhere")
    assert (done.returncode, unknown.returncode, done.stderr.count("\n")) == (2, 2, 1)
    assert "no output of launch 5f3a90c2 (job 12.head) is kept" in done.stderr
    assert "--log-dir" in done.stderr
    assert "no run or launch 'nowhere'" in unknown.stderr


@pytest.mark.slow
def test_it_follows_a_log_that_is_not_there_yet_is_cut_off_and_ends(env, launch, tmp_path):
    folder = launch(log_dir=tmp_path / "logs")
    child = subprocess.Popen(
        [*LOGS, "-f", "--rank", "0"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stderr.readline() == "waiting for the log of rank 0 of launch 5f3a90c2 (job 12.head)\n"
        log = folder / "rank-0.log"
        log.write_text("first\n")
        assert child.stdout.readline() == "first\n"
        with log.open("a") as file:
            file.write("second, longer\n")
        assert child.stdout.readline() == "second, longer\n"
        log.write_text("anew\n")
        assert child.stdout.readline() == "anew\n"
        with log.open("a") as file:
            file.write("last\n")
        launch(log_dir=tmp_path / "logs", state="finished")
        out, error = child.communicate(timeout=120)
        assert (out, error, child.returncode) == ("last\n", "", 0)
    finally:
        child.kill()
        child.communicate()


def test_a_reader_that_leaves_ends_it(env, launch, tmp_path):
    folder = launch(log_dir=tmp_path / "logs")
    (folder / "rank-0.log").write_text("line\n" * 100_000)
    line = f"{' '.join(LOGS)} -f | head -1"
    done = process.run(["/bin/bash", "-c", line], {**env, "PATH": "/usr/bin:/bin"}, timeout=30, cwd=tmp_path)
    assert done.stdout == "line\n"
    assert done.stderr == ""


def test_a_launch_here_whose_launcher_is_gone_is_not_followed(logs, launch, tmp_path):
    folder = launch(log_dir=tmp_path / "logs", host=os.uname().nodename)
    (folder / "rank-0.log").write_text("line\n")
    done = logs("-f")
    assert (done.returncode, done.stdout) == (0, "line\n")


@pytest.mark.slow
def test_the_logs_of_a_real_launch_are_followed_by_its_run_folder(env, tmp_path):
    code = "import time\nfor n in range(4):\n    print('line', n, flush=True)\n    time.sleep(0.5)"
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--log-dir", "logs", sys.executable, "-c", code]
    with subprocess.Popen(line, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        process.wait_until((tmp_path / "logs" / "run.json").exists, 30, "the record")
        followed = subprocess.run(
            [*LOGS, "-f", "logs"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert child.wait(120) == 0
    expected = sorted(f"[{rank}]: line {n}" for rank in (0, 1) for n in range(4))
    assert sorted(followed.stdout.splitlines()) == expected
