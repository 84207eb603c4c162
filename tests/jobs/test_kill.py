"""`ezpz kill`, against stand-ins for a launcher: real processes that carry a launch's id and are recorded."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.jobs import kill as verb
from ezpz.launch.host import process_tree as alive
from ezpz.register import running
from lab import hosts, process
from lab.require import require
from lab.ssh import Site

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
    pytest.mark.timeout(60),
]

KILL = [sys.executable, "-m", "ezpz", "kill"]
LAUNCHER = """
import os, signal, subprocess, sys, time
from ezpz import register
from ezpz.launch import record
launch, manner = sys.argv[1:]
environ = {**os.environ, "EZPZ_LAUNCH_ID": launch}
ranks = [
    subprocess.Popen(["sleep", "300"], env=environ, start_new_session=True, stdout=subprocess.DEVNULL) for _ in "ab"
]
def stop(*_):
    for rank in ranks:
        rank.terminate()
        rank.wait()
    record.write(folder, {**fields, "state": "stopped"})
    open(os.environ["STOPPED"], "w").write("by SIGTERM")
    os._exit(143)
signal.signal(signal.SIGTERM, stop if manner == "polite" else signal.SIG_IGN)
started = time.time() - 130
folder, _ = record.launch_folder("", launch, started)
fields = {
    "launch_id": launch, "state": "running", "started": started, "launcher": register.launcher(""),
    "host": os.uname().nodename, "command": ["python3", "my train.py"], "plan": {"hosts": ["n01"], "world_size": 2},
}
record.write(folder, fields)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def env(clean_env, tmp_path):
    (tmp_path / "tmp").mkdir()
    more = {"TMPDIR": str(tmp_path / "tmp"), "STOPPED": str(tmp_path / "stopped")}
    return {**clean_env, **more, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}


@pytest.fixture
def launcher(env):
    """`launcher(id)` starts a stand-in with two ranks and returns it."""
    started, ids = [], []

    def start(launch, manner="polite"):
        line = [sys.executable, "-c", LAUNCHER, launch, manner]
        around = {"EZPZ_LAUNCH_ID": launch.rpartition("/")[0]}
        started.append(subprocess.Popen(line, env={**env, **around}, stdout=subprocess.PIPE, text=True))
        ids.append(launch)
        assert started[-1].stdout.readline() == "up\n"
        process.wait_until(lambda: len(alive.tagged(launch)) >= 2, 10, "two ranks")
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()
    process.kill_all(pid for launch in ids for pid in alive.tagged(launch))


@pytest.fixture
def orphan(env):
    """`orphan(id)` starts a process of a launch whose launcher is gone."""
    started = []

    def start(launch, **more):
        started.append(subprocess.Popen(["sleep", "300"], env={**env, "EZPZ_LAUNCH_ID": launch, **more}))
        process.wait_until(lambda: alive.tagged(launch), 5, "exec")
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()


@pytest.fixture
def kill(run_cli, env):
    return lambda *args, **more: run_cli([*KILL, *args], {**env, **more})


@pytest.mark.slow
def test_without_an_id_the_running_launches_are_listed(kill, launcher):
    assert kill().stdout == f"no launch of yours runs on {os.uname().nodename}\n"
    launcher("5f3a90c2")
    lines = kill().stdout.splitlines()
    assert lines[0].split() == ["ID", "AGE", "RANKS", "HOSTS", "COMMAND"]
    assert lines[1] == "5f3a90c2  2 min  2      1      python3 'my train.py'"
    assert "ezpz kill ID" in lines[-1]


def test_a_launch_is_ended_by_its_launcher_and_by_the_beginning_of_its_id(kill, launcher, tmp_path):
    gone, stays = launcher("5f3a90c2"), launcher("77aa0000")
    done = kill("5f3a")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"launch 5f3a90c2: nothing is left on {os.uname().nodename}\n"
    assert gone.wait(120) == 143
    assert (tmp_path / "stopped").read_text() == "by SIGTERM"
    assert alive.tagged("5f3a90c2") == []
    assert len(alive.tagged("77aa0000")) == 2
    assert stays.poll() is None
    assert [line.split()[0] for line in kill().stdout.splitlines()[1:2]] == ["77aa0000"]


