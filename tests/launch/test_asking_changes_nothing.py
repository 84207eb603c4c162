"""`ezpz stacks` does not change the program that it looks at, and says where it may have."""

import json
import sys

import pytest

from lab import process as lab

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and real-time signals"),
]
# A sleep of C returns before its time when a signal comes, and tells how much of that was left.
SLEEPS = """
import ctypes, os, pathlib, sys
import ezpz
{begin}
pathlib.Path("up." + os.environ["RANK"]).touch()
left = ctypes.CDLL(None).sleep(12)
print("left", left, flush=True)
"""
WITH_TORCH = SLEEPS.format(begin="ezpz.setup_torch()")
WITH_BEATS = SLEEPS.format(begin="import time; ezpz.heartbeat(); time.sleep(0.3)") + "time.sleep(8)\n"
PLAIN = SLEEPS.format(begin="").replace("import ezpz\n", "")

BESIDE = """
import multiprocessing, os, pathlib, threading, time
import ezpz
def crunch():
    while not os.path.exists("enough"):
        sum(range(1000))
ezpz.setup_torch()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
child.start()
threading.Thread(target=crunch, name="cruncher").start()
threading.Thread(target=time.sleep, args=(8,), name="waiter").start()
pathlib.Path("up." + os.environ["RANK"]).touch()
time.sleep(8)
pathlib.Path("enough").touch()
print("left", 0, flush=True)
"""


@pytest.fixture
def asked(start_launch, run_cli, tmp_path, home, clean_env):
    """Ask a launch of one rank while it sleeps; return the text of `ezpz stacks -v`, its JSON, and what the rank had
    left of its sleep.
    """

    def run(program):
        launched = start_launch("-n", "1", sys.executable, "-c", program)
        lab.wait_until((tmp_path / "up.0").exists, 60, "the rank")
        stacks = [sys.executable, "-m", "ezpz", "stacks"]
        text, told = (run_cli([*stacks, *words], clean_env) for words in (["-v"], ["--json"]))
        assert (text.returncode, told.returncode) == (0, 0), text.stderr
        out, err = launched.communicate(timeout=60)
        assert launched.returncode == 0, err
        return text.stdout, json.loads(told.stdout), int(out.rpartition("left ")[2])

    return run


@pytest.mark.slow
def test_a_rank_that_answers_by_itself_gets_no_signal(asked):
    text, told, left = asked(WITH_TORCH)
    assert left == 0
    assert [(rank["where"], rank["by"]) for rank in told["ranks"]] == [("<module> (<string>:6)", "its own thread")]
    assert "signal" not in text
    assert ", by its own thread\n" in text


@pytest.mark.slow
def test_what_a_signal_may_have_done_is_said(asked):
    text, told, left = asked(WITH_BEATS)
    by = {rank["by"] for rank in told["ranks"]}
    if by == {"py-spy"}:
        pytest.skip("py-spy is here, and no signal is needed")
    assert by == {"a signal"}
    assert left > 0
    assert "rank 0 told that by a signal, which may have cut a system call short" in text


@pytest.mark.slow
def test_a_rank_that_nothing_sees_into_gets_no_signal_and_it_says_what_would(asked):
    text, told, left = asked(PLAIN)
    assert left == 0
    if told["without_py_spy"]:
        assert [rank["by"] for rank in told["ranks"]] == ["the kernel"]
        assert "py-spy, which may see more of rank 0, is not on " in text
        assert text.count("`pip install py-spy`") == 1


@pytest.mark.slow
def test_what_goes_on_beside_the_main_thread_is_shown(asked):
    text, told, _ = asked(BESIDE)
    (rank,) = told["ranks"]
    busy, child = rank["beside"]
    assert busy.startswith("thread cruncher is busy in ")
    assert child.startswith("process ")
    lines = text.splitlines()
    assert lines[1].startswith("beside the main thread of rank 0: thread cruncher is busy in ")
    assert sum(line.startswith("  beside it: ") for line in lines) == 2
