"""Which launches a user has, which of them run here or elsewhere, and which one a word means."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz import register
from ezpz.errors import MachineError, UsageError
from ezpz.launch import record
from ezpz.launch.ask_launch import ask
from ezpz.register import Launch, named

SRC = str(Path(ezpz.__file__).parents[1])
HOST = os.uname().nodename
SECOND = 1795289400.0


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home and a temporary folder of this test alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


@pytest.fixture
def keep(home):
    """`keep(id, started=…, **fields)` records a launch as `launch` does and returns the folder."""

    def write(launch, started=SECOND, log_dir="", **more):
        folder, _ = record.launch_folder(log_dir, launch, started)
        fields = {"launch_id": launch, "state": "running", "host": HOST, "started": started}
        assert record.write(folder, {**fields, "launcher": register.launcher(""), **more}) == ""
        record.link(folder, launch, started)
        return folder

    return write


def here():
    return [launch.launch_id for launch in register.running()[0]]


def test_of_two_launches_in_one_second_the_last_is_the_one_that_began_last(keep, run_cli, home, clean_env):
    keep("ffff0000", SECOND + 0.1, state="failed", command=["first"])
    keep("00000000", SECOND + 0.9, state="failed", command=["second"])
    assert [launch.launch_id for launch in register.recorded()] == ["00000000", "ffff0000"]
    env = {**clean_env, "HOME": str(home), "PYTHONPATH": SRC}
    for verb in ("why", "logs"):
        done = run_cli([sys.executable, "-m", "ezpz", verb], env)
        assert "ffff0000" not in done.stdout + done.stderr, verb
        assert "00000000" in done.stdout + done.stderr, verb


def test_records_of_other_time_zones_and_of_older_releases_stand_where_they_began(keep, home):
    keep("aaaa0000", SECOND)
    folder = home / ".local/state/ezpz/launches"
    for name, started in (("2020-01-01-000000-bbbb0000", SECOND + 5), ("2099-01-01-000000-cccc0000", SECOND - 5)):
        (folder / name).mkdir()
        fields = {"launch_id": name[-8:], "state": "failed", "command": ["x" * 2000], "started": started}
        (folder / name / "run.json").write_text(json.dumps(fields, indent=1))
    assert [launch.launch_id for launch in register.recorded()] == ["bbbb0000", "aaaa0000", "cccc0000"]


def test_a_launch_of_a_clock_that_was_ahead_is_not_the_newest_for_ever(keep):
    now = time.time()
    for launch, started in (("aaaa0000", now - 60), ("bbbb0000", now + 9e8), ("cccc0000", now + 60)):
        keep(launch, started)
    assert [launch.launch_id for launch in register.recorded()] == ["cccc0000", "aaaa0000", "bbbb0000"]


def test_a_launch_runs_here_as_long_as_its_process_lives_and_is_the_one_that_wrote_it(keep):
    mine = register.launcher("")
    keep("aaaa0000")
    keep("bbbb0000", launcher={**mine, "born": "1"})  # the pid came again
    keep("cccc0000", launcher={**mine, "place": "another table of processes"})
    keep("dddd0000", state="finished")
    keep("eeee0000", launcher={})  # of an older release
    keep("ffff0000", host="n07", launcher={**mine, "place": "n07"}, started=time.time())
    keep("99990000", host="n07", launcher={**mine, "place": "n07"}, started=time.time() - 40 * 86400)
    assert here() == ["aaaa0000"]
    assert [launch.launch_id for launch in register.running()[1]] == ["ffff0000"]


@pytest.mark.parametrize("way", ["log_dir", "no home", "home that cannot be written", "other TMPDIR"])
def test_a_launch_is_found_wherever_its_record_is(keep, monkeypatch, home, way):
    log_dir = str(home / "logs") if way == "log_dir" else ""
    if way == "no home":
        monkeypatch.delenv("HOME")
        log_dir = str(home / "logs")  # a link leads to it from the temporary folder
    elif way == "home that cannot be written":
        (home / ".local").write_text("")
    folder = keep("aaaa0000", time.time(), log_dir)
    if way == "no home":
        monkeypatch.setenv("HOME", str(home))  # the shell that asks has one
    elif way == "other TMPDIR":
        (home / "tmp2").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(home / "tmp2"))
    assert here() == ["aaaa0000"]
    assert register.running()[0][0].folder == os.path.realpath(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_a_launch_without_a_record_is_found_by_its_socket(home):
    with socket.socket(socket.AF_UNIX) as listener:
        where = register.address("outer/aaaa0000")
        listener.bind(f"\0{where[1:]}")
        listener.listen()
        [launch] = register.running()[0]
        assert (launch.launch_id, launch.pid, launch.socket) == ("outer/aaaa0000", os.getpid(), where)
        assert launch.is_here
        assert time.time() - launch.started < 86400
        own = Path("/proc/self/cmdline").read_bytes()  # a worker of xdist is not called pytest
        assert launch.command == tuple(map(os.fsdecode, own.split(b"\0")[:-1]))
        assert register.lives(launch)
    assert here() == []


def test_a_temporary_folder_of_another_or_that_others_may_write_holds_no_records(keep, monkeypatch, home):
    monkeypatch.delenv("HOME")
    keep("aaaa0000")
    assert here() == ["aaaa0000"]
    (home / "tmp" / f"ezpz-{os.getuid()}").chmod(0o777)
    assert here() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("way", ["another's", "open to its group"])
def test_a_record_that_others_may_write_names_no_process_and_no_socket(keep, way):
    path = Path(keep("aaaa0000", launcher=register.launcher("@ezpz-launch-x")), "run.json")
    if way == "another's":
        os.chown(path, 12345, -1)
    else:
        path.chmod(0o660)
    assert here() == []
    launch = register.read(str(path))
    assert (launch.launch_id, launch.pid, launch.socket) == ("aaaa0000", 0, "")
    with pytest.raises(MachineError, match="its record does not tell on which host, and at which socket"):
        ask(launch, "end")


def test_a_launcher_that_was_killed_runs_no_more(home, clean_env):
    code = (
        "import os, time; from ezpz import register; from ezpz.launch import record\n"
        "folder, _ = record.launch_folder('', 'a' * 8, time.time())\n"
        "fields = {'launch_id': 'a' * 8, 'state': 'running', 'launcher': register.launcher('')}\n"
        "record.write(folder, fields); os.kill(os.getpid(), 9)"
    )
    env = {**clean_env, "PYTHONPATH": SRC, "HOME": str(home)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=200).returncode == -9
    assert [launch.launch_id for launch in register.recorded(running=True)] == ["a" * 8]
    assert here() == []


LAUNCHES = [
    Launch("5f3a90c2", job="12.head", started=1.0),
    Launch("5f3b11aa", job="13.head", started=3.0),
    Launch("77777777", job="13.head", started=2.0),
    Launch("88888888"),
    Launch("88888888/12340000"),
]


def test_a_launch_is_named_by_its_job_or_the_beginning_of_its_id():
    rows = {
        "12": "5f3a90c2",
        "12.head": "5f3a90c2",
        "5f3a": "5f3a90c2",
        "8888": "88888888",
        "88888888/1234": "88888888/12340000",
        "88888888": "88888888",
    }
    assert {word: named(LAUNCHES, word).launch_id for word in rows} == rows
    assert [named(LAUNCHES, word) for word in ("1", "9999", "5f3", "")] == [None] * 4


def test_several_launches_of_a_job_or_beginning_are_told_apart_by_their_ids():
    with pytest.raises(UsageError, match=r"means 2 launches .*: 5f3b11aa, 77777777"):
        named(LAUNCHES, "13")
    assert named(LAUNCHES, "13", last=True).launch_id == "5f3b11aa"
    with pytest.raises(UsageError, match=r"means 2 launches .*: 5f3a90c2, 5f3abbbb"):
        named([*LAUNCHES, Launch("5f3abbbb")], "5f3a")