@pytest.mark.slow
def test_now_means_at_once_and_all_means_all(kill, launcher, tmp_path):
    both = [launcher("5f3a90c2", "deaf"), launcher("77aa0000")]
    done = kill("--all", "--now")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert [child.wait(120) for child in both] == [-signal.SIGKILL] * 2
    assert alive.tagged("5f3a90c2") + alive.tagged("77aa0000") == []
    assert not (tmp_path / "stopped").exists()  # one listens, and was not asked


def test_a_launcher_that_does_not_listen_is_killed_in_the_end(launcher, env, monkeypatch):
    monkeypatch.setenv("HOME", env["HOME"])
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", env["TMPDIR"])
    monkeypatch.setattr(verb, "_TIDIES", 0.0)
    deaf = launcher("5f3a90c2", "deaf")
    [launch] = running()[0]
    verb._stop(launch, 0.5)  # `ezpz kill` gives it 15 seconds
    assert deaf.wait(120) == -signal.SIGKILL
    assert running() == ([], [])


@pytest.mark.slow
def test_a_launch_inside_a_launch_ends_with_it_and_alone(kill, launcher):
    outer, inner = launcher("5f3a90c2"), launcher("5f3a90c2/81bd0000")
    assert kill("5f3a90c2/81bd0000").returncode == 0
    assert inner.wait(120) == 143
    assert outer.poll() is None
    again = launcher("5f3a90c2/99990000")
    assert kill("5f3a").returncode == 0
    assert outer.wait(120) == 143
    assert alive.tagged("5f3a90c2") == []
    again.wait(120)


@pytest.mark.slow
def test_what_a_dead_launcher_left_is_found_by_its_whole_id(kill, orphan):
    left, other = orphan("5f3a90c2"), orphan("77aa0000")
    assert kill("5f3a").returncode == 2  # nobody knows a launch that begins so
    assert left.poll() is None
    assert kill("5f3a90c2").returncode == 0
    assert left.wait(120) == -signal.SIGKILL
    assert other.poll() is None


@pytest.mark.slow
def test_what_a_dead_launcher_left_on_its_host_is_listed_and_is_among_all(kill, orphan, run_cli, env):
    with socket.create_server(("127.0.0.1", 0)) as lives, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = [each.getsockname()[1] for each in (lives, gone)]
        gone.close()
        stays, left = (orphan(f"5f3a90c{port}", EZPZ_CONTROL=f"00@{port}@127.0.0.1") for port in ports)
        line = f"of launch 5f3a90c{ports[1]}, whose launcher is gone, processes are left: {left.pid}; "
        for verb_ in ("kill", "status"):
            listed = run_cli([sys.executable, "-m", "ezpz", verb_], env).stdout
            assert (line in listed, str(stays.pid) in listed) == (True, False), listed
        assert kill("--all").returncode == 0
        assert (left.wait(10), stays.poll()) == (-signal.SIGKILL, None)


def test_a_name_that_means_nothing_or_too_much_ends_nothing(kill, launcher):
    both = [launcher("5f3a90c2"), launcher("5f3a77aa")]
    for words, code, said in [
        (("5f3a",), 2, "means 2 launches (from the command line): 5f3a77aa, 5f3a90c2"),
        (("5f3",), 2, "no run or launch '5f3'"),
        (("",), 2, "no run or launch ''"),
        (("5f3a90c2", "beef0000"), 2, "no run or launch 'beef0000' (from the command line)"),
        (("--job",), 2, "--job needs the ID"),
        (("--hosts", "n01", "--job", "5f3a90c2"), 2, "both name the hosts"),
        (("--job", "5f3a90c2"), 2, "no job around this shell (for --job)"),
        (("python",), 2, "no run or launch 'python'"),
        (("--force",), 2, "--force"),
    ]:
        done = kill(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), (words, done.stderr)
        assert said in done.stderr
    assert [child.poll() for child in both] == [None, None]


