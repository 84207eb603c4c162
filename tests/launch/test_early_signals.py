"""SIGUSR1 and SIGUSR2 end no rank that has no handler yet: it gets them when it has one."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from ezpz import proc
from ezpz.launch.host.early_signals import is_shell, starts_ignoring
from lab import process
from lab.ssh import LAUNCH, READY, Site

# Ranks write what happens to them into got.RANK. They handle SIGUSR2 once there is a file `handle`.
PYTHON = """
import os, signal, time
log = os.open("got." + os.environ["RANK"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.02)
os.write(log, b"up\\n")
wait("handle")
signal.signal(signal.SIGUSR2, lambda *_: os.write(log, b"SIGUSR2\\n"))
os.write(log, b"handles\\n")
wait("end")
"""
BASH = """
exec 3>>"got.$RANK"
echo up >&3
until [ -e handle ]; do sleep 0.02; done
trap 'echo SIGUSR2 >&3' USR2
echo handles >&3
until [ -e end ]; do sleep 0.02; done
"""
RANKS = {"python": [sys.executable, "-c", PYTHON], "bash": ["bash", "-c", BASH]}
ONE_NOTE = "ezpz: note: SIGUSR2 came before all ranks had a handler for it; each gets it as soon as it has one\n"


def got(folder):
    return [path.read_text().split() for path in sorted(folder.glob("got.*"))]


def meet_early(folder, send, ranks=2):
    """Let ranks get SIGUSR2 by ``send()`` before they have a handler, and again after; then let them end."""
    process.wait_until(lambda: got(folder) == [["up"]] * ranks, 30, "all ranks")
    time.sleep(0.5)  # shims tell the agent that their ranks run
    send()
    time.sleep(0.5)
    assert got(folder) == [["up"]] * ranks
    (folder / "handle").touch()
    early = ["up", "handles", "SIGUSR2"]
    process.wait_until(lambda: got(folder) == [early] * ranks, 60, "the early signal")
    time.sleep(2.5)  # a second of the same would have come by now, and the next is another one
    send()
    process.wait_until(lambda: got(folder) == [[*early, "SIGUSR2"]] * ranks, 60, "the late signal")
    time.sleep(0.5)  # and none more
    (folder / "end").touch()


def check(run, folder, ranks=2):
    _, errors = run.communicate(timeout=60)
    assert (run.returncode, errors.count(ONE_NOTE)) == (0, 1), errors
    assert got(folder) == [["up", "handles", "SIGUSR2", "SIGUSR2"]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANKS)
def test_a_rank_gets_an_early_signal_when_it_has_a_handler(start_launch, tmp_path, kind):
    run = start_launch("-n", "2", *RANKS[kind])
    meet_early(tmp_path, lambda: run.send_signal(signal.SIGUSR2))
    check(run, tmp_path)


@pytest.mark.slow
def test_the_same_behind_mpiexec(start_launch, flavour, tmp_path):
    run = start_launch("-n", "2", *RANKS["python"], env=flavour.env())
    meet_early(tmp_path, lambda: run.send_signal(signal.SIGUSR2))
    check(run, tmp_path)


def test_the_same_behind_ssh(hosts, clean_env, tmp_path):
    site = Site(hosts, clean_env, tmp_path)
    run = site.start("bash", "-c", f"{READY} exec {shlex.join(RANKS['python'])}")
    meet_early(tmp_path, lambda: run.send_signal(signal.SIGUSR2), ranks=3)
    check(run, tmp_path, ranks=3)


@pytest.mark.slow
def test_a_rank_without_a_handler_goes_on_and_one_note_tells(start_launch, tmp_path):
    wait = 'import os, time\nwhile not os.path.exists("end"): time.sleep(0.02)\nprint("well")'
    run = start_launch("-n", "3", sys.executable, "-c", f"print('up', flush=True)\n{wait}")
    assert [run.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    for _ in range(2):
        run.send_signal(signal.SIGUSR2)
        time.sleep(0.3)
    (tmp_path / "end").touch()
    words, errors = run.communicate(timeout=60)
    assert (run.returncode, words, errors.count("SIGUSR2")) == (0, "well\n" * 3, 1), errors
    assert ONE_NOTE in errors


def test_a_signal_that_comes_before_launch_has_ranks_reaches_them(start_launch, clean_env, tmp_path):
    nodes = tmp_path / "nodes"
    os.mkfifo(nodes)
    job = {"PBS_JOBID": "1.head", "PBS_NODEFILE": str(nodes)}
    script = "trap 'touch got' USR2; until [ -e got ]; do sleep 0.02; done"
    run = start_launch("-n", "1", "bash", "-c", script, env={**clean_env, **job})
    with nodes.open("w") as file:  # launch reads it by now
        run.send_signal(signal.SIGUSR2)
        file.write(f"{socket.gethostname()}\n")
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors


# As a fork, a program's start (vfork) and the start of a thread do for a moment; for a large process it may be long.
BLOCKS_ALL = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("up", flush=True)
time.sleep({seconds})
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
time.sleep(1.5)
signal.signal(signal.SIGUSR2, lambda *_: print("SIGUSR2", flush=True))
time.sleep(1.5)
"""


@pytest.mark.slow
def test_a_rank_that_blocks_all_signals_for_a_moment_does_not_wait_for_one(start_launch):
    run = start_launch("-n", "1", sys.executable, "-c", BLOCKS_ALL.format(seconds=1.2))
    assert run.stdout.readline() == "up\n"
    run.send_signal(signal.SIGUSR2)
    words, errors = run.communicate(timeout=60)
    assert (run.returncode, words) == (0, "SIGUSR2\n"), errors


@pytest.mark.slow
def test_one_that_goes_on_blocking_all_waits_for_them_elsewhere(start_launch):
    waits = "print(signal.Signals(signal.sigwait([signal.SIGUSR2])).name, flush=True); os._exit(0)"
    start = f"import threading\ndef wait():\n    {waits}\nthreading.Thread(target=wait).start()\n"
    program = BLOCKS_ALL.format(seconds=600).replace("print", f"{start}print", 1)
    run = start_launch("-n", "1", sys.executable, "-c", program)
    assert run.stdout.readline() == "up\n"
    run.send_signal(signal.SIGUSR2)
    words, errors = run.communicate(timeout=60)
    assert (run.returncode, words) == (0, "SIGUSR2\n"), errors


# A training whose imports take until there is a file `handle`; `Saves` stands for checkpoints.
TRAIN = """
import os, time
print("up", flush=True)
while not os.path.exists("handle"):
    time.sleep(0.02)
import torch
import ezpz
from ezpz.train import Loop

class Saves:
    def include(self, name, stateful, *, optional=False):
        pass
    def complete(self, **objects):
        pass
    def claim(self):
        pass
    def save(self, step, *, wait=False):
        if ezpz.get_rank() == 0:
            print("saved", step, flush=True)
    def wait(self):
        pass

def batches(position):
    time.sleep(0.02)
    return torch.ones(2, 3)

ezpz.setup_torch(seed=1)
model = ezpz.wrap_model(torch.nn.Linear(3, 1), "none", dtype="fp32")
loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: model(batch).mean(), batches,
            steps=200, batch_size=2, checkpoints=Saves())
with ezpz.History("early", "run") as history:
    loop.run(history)
    history.finalize(plots=False)
print("trained", flush=True)
"""


def check_trained(words, folder):
    """All steps are done, and the signal has saved once, near the first step."""
    assert words.count("trained") == 2, words
    saved = [int(line.split()[1]) for line in words.splitlines() if line.startswith("saved")]
    assert len(saved) == 1, words
    assert saved[0] < 150
    assert json.loads((folder / "run" / "run.json").read_text())["state"] == "finished"
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) >= 200


