"""A host is looked at from a process with threads as well: none is copied, and what hangs holds nobody."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from ezpz.watch.doctor import first_host
from ezpz.watch.doctor.diagnosis import diagnose
from ezpz.watch.doctor.examine import examine

PROGRAM = """
import json, os, sys, threading
from ezpz.watch.doctor.examine import examine
forks, more = [], threading.Event()
os.register_at_fork(before=lambda: forks.append(1))
def looked():
    forks.clear()
    facts = examine(json.loads(sys.argv[1]), os.environ)
    return {"forks": len(forks), "facts": facts}
alone = looked()
threading.Thread(target=more.wait, daemon=True).start()
beside = looked()
json.dump([alone, beside], sys.stdout)
"""


@pytest.fixture
def request_of(tmp_path):
    """`request_of(script)`: what is asked of a host."""

    def asked(script):
        places = {"TMPDIR": str(tmp_path), "the run's folder": str(tmp_path / "a/b")}
        return {"folder": str(tmp_path), "script": str(script), "places": places}

    return asked


def test_no_process_with_threads_is_copied_and_the_facts_are_the_same(tmp_path, request_of, clean_env):
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    words = [sys.executable, "-W", "error::DeprecationWarning", "-c", PROGRAM, json.dumps(request_of(script))]
    done = subprocess.run(words, env=clean_env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    alone, beside = json.loads(done.stdout)
    assert beside["forks"] == 0  # what a thread holds at that moment, a lock or a half-written line, would stay held
    for found in (alone["facts"], beside["facts"]):
        assert found["script"]["size"] == 5
        assert found["folder"]["is_there"]
        assert found["places"]["TMPDIR"]["free"] > 0
        assert found["places"]["the run's folder"]["can_write"]
    assert beside["facts"]["python"] == alone["facts"]["python"]
    assert beside["facts"]["limits"] == alone["facts"]["limits"]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [0, 1])
def test_this_host_is_looked_at_and_what_hangs_holds_nobody(threads, tmp_path, request_of):
    script = tmp_path / "train.py"
    os.mkfifo(script)  # its reader waits, as in a mount whose server has gone, until somebody writes
    ended = threading.Event()
    more = [threading.Thread(target=ended.wait) for _ in range(threads)]
    for each in more:
        each.start()
    try:
        facts = examine(request_of(script), {"PATH": "", "TORCH_DEVICE": "cpu"})
    finally:
        ended.set()
    assert "script" in facts["hanging"]
    assert facts["places"]["TMPDIR"]["free"] == pytest.approx(facts["places"]["the run's folder"]["free"], rel=0.5)
    assert facts["master"] in ({}, None)
    problems = [finding.check for finding in diagnose([facts]) if finding.is_problem and finding.check != "torch"]
    assert problems == ["hangs"]


def test_a_site_that_starts_a_thread_in_every_python_is_looked_at_once(tmp_path, request_of, clean_env):
    started = tmp_path / "started"
    begin = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "sitecustomize.py").write_text(f"{begin}\nopen({str(started)!r}, 'a').write('x')\n")
    line = f"import json, os; from ezpz.watch.doctor.examine import examine; examine({request_of('')!r}, os.environ)"
    env = {**clean_env, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE": "cpu"}
    subprocess.run([sys.executable, "-c", line], env=env, cwd=tmp_path, check=True, timeout=100)
    assert started.stat().st_size <= 6  # this process, that which looks, and what it asks about Python and torch


def test_a_host_that_comes_before_the_first_one_listens_meets_it_all_the_same():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = {}
    early = threading.Thread(target=lambda: found.update(first_host.join("127.0.0.1", port, 1)))
    early.start()
    time.sleep(0.2)  # its first calls are refused
    met = first_host.receive(port, 1)
    early.join()
    assert (found, met["problem"], set(met["clocks"])) == ({"problem": ""}, "", {"1"})
