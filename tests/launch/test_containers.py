"""Ranks in a container: ``launch apptainer exec --nv IMAGE python3 train.py``, with a stand-in for the runtime.

As the real one, it passes the host's environment on, with a PATH and an LD_LIBRARY_PATH of its own, and with
``--cleanenv`` nothing of it; the program is its child, and it ends with the program's code.
"""

import signal
import sys

import pytest

from lab import process as lab
from lab.shown import SHOW, shown

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
APPTAINER = """#!@PYTHON@ -IS
import os, signal, subprocess, sys
if sys.argv[1] != "exec":
    sys.exit(255)
words = sys.argv[2:]
options = [words.pop(0) for _ in range(sum(word.startswith("-") for word in words[:2]))]
if words.pop(0) != "torch.sif":
    sys.exit("FATAL: could not open image")
environ = {"HOME": os.environ["HOME"]} if "--cleanenv" in options else dict(os.environ)
environ |= {"PATH": "@INSIDE@:/usr/bin:/bin", "LD_LIBRARY_PATH": "/.singularity.d/libs"}
program = subprocess.Popen(words, env=environ)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: program.send_signal(number))
code = program.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
EXEC = ["apptainer", "exec", "--nv", "torch.sif"]


@pytest.fixture
def container(tmp_path):
    """A folder for PATH with the runtime, whose containers have a python3 without any package."""
    python = lab.program(tmp_path / "inside" / "python3", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    runtime = APPTAINER.replace("@PYTHON@", sys.executable).replace("@INSIDE@", str(python.parent))
    return lab.program(tmp_path / "runtime" / "apptainer", runtime).parent


@pytest.fixture
def env(clean_env, container):
    return {**clean_env, "PATH": f"{container}:{clean_env['PATH']}"}


def check_ranks(done, flavour):
    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    told = [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"], each["MINE"]) for each, *_ in ranks]
    assert told == [("0", "0", "2", "a b"), ("1", "1", "2", "a b")], flavour
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each, *_ in ranks}) == 1


def test_each_rank_in_its_container_is_the_rank_that_was_planned(launch, env):
    check_ranks(launch("-n", "2", *EXEC, "python3", *SHOW[1:], env={**env, "MINE": "a b"}), "local")


def test_the_same_behind_every_mpi(flavour, container, tmp_path):
    env = flavour.env(MINE="a b")
    env["PATH"] = f"{container}:{env['PATH']}"
    check_ranks(lab.run([*LAUNCH, "-n", "2", *EXEC, "python3", *SHOW[1:]], env, timeout=60, cwd=tmp_path), flavour.name)


@pytest.mark.slow
def test_a_cleaned_environment_holds_no_rank(launch, env):
    done = launch("-n", "2", "apptainer", "exec", "--cleanenv", "torch.sif", "sh", "-c", "echo ${RANK-none}", env=env)
    assert (done.returncode, done.stdout.split()) == (0, ["none"] * 2), done.stderr
    assert "note: --cleanenv keeps the ranks' variables out of the container" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_program_inside_and_nothing_is_left(start_launch, env, number, code):
    script = "trap 'echo asked; exit 0' TERM INT; echo ready; while :; do sleep 0.1; done"
    run = start_launch("-n", "2", *EXEC, "bash", "-c", script, env=env)
    assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    run.send_signal(number)
    rest, errors = run.communicate(timeout=60)
    assert (run.returncode, sorted(set(rest.split()))) == (code, ["asked"]), errors


@pytest.mark.slow
def test_a_rank_that_is_killed_inside_ends_the_others(launch, env):
    script = 'if [ "$RANK" = 1 ]; then kill -KILL $$; fi; trap "" TERM; setsid sleep 600 & wait; sleep 600'
    done = launch("-n", "2", *EXEC, "bash", "-c", script, env=env)
    assert done.returncode == 137, done.stderr


@pytest.mark.slow
def test_a_container_that_drops_the_environment_is_told(launch, env, subtests):
    for command, variables, says in [  # a command, variables, and what of these drops the environment
        ("apptainer exec --cleanenv torch.sif true", {}, "--cleanenv"),
        ("/opt/bin/singularity run -e torch.sif", {}, "-e"),
        ("apptainer exec --nv --bind /data --containall torch.sif true", {}, "--containall"),
        ("env A=1 apptainer exec -C torch.sif true", {}, "-C"),
        ("apptainer exec torch.sif true", {"APPTAINER_CLEANENV": "1"}, "APPTAINER_CLEANENV=1"),
        ("apptainer exec --nv torch.sif python3 -e train.py", {}, ""),
        ("python3 train.py --cleanenv", {}, ""),
    ]:
        with subtests.test(command, variables=variables):
            done = launch("-n", "2", "--dry-run", *command.split(), env={**env, **variables})
            notes = [line for line in done.stderr.splitlines() if "container" in line]
            assert [says in line for line in notes] == [True] * bool(says), done.stderr
