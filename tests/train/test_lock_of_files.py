"""The lock of files that runs share: one writes at a time, and nobody waits for ever."""

import os
import subprocess
import sys
import threading
import time

import pytest
from filelock import SoftFileLease, Timeout

from ezpz.train.data import shared_files
from ezpz.train.data.shared_files import wait_for_lock

HOST = os.uname().nodename


def of_this_process(answer):
    """Tell whether a wait ended with this process as the holder; filelock adds the namespace in a container."""
    host, _, pid = (answer[1] or "").rpartition(" ")
    return answer[0] is None and host.partition("?")[0] == HOST and pid == str(os.getpid())


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_files, "_POLLS", (0.01, 0.05))
    return tmp_path / "x.lock"


def marker(host, pid, stale=30.0):
    """What a process of another host writes into its lock."""
    return f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken={'0' * 32}\nduration={stale!r}\n"


def test_a_free_lock_is_taken_and_given_back(lock):
    held, other = wait_for_lock(lock)
    assert other == ""
    with held:
        assert SoftFileLease(lock).owner.pid == os.getpid()
        assert of_this_process(wait_for_lock(lock, until=time.monotonic()))
    assert not lock.exists()


@pytest.mark.parametrize("change", [lambda lock: lock.unlink(), lambda lock: lock.write_text(marker("n02", 99))])
def test_whoever_waits_learns_who_held_it(lock, monkeypatch, change):
    """That it is gone, and that it changed hands, both mean that the first holder is done."""
    said = []
    # Changed by the line that names the holder: on a busy machine a timer is over before the first look.
    monkeypatch.setattr(shared_files.logger, "info", lambda line: (said.append(line), change(lock)))
    lock.write_text(marker("n01", 4711))
    assert wait_for_lock(lock) == (None, "n01 4711")
    assert said == [f"waiting for process n01 4711, which holds {lock}"]


@pytest.mark.slow
def test_a_holder_that_works_is_waited_for_beyond_the_time_of_a_dead_one(lock):
    lock.write_text(marker("n01", 4711, stale=2.0))  # twenty times the pause: a busy machine makes it longer
    over = threading.Event()

    def work():
        for _ in range(25):
            os.utime(lock)
            time.sleep(0.1)
        over.set()
        lock.unlink()

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_for_lock(lock, stale=2.0) == (None, "n01 4711")
    assert over.is_set()
    thread.join()


@pytest.mark.slow
def test_a_lock_that_nothing_touches_is_taken_over(lock, subtests):
    for content in (marker("n01", 4711, stale=0.3), "", "rubbish", "n01 4711 3"):
        with subtests.test(content=content):
            lock.write_text(content)
            began = time.monotonic()
            held, _ = wait_for_lock(lock, stale=0.3)
            assert time.monotonic() - began >= 0.3
            with held:
                assert SoftFileLease(lock).owner.pid == os.getpid()


def test_a_call_that_only_removes_a_dead_holders_lock_is_followed_by_one_that_takes_it(lock, monkeypatch):
    """As filelock 4.1 does, the last one for Python 3.10: the lock is free then, and nobody has given it back."""

    class Removing(SoftFileLease):
        def acquire(self, **more):
            if self.owner is not None and self.owner.hostname == "n01" and time.monotonic() > dead_at:
                lock.unlink()
                raise Timeout(str(lock))
            return super().acquire(**more)

    monkeypatch.setattr("filelock.SoftFileLease", Removing)
    lock.write_text(marker("n01", 4711))
    dead_at = time.monotonic() + 0.2
    held, _ = wait_for_lock(lock)
    assert held is not None
    with held:
        assert SoftFileLease(lock).owner.pid == os.getpid()


def test_a_dead_process_of_this_host_is_not_waited_for(lock):
    code = "import os, sys; from filelock import SoftFileLease; "
    code += "lock = SoftFileLease(sys.argv[1], lease_duration=600.0); lock.acquire(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code, str(lock)], check=False)
    assert lock.exists()
    began = time.monotonic()
    assert wait_for_lock(lock, stale=600)[0] is not None
    assert time.monotonic() - began < 60


def test_the_wait_ends_when_a_run_has_no_more_time(lock):
    with SoftFileLease(lock):
        assert of_this_process(wait_for_lock(lock, until=time.monotonic() + 0.2))
        assert lock.exists()


def test_a_lock_that_was_taken_over_is_left_to_its_new_holder(lock):
    held, _ = wait_for_lock(lock)
    with held:
        lock.unlink()
        lock.write_text(marker("n02", 99))
    assert lock.read_text() == marker("n02", 99)


def test_a_folder_that_cannot_be_made_is_an_error_and_no_wait(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        wait_for_lock(tmp_path / "file" / "x.lock")
