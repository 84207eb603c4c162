"""One run at a time saves into a folder of checkpoints; who died keeps nobody waiting."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from ezpz.checkpoint import Checkpoints, owner
from ezpz.errors import EzpzError, UsageError
from ezpz.track.writer_lock import birth

torch = pytest.importorskip("torch")

LATE = 3.0  # seconds, in which nothing that a test calls at once waits for a lease


def make(folder):
    return Checkpoints(folder, model=torch.nn.Linear(2, 2))


def held_by(folder, **more):
    """Write a lease as another process would: by default one of this host that is alive."""
    base = folder / "checkpoints"
    base.mkdir(exist_ok=True)
    number = 1 + len(list(base.glob("lease-*")))
    parent = os.getppid()
    entry = {"host": "n01", "pid": parent, "birth": birth(parent), "machine": owner._machine(), "token": "theirs"}
    path = base / f"lease-{number:06}"
    entry["inode"] = base.stat().st_ino
    path.write_text(json.dumps({**entry, "since": "2026-11-28T07:00:00+00:00", "job": "", **more}))
    return path


@contextlib.contextmanager
def renewed(path):
    """Renew a lease as its holder's thread does."""
    over = threading.Event()

    def renew():
        while not over.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("more", "who"), [({}, f"process {os.getppid()} on n01"), ({"job": "4711"}, "job 4711 on n01")]
)
def test_a_second_run_is_refused_and_told_whose_folder_it_is(tmp_path, more, who):
    first = make(tmp_path / "old").save(1).rename(tmp_path / "step-1")
    path = held_by(tmp_path, **more)
    checkpoints = make(tmp_path)
    assert checkpoints.load(first) == 1  # who loads alone is not asked
    told = rf"cannot save in {path.parent}: {who} saves there since 2026-.*, and has renewed {path} \d+ s ago; expected"
    began = time.monotonic()
    for call in (checkpoints.claim, lambda: checkpoints.save(2)):
        with pytest.raises(UsageError, match=told) as refused:
            call()
        assert "\n" not in str(refused.value)
    assert time.monotonic() - began < LATE
    assert list(path.parent.iterdir()) == [path]


DEAD = {
    "given back": {"given_back": True},
    "its process is gone": {"pid": 2**22 - 1},
    "its folder was copied": {"inode": 1},
    "another process has its number": {"birth": "1"},
    "a later attempt of its launch": {"machine": "another", "launch": "5f3a", "attempt": "1"},
    "the next job of its chain": {"machine": "another", "chain": "/chain", "job": "12"},
}


@pytest.mark.parametrize("more", DEAD.values(), ids=DEAD)
def test_a_run_that_is_over_keeps_nobody_waiting(tmp_path, monkeypatch, more):
    monkeypatch.setenv("EZPZ_LAUNCH_ID", "5f3a")
    monkeypatch.setenv("EZPZ_ATTEMPT", "2")
    monkeypatch.setenv("EZPZ_CHAIN", "/chain")
    held_by(tmp_path, **more)
    began = time.monotonic()
    assert make(tmp_path).save(1).exists()
    assert time.monotonic() - began < LATE


def test_a_process_that_nobody_has_waited_for_is_over(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as child:
        held_by(tmp_path, pid=child.pid, birth=birth(child.pid))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert make(tmp_path).save(1).exists()


def test_of_another_host_it_counts_whether_somebody_renews_the_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "SILENT", 1.0)
    path = held_by(tmp_path, machine="another", launch="of another", chain="another")
    os.utime(path, (0, time.time() - 3600))  # renewed again in a moment: its file system stood still
    with renewed(path), pytest.raises(UsageError, match="saves there since"):
        make(tmp_path).save(1)
    assert make(tmp_path).save(1).exists()


def test_who_has_lost_the_folder_saves_nothing_more(tmp_path):
    checkpoints = make(tmp_path)
    path = checkpoints.save(1)
    other = held_by(tmp_path, job="4711")
    with pytest.raises(EzpzError, match="job 4711 on n01 has taken the folder over"):
        checkpoints.save(2)
    assert sorted(each.name for each in path.parent.iterdir()) == ["lease-000001", other.name, path.name]


def test_one_process_may_save_by_several_objects_and_into_a_folder_that_was_removed(tmp_path):
    for number in (1, 2):
        make(tmp_path).save(number)
    assert len(list((tmp_path / "checkpoints").glob("lease-*"))) == 1
    shutil.rmtree(tmp_path)
    assert make(tmp_path).save(3).exists()


def test_a_process_gives_the_folder_back_at_its_end_and_a_killed_one_loses_it(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from ezpz.checkpoint import owner\n"
        "owner.claim(Path(sys.argv[1], 'checkpoints')); os.kill(os.getpid(), int(sys.argv[2]))"
    )
    for number, count in ((0, 1), (9, 2), (9, 3)):
        done = subprocess.run([sys.executable, "-c", program, tmp_path, str(number)], check=False, timeout=120)
        assert done.returncode == -number
        newest = max((tmp_path / "checkpoints").glob("lease-*"))
        assert newest.name == f"lease-{count:06}"
        assert bool(json.loads(newest.read_text()).get("given_back")) is (number == 0)
