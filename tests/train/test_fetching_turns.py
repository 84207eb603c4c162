"""The lock of a download: one at a time, and never for ever."""

import os
import subprocess
import sys
import threading
import time

import pytest

from ezpz.train.data import download
from ezpz.train.data.download import Turn, wait_for_turn

HOST = os.uname().nodename


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_LOOKS", (0.01, 0.05))
    return tmp_path / "x.lock"


def test_a_free_turn_is_taken_and_given_back(lock):
    turn, _ = wait_for_turn(lock)
    with turn:
        assert lock.read_text() == f"{HOST} {os.getpid()} 0"
        assert not Turn(lock).take()
    assert not lock.exists()


def test_whoever_waits_is_told_who_was_there(lock):
    lock.write_text("n01 4711 3")
    threading.Timer(0.3, lock.unlink).start()
    assert wait_for_turn(lock) == (None, "n01 4711")


def test_a_lock_that_changed_hands_means_that_the_first_holder_is_done(lock):
    lock.write_text("n01 4711 3")
    threading.Timer(0.3, lock.write_text, ["n02 99 0"]).start()
    assert wait_for_turn(lock) == (None, "n01 4711")


def test_a_holder_that_works_is_waited_for_beyond_the_time_of_a_dead_one(lock):
    lock.write_text("n01 4711 0")
    over = threading.Event()

    def work():
        for count in range(1, 12):
            lock.write_text(f"n01 4711 {count}")
            time.sleep(0.1)
        over.set()
        lock.unlink()

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_for_turn(lock, stale=0.6) == (None, "n01 4711")
    assert over.is_set()
    thread.join()


@pytest.mark.parametrize("content", ["n01 4711 3", "", "rubbish"])
def test_a_lock_that_stands_still_is_taken_over(lock, content):
    lock.write_text(content)
    began = time.monotonic()
    turn, _ = wait_for_turn(lock, stale=0.3)
    assert turn is not None
    assert 0.3 <= time.monotonic() - began < 5
    assert lock.read_text().startswith(f"{HOST} {os.getpid()}")


def test_a_dead_process_of_this_host_is_not_waited_for(lock):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock.write_text(f"{HOST} {gone.pid} 3")
    began = time.monotonic()
    assert wait_for_turn(lock)[0] is not None
    assert time.monotonic() - began < 5


def test_the_wait_ends_when_a_run_must_go_on(lock):
    lock.write_text(f"{HOST} {os.getpid()} 3")
    assert wait_for_turn(lock, until=time.monotonic() + 0.2) == (None, f"{HOST} {os.getpid()}")
    assert lock.exists()


def test_a_turn_that_was_taken_over_is_left_to_its_new_holder(lock, monkeypatch):
    monkeypatch.setattr(download, "_EVERY", 0.0)
    turn, _ = wait_for_turn(lock)
    with turn:
        turn.go_on()
        assert lock.read_text() == f"{HOST} {os.getpid()} 1"
        lock.write_text("n02 99 0")
        turn.go_on()
    assert lock.read_text() == "n02 99 0"


def test_a_folder_that_is_not_there_is_an_error_and_no_wait(tmp_path):
    with pytest.raises(OSError):
        wait_for_turn(tmp_path / "none" / "x.lock")
