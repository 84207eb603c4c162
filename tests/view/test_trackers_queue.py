"""Trackers of every temper: training never waits for one, nor fails by one, and the process ends."""

import csv
import signal
import subprocess
import sys
import threading
import time

import pytest

from ezpz.errors import UsageError
from ezpz.view.trackers import About, Trackers
from ezpz.view.trackers import worker as worker_module
from lab.run_folders import environ


class Kept:
    """A user's own tracker: it keeps what it is given, and does `trouble` at one of the calls."""

    def __init__(self, trouble=None, at="", name="mine"):
        self.name, self.trouble, self.at, self.calls = name, trouble, at, []

    def _call(self, call, *what):
        self.calls.append((call, *what))
        if call == self.at:
            self.trouble()

    def start(self, about):
        self._call("start", about.name, about.resumed.get(self.name))
        return {"id": "abc"}

    def log(self, step, values):
        self._call("log", step, dict(values))

    def config(self, config):
        self._call("config", dict(config))

    def finish(self, state):
        self._call("finish", state)


def fail():
    raise OSError("gone\nwith more lines")


def hang():
    threading.Event().wait()


@pytest.fixture
def about(tmp_path):
    return About("train", tmp_path, {"lr": 0.1}, {"mine": {"id": "old"}, "other": {"id": 7}}, "2026-11-20-162001")


def warnings(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "[W]" in line]


def use(trackers, rows=3):
    for step in range(rows):
        trackers.log(step, {"loss": step / 2})
    trackers.config({"later": 1})
    trackers.finish("finished")


def test_a_users_own_tracker_gets_every_call_in_order_and_its_state_is_kept(about, capsys):
    mine = Kept()
    trackers = Trackers([mine], about)
    use(trackers)
    assert mine.calls == [
        ("start", "train", {"id": "old"}),
        *[("log", step, {"loss": step / 2}) for step in range(3)],
        ("config", {"later": 1}),
        ("finish", "finished"),
    ]
    assert trackers.state == {"mine": {"id": "abc"}, "other": {"id": 7}}
    trackers.finish("failed")
    assert mine.calls[-1] == ("finish", "finished")
    assert warnings(capsys) == []


CALLS = ("start", "log", "config", "finish")


def test_a_tracker_that_fails_at_any_call_costs_one_warning_and_the_others_go_on(about, capsys, subtests):
    troubles = {fail: "OSError: gone;", sys.exit: "SystemExit: ;"}
    bad = [Kept(trouble, call, f"{trouble.__name__}-at-{call}") for trouble in troubles for call in CALLS]
    good = Kept(name="good")
    use(Trackers([*bad, good], about))
    told = warnings(capsys)
    assert len(told) == len(bad)
    for each in bad:
        with subtests.test(each.name):
            (line,) = (line for line in told if f"tracker {each.name} is off" in line)
            assert troubles[each.trouble] in line
            assert "training continues, and so does the run folder" in line
            assert each.calls[-1][0] == each.at
    assert [step for name, step, *_ in good.calls if name == "log"] == [0, 1, 2]


def test_a_tracker_that_hangs_at_any_call_holds_neither_rows_nor_the_end(about, capsys, monkeypatch):
    monkeypatch.setenv("EZPZ_TRACKER_SECONDS", "1")
    good = Kept(name="good")
    use(Trackers([*(Kept(hang, call, f"hangs-at-{call}") for call in CALLS), good], about))
    told = warnings(capsys)
    assert len(told) == len(CALLS)
    for call in CALLS:
        assert any(f"tracker hangs-at-{call} did not end within 1 s" in line for line in told), told
    assert good.calls[-1] == ("finish", "finished")


def test_rows_beyond_the_queue_are_dropped_and_counted_in_the_one_warning(about, capsys, monkeypatch):
    monkeypatch.setattr(worker_module, "MOST_ROWS", 8)
    gate = threading.Event()
    slow = Kept(gate.wait, "start")
    trackers = Trackers([slow], about)
    for step in range(20):
        trackers.log(step, {"loss": 0.0})
    gate.set()
    trackers.finish("finished")
    assert [step for name, step, *_ in slow.calls if name == "log"] == list(range(8))
    (told,) = warnings(capsys)
    assert "was slower than the run; 12 rows are missing there, the first at step 8" in told