@pytest.mark.slow
def test_what_is_left_on_named_hosts_is_ended_also_from_inside_the_launch(kill, orphan):
    here = orphan("5f3a90c2")
    done = kill("5f3a90c2", "--hosts", os.uname().nodename, EZPZ_LAUNCH_ID="5f3a90c2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"launch 5f3a90c2: nothing is left on {os.uname().nodename}\n"
    assert here.wait(120) == -signal.SIGKILL


@pytest.mark.slow
def test_from_inside_a_rank_it_lives_on_with_its_helpers_although_they_bear_the_mark(run_cli, env, orphan):
    here, host = orphan("5f3a90c2"), os.uname().nodename
    rank = (
        "import os, sys; from ezpz.launch.host.process_tree import mark_rank; mark_rank(sys.argv[1]); os.execvp(*ARGS)"
    )
    words = [*KILL, "5f3a90c2", "--hosts", host]
    line = [sys.executable, "-c", rank.replace("*ARGS", f"{KILL[0]!r}, {words!r}"), "5f3a90c2"]
    done = run_cli(line, {**env, "EZPZ_LAUNCH_ID": "5f3a90c2"})
    assert (done.returncode, done.stdout) == (0, f"launch 5f3a90c2: nothing is left on {host}\n"), done.stderr
    assert here.wait(120) == -signal.SIGKILL


def test_what_a_dead_launcher_left_on_three_hosts_is_ended_from_one(make_hosts, clean_env, tmp_path):
    site = Site(make_hosts("head", "n01", "n02"), clean_env, tmp_path)
    mine, others = ({**site.env, "EZPZ_LAUNCH_ID": name} for name in ("5f3a90c2", "77aa0000"))
    left = [site.hosts[name].popen(["sleep", "300"], mine) for name in ("head", "n01", "n02", "n02")]
    stays = site.hosts["n02"].popen(["sleep", "300"], others)
    process.wait_until(
        lambda: all(b"sleep" in Path(f"/proc/{one.pid}/cmdline").read_bytes()[:5] for one in left), 10, "exec"
    )
    done = site.hosts["head"].run([*KILL, "5f3a90c2", "--hosts", "n01,n02"], site.env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "launch 5f3a90c2: nothing is left on head, n01, n02\n"
    assert [one.wait(120) for one in left] == [-signal.SIGKILL] * 4
    assert stays.poll() is None
    stays.kill()
    stays.wait()


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_is_no_success(kill, orphan, tmp_path):
    ssh = tmp_path / "no-ssh"
    ssh.write_text("#!/bin/sh\necho 'connect to host n09: No route to host' >&2\nexit 255\n")
    ssh.chmod(0o755)
    here = orphan("5f3a90c2")
    done = kill("5f3a90c2", "--hosts", "n08,n09", EZPZ_SSH=str(ssh))
    assert done.returncode in {2, 125}, done.stdout
    assert "not every host has answered" in done.stderr
    assert done.stdout == f"launch 5f3a90c2: nothing is left on {os.uname().nodename}\n"  # and no word of the others
    assert here.wait(120) == -signal.SIGKILL


def test_a_process_of_the_same_launch_on_another_host_stays(kill, env, orphan):
    require("hosts", hosts.problem())
    line = ["unshare", "--net", "--uts", "sleep", "300"]
    far = subprocess.Popen(line, env={**env, "EZPZ_LAUNCH_ID": "5f3a90c2"})
    near = orphan("5f3a90c2")
    process.wait_until(lambda: alive.tagged("5f3a90c2") == [near.pid], 5, "another network namespace")
    try:
        assert kill("5f3a90c2").returncode == 0
        assert near.wait(120) == -signal.SIGKILL
        assert far.poll() is None
    finally:
        far.kill()
        far.wait()