@pytest.mark.slow
def test_a_training_that_is_asked_to_save_before_its_loop_saves_in_its_loop(start_launch, clean_env, tmp_path):
    env = {**clean_env, "OMP_NUM_THREADS": "1"}
    run = start_launch("-n", "2", sys.executable, "-c", TRAIN, env=env)
    assert [run.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    run.send_signal(signal.SIGUSR2)
    time.sleep(0.5)
    (tmp_path / "handle").touch()
    words, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    check_trained(words, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of other processes' signals")
def test_what_a_process_does_with_a_signal(tmp_path):
    code = (
        "import os, signal, sys\n"
        "signal.signal(10, signal.SIG_IGN); signal.signal(12, lambda *_: None)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [14]); print(flush=True); sys.stdin.readline()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); print(flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        run.stdout.readline()
        told = [proc.disposition(run.pid, number) for number in (10, 12, 14, 15)]
        assert told == ["ignores", "takes", "takes", "default"]
        run.stdin.write(b"\n")
        run.stdin.flush()
        run.stdout.readline()
        assert [proc.disposition(run.pid, number) for number in (10, 12, 15)] == ["blocks all", "takes", "blocks all"]
        run.stdin.close()
    assert proc.disposition(run.pid, 12) == ""


@pytest.fixture
def programs(tmp_path):
    """An environment with a PATH of one folder, and `make(name, first_line)`, which adds a program to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "python3", "dash"):
        (folder / name).write_bytes(b"\x7fELF\x02")
        (folder / name).chmod(0o755)
    (folder / "sh").symlink_to("dash")
    (folder / "rc").symlink_to("dash")

    def make(name, *lines):
        (folder / name).write_text("\n".join(lines))
        (folder / name).chmod(0o755)

    return {"PATH": f"/no/such/folder:{folder}"}, make, folder


SHELLS = [["bash", "-c", ""], ["sh"], ["rc"], ["./bin/dash"], ["env", "-i", "A=1", "bash"], [b"bash"]]
OTHERS = [["python3", "bash"], ["no-such-program"], ["/"], ["env"], ["bin/python3"], ["env", "python3", "bash"]]
SCRIPTS = [  # first lines, and whether what they name is a shell
    (["#!/bin/sh"], True),
    (["#! /usr/bin/env bash", "true"], True),
    (["#!/usr/bin/env -S zsh -f"], True),
    (["#!/usr/bin/python3"], False),
    (["#!/usr/bin/env python3"], False),
    (["#!/bin/sh", """'''exec' "/a b/python3" "$0" "$@\""""], False),  # pip's, for a Python with a long path
    (["echo no first line"], False),
    (["#!"], False),
]


def test_a_shell_is_known_by_its_name_or_by_the_first_line_of_a_script(programs, monkeypatch, subtests):
    environ, make, folder = programs
    as_bytes = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    monkeypatch.chdir(folder.parent)
    for line in SHELLS + OTHERS:
        with subtests.test(line=line):
            assert is_shell(line, environ) is (line in SHELLS)
    for lines, expected in SCRIPTS:
        with subtests.test(lines=lines):
            make("train", *lines)
            assert is_shell(["train", "bash"], environ) is is_shell([b"train"], as_bytes) is expected


def test_a_rank_ignores_what_its_environment_names_unless_it_is_a_shell(programs):
    environ = {**programs[0], "EZPZ_IGNORED_AT_START": "SIGUSR1 SIGUSR2"}
    as_bytes = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    both = (signal.SIGUSR1, signal.SIGUSR2)
    assert (starts_ignoring(["python3"], environ), starts_ignoring([b"python3"], as_bytes)) == (both, both)
    assert (starts_ignoring(["bash"], environ), starts_ignoring([b"bash"], as_bytes)) == ((), ())
    assert (environ, list(as_bytes)) == (programs[0], [b"PATH"])


# In a job of Slurm: one that signals ranks itself, and one that signals shims alone.


@pytest.fixture
def job(each_slurm, clean_env, tmp_path):
    """`job(hosts, *line)` submits a job of two ranks; -> its number. It is gone at the end."""
    with contextlib.ExitStack() as stack:

        def submit(hosts, *line):
            script = f"exec {shlex.join(map(str, line))}"
            return stack.enter_context(each_slurm.submitted(script, clean_env, tmp_path, hosts))

        yield submit


def state(slurm, job):
    words = slurm.run(["scontrol", "show", "job", job]).stdout.split()
    return [word for word in words if word.startswith(("JobState=", "ExitCode="))]


# SIGUSR2 goes to the processes of the step, or to all of the batch step: launch and its ranks.
@pytest.mark.parametrize(
    ("flavour", "hosts", "usr2"),
    [("srun", 2, ["--signal=USR2"]), ("local", 1, ["--batch", "--signal=USR2"])],
    ids=["srun", "local"],
)
def test_the_same_in_a_job_of_slurm(each_slurm, job, tmp_path, flavour, hosts, usr2):
    number = job(hosts, *LAUNCH, "--flavour", flavour, "-n", "2", *RANKS["python"])
    meet_early(tmp_path, lambda: each_slurm.run(["scancel", *usr2, number]))
    process.wait_until(lambda: "JobState=COMPLETED" in state(each_slurm, number), 20, "the end of the job")
    assert "ExitCode=0:0" in state(each_slurm, number)
    assert got(tmp_path) == [["up", "handles", "SIGUSR2", "SIGUSR2"]] * 2
    assert (tmp_path / "out").read_text().count(ONE_NOTE) == 1


@pytest.mark.parametrize("each_slurm", ["slurm"], indirect=True)  # as above on both; torch is dear
def test_a_training_in_a_job_of_slurm_that_is_asked_before_its_loop_saves_in_its_loop(each_slurm, job, tmp_path):
    number = job(2, *LAUNCH, "--flavour", "srun", "-n", "2", "env", "OMP_NUM_THREADS=1", sys.executable, "-c", TRAIN)
    out = tmp_path / "out"
    process.wait_until(lambda: out.exists() and "up\nup\n" in out.read_text(), 30, "ranks")
    time.sleep(0.5)
    for name in ("USR1", "USR2"):
        each_slurm.run(["scancel", f"--signal={name}", number])
    time.sleep(0.5)
    (tmp_path / "handle").touch()
    process.wait_until(lambda: "JobState=COMPLETED" in state(each_slurm, number), 60, "the end of the job")
    check_trained((tmp_path / "out").read_text(), tmp_path)


def test_a_shell_in_a_job_of_slurm_can_trap_it(each_slurm, job, tmp_path):
    (tmp_path / "handle").touch()
    number = job(2, *LAUNCH, "--flavour", "srun", "-n", "2", *RANKS["bash"])
    up = ["up", "handles"]
    process.wait_until(lambda: got(tmp_path) == [up] * 2, 30, "two ranks")
    time.sleep(0.5)
    each_slurm.run(["scancel", "--signal=USR2", number])
    process.wait_until(lambda: got(tmp_path) == [[*up, "SIGUSR2"]] * 2, 5, "the signal")
    (tmp_path / "end").touch()
    process.wait_until(lambda: "ExitCode=0:0" in state(each_slurm, number), 20, "the end of the job")
