"""`ezpz kill`, `stacks` and `why` from a host that shares a home with that of the launch: by ssh, or the scheduler."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import MachineError
from ezpz.launch import ask_launch as asking
from ezpz.register import Launch
from lab import process
from lab.task_manager import JOB, TaskManager

SRC = str(Path(ezpz.__file__).parents[1])
pytestmark = pytest.mark.timeout(180)
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
EZPZ = [sys.executable, "-m", "ezpz"]


# Ways there, without hosts.


@pytest.fixture
def there(tmp_path, monkeypatch):
    """`there(script)` makes a stand-in for ssh, and returns a launch on another host; words are in the file `words`."""

    def make(script, **more):
        client = tmp_path / "a client"
        client.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\" >{shlex.quote(str(tmp_path / 'words'))}\n{script}\n")
        client.chmod(0o755)
        monkeypatch.setenv("EZPZ_SSH", shlex.quote(str(client)))
        fields = {"host": "n07", "socket": "@ezpz-launch-5f3a", "folder": str(tmp_path / "record")}
        return Launch("5f3a90c2", **{**fields, **more})

    return make


HERE = 'while [[ $1 == -* ]]; do if [[ $1 == -o ]]; then shift; fi; shift; done; shift; eval "$*"'
REFUSES = "echo 'Permission denied (publickey)' >&2; exit 255"


def test_where_no_way_leads_there_a_sentence_names_the_host_to_type_it_on(there, monkeypatch):
    for word, typed in (("stacks", "stacks"), ("end", "kill"), ("kill", "kill --now")):
        with pytest.raises(MachineError) as error:
            asking.ask(there(REFUSES), word, 0.5)
        assert str(error.value) == (
            "cannot ask launch 5f3a90c2 on n07 from here: ssh ended with 255, saying 'Permission denied "
            f"(publickey)'; expected a way there. On n07, type `ezpz {typed} 5f3a90c2`."
        )
    monkeypatch.setenv("PATH", "/nowhere")
    launch = there(REFUSES, job="12", scheduler="slurm")
    monkeypatch.delenv("EZPZ_SSH")
    with pytest.raises(MachineError, match=r"on n07 \(job 12\) from here: no ssh on PATH; no srun on PATH; expected"):
        asking.ask(launch, "stacks", 0.5)


def test_a_way_that_hangs_is_given_up_and_leaves_nothing_behind(there, monkeypatch, tmp_path):
    monkeypatch.setattr(asking, "_ON_THE_WAY", 0.2)
    with pytest.raises(MachineError, match=r"ssh not there within 1 s"):
        asking.ask(there(f"sleep 300 & echo $! >{shlex.quote(str(tmp_path / 'pid'))}; wait"), "stacks", 0.4)
    pid = (tmp_path / "pid").read_text().strip()
    process.wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists(), 5, "the end of what it has started")


HOSTILE = {
    "host": ["-oProxyCommand=touch x", "n07;touch x", "$(touch x)", "n 07", "", "n07\n"],
    "socket": ["@ezpz-launch-$(touch x)", "@other", "/tmp/agent.sock", "@ezpz-launch-a b", "", "@ezpz-launch-\0"],
}


def test_a_record_that_names_no_host_or_socket_starts_nothing(there, tmp_path, subtests):
    for name, values in HOSTILE.items():
        for value in values:
            with subtests.test(f"{name} {value!r}"):
                with pytest.raises(MachineError, match="its record does not tell on which host, and at which socket"):
                    asking.ask(there(HERE, **{name: value}), "stacks", 0.5)
                assert not (tmp_path / "words").exists()


def test_one_that_nobody_answers_for_there_has_ended_or_is_gone(there, tmp_path):
    launch = there(f"echo hello from a login file; {HERE}")
    with pytest.raises(MachineError, match=r"launch 5f3a90c2 on n07: nothing answers at its socket"):
        asking.ask(launch, "stacks", 0.5)
    assert "'" not in (tmp_path / "words").read_text().splitlines()[-1].replace("'@ezpz-launch-5f3a'", "")
    (tmp_path / "record").mkdir()
    (tmp_path / "record/run.json").write_text(json.dumps({"launch_id": "5f3a90c2", "state": "failed"}))
    assert asking.ask(launch, "stacks", 0.5) == {"ended": True}


def test_an_answer_that_is_none_is_no_way_there(there):
    with pytest.raises(MachineError, match=r"cannot ask .*ssh ended with 0; expected a way there"):
        asking.ask(there("echo '{'; echo '[1]'; echo done"), "stacks", 0.5)


# Real hosts: a launch on one, and the question on another that sees the same home.


@pytest.fixture
def running(make_hosts, clean_env, tmp_path):
    """`running(*options)` starts a launch on n01 and returns the process and a way to run verbs on login."""
    lab = make_hosts("login", "n01")
    started = []
    (tmp_path / "train.py").write_text(TRAIN)
    home = tmp_path / "shared home"
    home.mkdir()
    env = {**clean_env, "HOME": str(home), "PYTHONPATH": SRC, "EZPZ_SSH": str(lab.rsh)}

    def start(*options, **more):
        line = [sys.executable, "-m", "ezpz.launch", "-n", "2", *options, sys.executable, "train.py"]
        child = lab["n01"].popen(line, {**env, **more}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() in {"up\n", b"up\n"}
        return child, lambda *words, **more: lab["login"].run([*EZPZ, *words], {**env, **more}, timeout=60)

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
    assert "it runs, and nothing stands out" in login("why", launch[:6]).stdout
    refused = login("kill", launch[:6], EZPZ_SSH="/bin/false")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (125, 1)
    assert f"expected a way there. On n01, type `ezpz kill {launch}`." in refused.stderr
    assert child.poll() is None
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


@pytest.mark.lab
@pytest.mark.slow
def test_slurm_leads_into_its_job_where_ssh_does_not(slurm, clean_env, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    env = {**clean_env, "PYTHONPATH": SRC, "EZPZ_SSH": "/bin/false"}
    line = shlex.join([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, "train.py"])
    with slurm.submitted(line, env, tmp_path) as job:
        process.wait_until(lambda: "up" in _text(tmp_path / "out"), 60, "the launch in its job")
        around = {"SLURM_JOB_ID": "99999", "SLURM_NTASKS": "7", "SLURM_JOB_NODELIST": "n09"}  # of another job's shell
        stacks = slurm.run([*EZPZ, "stacks", job, "-v"], {**env, **around})
        assert stacks.returncode == 0, stacks.stderr
        assert "stand_still" in stacks.stdout
        ended = slurm.run([*EZPZ, "kill", job], env)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith(": ended with 143\n")
        assert "`ezpz kill` on head ends this launch" in _text(tmp_path / "out")


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.mark.lab
@pytest.mark.slow
def test_pbs_leads_to_the_hosts_of_its_job_where_ssh_does_not(make_hosts, tmp_path):
    hosts = make_hosts("n01", "n02")
    (tmp_path / "train.py").write_text(TRAIN)
    with TaskManager(hosts, ["n01", "n02"], tmp_path / "a job") as job:
        env = {**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin", "PYTHONPATH": SRC, "EZPZ_SSH": "/bin/false"}
        line = [sys.executable, "-m", "ezpz.launch", "--hosts", "n02", "-n", "1", sys.executable, "train.py"]
        child = hosts["n02"].popen(line, env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            process.wait_until(lambda: child.stdout.readline() == "up\n", 30, "the launch")
            stacks = hosts["n01"].run([*EZPZ, "stacks", JOB.partition(".")[0], "-v"], env)
            assert stacks.returncode == 0, stacks.stderr
            assert "stand_still" in stacks.stdout
            outside = {name: value for name, value in env.items() if name != "PBS_JOBCOOKIE"}
            refused = hosts["n01"].run([*EZPZ, "kill", JOB], outside)
            assert refused.returncode == 125
            assert f"belongs to job {JOB}; expected a way there. On n02, type `ezpz kill " in refused.stderr
            ended = hosts["n01"].run([*EZPZ, "kill", JOB], env)
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout.endswith(" on n02: ended with 143\n")
            assert child.wait(60) == 143
            left = [path.name for path in job.home.rglob("*") if path.name.startswith(".answer")]
            assert left == []
        finally:
            child.kill()
            child.communicate()