def test_nothing_chosen_starts_no_thread(about, monkeypatch):
    before = set(threading.enumerate())
    for chosen in (None, "", ()):
        trackers = Trackers(chosen, about)
        assert not trackers
        use(trackers)
        assert trackers.state == about.resumed
    assert set(threading.enumerate()) <= before  # one of an earlier test may end meanwhile


def test_the_environment_chooses_where_the_program_does_not(about, monkeypatch, tmp_path):
    monkeypatch.setenv("EZPZ_TRACKERS", " csv ,")
    use(Trackers(None, about))
    assert (tmp_path / "trackers" / "metrics.csv").exists()
    assert not Trackers([], about)


CHOICES = [
    ("wandbb", r"no tracker 'wandbb' \(from History\(trackers=...\)\); expected .*Did you mean wandb\?"),
    (["csv", "csv"], r"two trackers called 'csv'"),
    ([Kept(name="csv"), "csv"], r"two trackers called 'csv'"),
    ([object()], r"no tracker: object without start and log and config and finish"),
    (7, r"no tracker: int without"),
]


def test_a_choice_that_is_no_tracker_is_told_before_any_starts(subtests, about):
    for chosen, told in CHOICES:
        with subtests.test(told), pytest.raises(UsageError, match=told):
            Trackers(chosen, about)


def test_a_limit_that_is_no_time_is_told(about, monkeypatch):
    for seconds in ("soon", "-1", "inf"):
        monkeypatch.setenv("EZPZ_TRACKER_SECONDS", seconds)
        with pytest.raises(UsageError, match=f"'{seconds}' .from EZPZ_TRACKER_SECONDS"):
            Trackers([], about)


HANGS = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ezpz.view.trackers import About, Trackers

class Bad:
    name = "bad"
    def start(self, about):
        if "threads" in sys.argv:  # as a library may start them: threads that Python waits for at its end
            threading.Thread(target=time.sleep, args=(1000,)).start()
            threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
            ThreadPoolExecutor(1).submit(time.sleep, 1000)
        started.set()
        return {}
    def log(self, step, values):
        if "log" in sys.argv:
            time.sleep(1000)
    def config(self, config): pass
    def finish(self, state): print("finish", state, flush=True)

started = threading.Event()
trackers = Trackers([Bad(), "csv"], About("train", Path(), {}, {}, ""))
started.wait(60)
for step in range(5):
    trackers.log(step, {"loss": 0.5})
if "own" in sys.argv:  # the program's own thread, which Python does wait for
    threading.Thread(target=lambda: (time.sleep(1.5), print("own", flush=True))).start()
if "signal" in sys.argv:
    import os, signal
    signal.signal(signal.SIGTERM, lambda *_: (trackers.finish("stopped"), os._exit(143)))
    os.write(1, b"ready" + bytes([10]))  # a handler that interrupts a print cannot print
    time.sleep(1000)
if "finish" in sys.argv:
    trackers.finish("finished")
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "what", [("log", "finish"), ("log",), ("threads", "finish"), ("threads",), ("threads", "own")], ids="-".join
)
def test_the_process_ends_with_its_own_code_whatever_a_tracker_does(run_python, tmp_path, what):
    result = run_python(HANGS, *what, EZPZ_TRACKER_SECONDS="1.5")
    out = result.stdout.decode()
    assert result.returncode == 3, result.stderr
    assert out.count("[W]") == 1
    assert "tracker bad did not end within 1.5 s" in out
    assert ("own" in out.splitlines()) == ("own" in what)
    if "threads" in what:
        assert f"finish {'finished' if 'finish' in what else 'exited'}" in out
    with (tmp_path / "trackers" / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == list("01234")


@pytest.mark.slow
def test_the_end_is_bounded_in_a_signal_handler_too(tmp_path):
    env = environ(tmp_path, EZPZ_TRACKER_SECONDS="1.5")
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, "log", "signal"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out.count("[W]") == 1


@pytest.mark.slow
def test_a_row_costs_its_sender_about_a_microsecond(about):
    trackers = Trackers([Kept()], about)
    values = {f"metric{number}": 0.5 for number in range(8)}
    began = time.thread_time()  # tests beside this one take turns with it
    for step in range(10_000):
        trackers.log(step, values)
    spent = (time.thread_time() - began) / 10_000
    trackers.finish("finished")
    assert spent < 20e-6
