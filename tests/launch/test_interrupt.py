"""Ctrl-C while a launch begins: no traceback, nothing left behind, and an end by the signal itself."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from ezpz.launch import record
from lab import process as lab

PROGRAMS = {
    "python3 -m ezpz.launch": [sys.executable, "-m", "ezpz.launch"],
    "python3 -m ezpz launch": [sys.executable, "-m", "ezpz", "launch"],
    "ezpz launch": [sys.executable, "-c", "from ezpz.__main__ import run; run()", "launch"],
}


@pytest.fixture
def start(clean_env, tmp_path):
    """Start a program and return it when its first lines have cared for Ctrl-C: before those, Python itself prints."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Tell:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in {'ezpz.cli', 'ezpz.launch.entry'}:\n"  # what the programs import after those lines
        "            sys.meta_path.remove(self)\n"
        "            os.write(2, b'begins\\n')\n"
        "sys.meta_path.insert(0, Tell())\n"
    )
    env = {**clean_env, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()

    def run(program, *words):
        line = [*PROGRAMS[program], "--flavour", "local", *words]
        how = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
        child = subprocess.Popen(line, env=env, cwd=tmp_path, **how)
        assert child.stderr.readline() == b"begins\n"
        return child

    return run


def check(run, home, survivors):
    errors = run.communicate(timeout=60)[1].decode()
    assert run.returncode in {-signal.SIGINT, 130}, errors
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    lab.wait_until(lambda: not survivors(), 3, "the end of all processes")
    folders = list(home.glob(".local/state/ezpz/launches/*"))
    assert all((folder / "run.json").exists() for folder in folders)
    if run.returncode < 0:
        assert errors.count("\n") <= 2, errors  # at most our first two lines


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_at_any_moment_of_the_start_ends_it_without_a_traceback(start, home, survivors, program):
    seed = os.environ.get("EZPZ_SEED") or os.urandom(4).hex()
    print(f"EZPZ_SEED={seed}")
    dice = random.Random(seed)
    for pause in (*(0.03 * step for step in range(6)), *(dice.uniform(0, 0.6) for _ in range(24))):
        run = start(program, "-n", "2", "sleep", "600")
        time.sleep(pause)
        run.send_signal(signal.SIGINT)
        check(run, home, survivors)


MEETS_A_CALLBACK = """
import os, signal, sys, weakref

class Gone:
    def __del__(self):
        interrupt()

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # Python looks for signals at each turn
        pass

class Meet:
    def find_spec(self, name, *_):
        if name == "{module}":
            sys.meta_path.remove(self)
            gone = Gone() if "{kind}" == "__del__" else type("Other", (), {{}})()
            kept = weakref.ref(gone, interrupt) if "{kind}" != "__del__" else None
            del gone

sys.meta_path.insert(0, Meet())
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("module", ["ezpz.launch.planning", "ezpz.launch.run.start"])
@pytest.mark.parametrize("kind", ["__del__", "weakref"])
def test_ctrl_c_that_meets_a_callback_is_not_dropped(clean_env, home, survivors, tmp_path, module, kind):
    """Python drops what is raised there, as in the callbacks of its imports; then the launch began nevertheless."""
    (tmp_path / "sitecustomize.py").write_text(MEETS_A_CALLBACK.format(module=module, kind=kind))
    env = {**clean_env, "PYTHONPATH": str(tmp_path)}
    line = [*PROGRAMS["python3 -m ezpz.launch"], "--flavour", "local", "-n", "1", "touch", str(tmp_path / "begun")]
    run = subprocess.Popen(line, env=env, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    check(run, home, survivors)
    assert not (tmp_path / "begun").exists()


@pytest.mark.slow
def test_a_run_that_has_ended_is_recorded_whatever_comes(start, home, survivors):
    for step in range(6):
        run = start("python3 -m ezpz.launch", "-n", "1", "true")
        time.sleep(0.08 + 0.02 * step)
        run.send_signal(signal.SIGINT)
        errors = run.communicate(timeout=60)[1].decode()
        assert "Traceback" not in errors
        lab.wait_until(lambda: not survivors(), 3, "the end of all processes")
    for path in home.glob(".local/state/ezpz/launches/*/run.json"):
        assert json.loads(path.read_text())["ended"]


@pytest.mark.slow
def test_a_launcher_that_is_asked_who_it_is_goes_with_the_launch(clean_env, tmp_path):
    fake = lab.program(tmp_path / "bin" / "mpiexec", "#!/bin/sh\necho asked >&2\ntouch asked\nexec sleep 60\n")
    env = {**clean_env, "PATH": f"{fake.parent}:{clean_env['PATH']}"}
    line = [*PROGRAMS["python3 -m ezpz.launch"], "--flavour", "mpich", "-n", "2", "true"]
    run = subprocess.Popen(line, env=env, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    lab.wait_until((tmp_path / "asked").exists, 20, "the question")
    run.send_signal(signal.SIGINT)
    assert (run.communicate(timeout=60)[1], run.returncode) == (b"", -signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_waits_until_what_is_begun_is_noted(clean_env):
    code = """
import os, signal
from ezpz.interrupt import Deferring
noted = []
try:
    with Deferring():
        os.kill(os.getpid(), signal.SIGINT)
        noted.append("begun")
    noted.append("not reached")
except KeyboardInterrupt:
    print(noted)
"""
    assert lab.run([sys.executable, "-c", code], clean_env).stdout == "['begun']\n"


def test_the_folder_of_a_launch_that_never_began_goes_and_a_record_stays(tmp_path):
    folders = [tmp_path / f"2026-11-21-19125{number}-5f3a90c2" for number in (1, 2)]
    for folder in (*folders, tmp_path / "mine"):
        folder.mkdir()
    (folders[0] / "run.json").touch()
    for folder in (*folders, tmp_path / "mine"):
        record.forget_unused(str(folder))
    assert sorted(tmp_path.iterdir()) == [folders[0], tmp_path / "mine"]
