"""`ezpz kill`, `stacks` from a host that only shares a folder with that of the launch; and what a request must be."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ezpz.cli.elsewhere import ask_elsewhere, is_job, launch_named
from ezpz.launch.run.requests import FOLDER, Requests

import ezpz
from ezpz.errors import MachineError, UsageError
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])
pytestmark = pytest.mark.timeout(120)
TRAIN = """
import signal, sys, time
import ezpz
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
ezpz.heartbeat(1)
print("up", flush=True)
def stand_still():
    while True:
        time.sleep(0.1)
stand_still()
"""


# What a running launch takes for a request.


@pytest.fixture
def asked(tmp_path):
    """`asked(text)` writes a request, as `ezpz stacks` does, and returns its path."""
    (tmp_path / FOLDER).mkdir(mode=0o700)

    def write(text, name="1", mode=0o600):
        path = tmp_path / FOLDER / f"{name}.ask"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def test_requests_are_taken_once_and_answered_for_their_user_alone(tmp_path, asked):
    asked("stacks 5f3a login1\n", "a")
    asked("end 5f3a login1\n", "b")
    requests = Requests(str(tmp_path), "5f3a")
    assert requests.take() == [("stacks", "login1"), ("end", "login1")]
    assert requests.take() == []
    assert requests
    requests.answer({"ranks": []})
    assert not requests
    answer = tmp_path / FOLDER / "a.answer"
    assert json.loads(answer.read_text()) == {"ranks": []}
    assert answer.stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / FOLDER / "b.answer").read_text()) == {"taken": "end"}


NO_REQUESTS = ["end 9999 login1\n", "run 5f3a login1\n", "end\n", "", "end 5f3a a b\n", "\x00\xff", "x" * 10_000]


def test_what_is_no_request_to_this_launch_does_nothing_and_is_taken_away(tmp_path, asked, subtests):
    for text in NO_REQUESTS:
        with subtests.test(str(text)):
            path = asked(text)
            assert Requests(str(tmp_path), "5f3a").take() == []
            assert not path.exists()


def test_a_file_or_a_folder_that_others_may_write_holds_no_request(tmp_path, asked):
    asked("end 5f3a login1\n", mode=0o620)
    assert Requests(str(tmp_path), "5f3a").take() == []
    asked("end 5f3a login1\n", "2")
    (tmp_path / FOLDER).chmod(0o770)
    assert Requests(str(tmp_path), "5f3a").take() == []


def test_a_link_and_a_pipe_are_no_requests_and_hold_nothing_up(tmp_path, asked):
    text = tmp_path / "text"
    text.write_text("end 5f3a login1\n")
    text.chmod(0o600)
    asked("")
    (tmp_path / FOLDER / "2.ask").symlink_to(text)
    os.mkfifo(tmp_path / FOLDER / "3.ask", 0o600)
    assert Requests(str(tmp_path), "5f3a").take() == []
    assert text.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_no_request(what, tmp_path, asked):
    path = asked("end 5f3a login1\n")
    os.chown(path if what == "file" else path.parent, 12345, -1)
    assert Requests(str(tmp_path), "5f3a").take() == []


def test_the_folder_goes_with_the_launch_and_one_that_cannot_be_made_is_no_trouble(tmp_path):
    requests = Requests(str(tmp_path / "gone"), "5f3a")
    assert requests.take() == []
    requests.close()
    requests = Requests(str(tmp_path), "5f3a")
    assert requests.take() == []
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700
    requests.close()
    assert not (tmp_path / FOLDER).exists()


# Which launch is meant, and what comes when nobody answers.

LAUNCHES = [
    {"launch_id": "5f3a90c2", "plan": {"job_id": "12.head"}},
    {"launch_id": "5f3b11aa", "plan": {"job_id": "13.head"}},
    {"launch_id": "77777777", "plan": {"job_id": "13.head"}},
    {"launch_id": "88888888", "plan": {"job_id": None}},
]


def test_a_launch_is_named_by_its_job_or_the_beginning_of_its_id():
    for word in ("12", "12.head", "5f3a"):
        assert launch_named(LAUNCHES, word)["launch_id"] == "5f3a90c2", word
    assert launch_named(LAUNCHES, "8888")["launch_id"] == "88888888"
    assert launch_named(LAUNCHES, "1") is launch_named(LAUNCHES, "9999") is None


def test_several_launches_of_a_job_are_told_apart_by_their_ids():
    with pytest.raises(UsageError, match=r"means 2 launches .*: 5f3b11aa, 77777777"):
        launch_named(LAUNCHES, "13")
    assert is_job(LAUNCHES[1], "13")


def test_a_launch_that_does_not_answer_is_an_error_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("ezpz.cli.elsewhere._HEARD", 0.3)  # 5 s otherwise
    (tmp_path / "run.json").write_text(json.dumps({"launch_id": "5f3a", "state": "running"}))
    with pytest.raises(MachineError, match=r"launch 5f3a on n07 .*has not answered within"):
        ask_elsewhere({"launch_id": "5f3a", "host": "n07", "folder": str(tmp_path)}, "stacks", 0.2)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_launch_that_has_ended_meanwhile_is_not_waited_for(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"launch_id": "5f3a", "state": "failed"}))
    fields = {"launch_id": "5f3a", "host": "n07", "folder": str(tmp_path)}
    assert ask_elsewhere(fields, "stacks", 30.0) == {"ended": True}


# Real hosts: a launch on one, and the question on another that sees the same home.


@pytest.fixture
def running(make_hosts, clean_env, tmp_path):
    """`running(*options)` starts a launch on n01 and returns the lab, the process and a way to run verbs on login."""
    lab = make_hosts("login", "n01")
    started = []
    (tmp_path / "train.py").write_text(TRAIN)
    home = tmp_path / "shared home"
    home.mkdir()
    env = {**clean_env, "HOME": str(home), "PYTHONPATH": SRC}

    def start(*options, **more):
        line = [sys.executable, "-m", "ezpz.launch", "-n", "2", *options, sys.executable, "train.py"]
        child = lab["n01"].popen(line, {**env, **more}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() in {"up\n", b"up\n"}
        return child, lambda *words: lab["login"].run([sys.executable, "-m", "ezpz", *words], env, timeout=60)

    yield start
    for child in started:
        child.kill()
        child.communicate()


def listed_id(text):
    return next(line.split()[0] for line in text.splitlines() if " n01 " in line)


@pytest.mark.lab
def test_a_launch_is_listed_asked_and_ended_from_another_host(running):
    child, login = running()
    time.sleep(1)
    listed = login("kill").stdout
    assert "on other hosts, by their records:" in listed
    assert " n01 " in listed
    stacks = login("stacks", "-v")
    assert stacks.returncode == 0, stacks.stderr
    assert "stand_still" in stacks.stdout
    assert "rank 1 on n01" in stacks.stdout
    launch = listed_id(listed)
    ended = login("kill", launch[:6])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"launch {launch} on n01: ended with 143\n"
    assert child.wait(120) == 143
    error = child.stderr.read()
    assert "`ezpz kill` on login ends this launch" in (error.decode() if isinstance(error, bytes) else error)
    assert "no launch of yours runs on login" in login("kill").stdout


@pytest.mark.lab
def test_with_a_log_dir_it_is_found_by_a_link_and_the_logs_outlive_the_record(running, tmp_path):
    child, login = running("--log-dir", str(tmp_path / "logs"))
    ended = login("kill", "--now", listed_id(login("kill").stdout))
    assert ended.returncode == 0, ended.stderr
    process.wait_until(lambda: child.poll() is not None, 20, "the end of the launch")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank-0.log", "rank-1.log", "run.json"]
