"""Signals that end a run leave a complete folder, also while the main thread waits in C."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from ezpz import proc
from ezpz.track import dataset
from ezpz.track.lazy_dataset import open_dataset
from ezpz.track.run_reader import open_run
from lab.process import wait_until
from lab.run_folders import environ

START = """
import ctypes, os, signal, sys, time
from ezpz.track import History
{before}
history = History("r", "out")
for step in range(10):
    history.update({{"loss": 1.0 / (step + 1)}})
print("on", flush=True)
{then}
"""


@pytest.fixture
def stopped(tmp_path):
    def run(number=signal.SIGTERM, before="", then="sys.stdin.read()", said=b"", again=()):
        """`said` is waited for before the signal comes `again`, after so many seconds each."""
        code = START.format(before=before, then=then)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ(tmp_path), **pipes) as process:
            try:
                assert process.stdout.readline() == b"on\n"
                process.send_signal(number)
                read = b""
                while said not in read:
                    read += process.stdout.readline()
                for wait in again:
                    time.sleep(wait)
                    process.send_signal(number)
                out, _ = process.communicate(timeout=120)  # which ends its input
            finally:
                process.kill()
        return process.returncode, (read + out).decode()

    return run


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_complete_export_and_ends_as_ever(stopped, tmp_path, number):
    code, out = stopped(number)
    assert code == -number, out
    run = open_run(tmp_path / "out")
    assert run.state == "stopped"
    assert run.cause.startswith(signal.Signals(number).name)
    assert len(open_dataset(tmp_path / "out" / "r.h5")["loss"]) == 10


SLOW_EXPORT = """
from ezpz.track import dataset
write = dataset.write_dataset
def slowly(*args):
    os.write(1, b"exports\\n")
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        time.sleep(0.05)
    return write(*args)
dataset.write_dataset = slowly
"""


@pytest.mark.slow
def test_a_signal_that_comes_three_times_in_a_moment_is_one(stopped, tmp_path):
    code, out = stopped(before=SLOW_EXPORT.format(seconds=1), again=(0.1, 0.1))
    assert (code, out.count("exports")) == (-signal.SIGTERM, 1), out
    assert open_run(tmp_path / "out").state == "stopped"
    assert len(open_dataset(tmp_path / "out" / "r.h5")["loss"]) == 10


@pytest.mark.slow
def test_a_signal_that_is_repeated_after_three_seconds_ends_at_once(stopped, tmp_path):
    code, out = stopped(before=SLOW_EXPORT.format(seconds=600), said=b"exports\n", again=(3.2,))
    assert code == -signal.SIGTERM, out
    assert not (tmp_path / "out" / "r.h5").exists()


@pytest.mark.slow
def test_a_main_thread_that_waits_in_c_costs_no_export(stopped, tmp_path):
    # Like a collective whose other ranks are gone: no instruction of Python comes for a handler to stand between.
    # sleep(3) would return at a signal; a mutex that is taken twice waits for good.
    then = (
        "lock = ctypes.create_string_buffer(128); libc = ctypes.CDLL(None)\n"
        "libc.pthread_mutex_init(lock, None); libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)"
    )
    command = [sys.executable, "-c", START.format(before="", then=then)]
    with subprocess.Popen(command, cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            for _ in range(3):  # asleep three times: it waits
                wait_until(lambda: proc.stat(process.pid).state == "S", 60, "the wait of the main thread", every=0.2)
                time.sleep(0.2)
            process.terminate()
            wait_until((tmp_path / "out" / "r.h5").exists, 60, "the export")
            time.sleep(0.5)
            assert process.poll() is None  # it waits still; the scheduler's SIGKILL comes next
        finally:
            process.kill()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "stopped"
    assert len(open_dataset(tmp_path / "out" / "r.h5")["loss"]) == 10


@pytest.mark.slow
def test_a_handler_of_the_script_decides_and_is_called_once_for_a_signal_that_comes_three_times(stopped, tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'mine'))"
    then = "sys.stdin.read()\nhistory.update({'loss': 5.0})\nhistory.finalize(plots=False)"
    code, out = stopped(before=before, then=then, again=(0.1, 0.1))
    assert (code, out.count("mine")) == (0, 1), out
    run = open_run(tmp_path / "out")
    assert (run.state, run.cause) == ("finished", "")
    assert len(run.table.steps) == 11


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(stopped, tmp_path):
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    code, out = stopped(signal.SIGHUP, before, "sys.stdin.read()\nhistory.finalize(plots=False)")
    assert code == 0, out
    assert open_run(tmp_path / "out").state == "finished"


@pytest.mark.slow
def test_after_the_end_and_of_another_thread_signals_are_as_before(run_python):
    """In a process of its own: where another history goes on, its answer to signals stays."""
    code = """
import signal, threading
from ezpz.track import History
def mine(*_): pass
for before in (signal.SIG_DFL, mine):
    signal.signal(signal.SIGTERM, before)
    one, two = History("one", "one"), History("two", "two")
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, mine)
    one.finalize(plots=False)
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, mine)
    two.finalize(plots=False)
    assert signal.getsignal(signal.SIGTERM) is before
signal.signal(signal.SIGTERM, signal.SIG_DFL)
def work():
    with History("r", "out") as history:
        history.update({"x": 1})
        seen.append(signal.getsignal(signal.SIGTERM))
        history.finalize(plots=False)
seen = []
thread = threading.Thread(target=work)
thread.start(); thread.join()
assert [*seen, signal.getsignal(signal.SIGTERM)] == [signal.SIG_DFL] * 2
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_forked_child_that_is_terminated_ends_no_run_of_its_parent(run_python, tmp_path):
    code = """
import multiprocessing, signal, time
from ezpz.track import History
from ezpz.track.run_reader import open_run
history = History("r", "out")
history.update({"x": 1})
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
time.sleep(0.3)
child.terminate()
child.join()
assert child.exitcode == -signal.SIGTERM, child.exitcode
time.sleep(2)
assert open_run("out").state == "running"
history.update({"x": 2})
history.finalize(plots=False)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.slow
def test_a_signal_in_the_middle_of_the_end_costs_no_data(run_python, tmp_path):
    code = """
import os, signal
from ezpz.track import History, dataset
history = History("r", "out")
history.update({"x": 1})
write = dataset.write_dataset
def interrupted(*args):
    dataset.write_dataset = write
    os.kill(os.getpid(), signal.SIGTERM)
    return write(*args)
dataset.write_dataset = interrupted
history.finalize(plots=False)
"""
    result = run_python(code)
    assert result.returncode == -signal.SIGTERM, result.stderr.decode()
    assert open_run(tmp_path / "out").state == "stopped"
    assert len(open_dataset(tmp_path / "out" / "r.h5")["x"]) == 1


def test_an_export_that_began_in_the_thread_replaces_none_with_more_rows(make_history, monkeypatch):
    """The thread completes the records after a second, while the loop may still save; then the handler does."""
    real, begun, stops = dataset.write_dataset, threading.Event(), []

    def slow(*arguments):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(0.5)
        real(*arguments)

    monkeypatch.setattr(dataset, "write_dataset", slow)
    monkeypatch.setattr("ezpz.track.signals.attach", stops.append)  # what is called at a signal
    history = make_history("r")
    history.update({"a": 1.0})
    (at_signal,) = stops
    thread = threading.Thread(target=at_signal, args=("SIGTERM",))
    thread.start()
    assert begun.wait(60)
    history.update({"a": 2.0})
    at_signal("SIGTERM")
    thread.join()
    assert open_dataset(history.paths["dataset"]).sizes["draw"] == 2
