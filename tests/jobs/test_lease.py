"""The lease of a chain of jobs: one launch at a time has it, and is told when it has it no more."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz.launch import chain_lease as leases
from lab import process

SRC = Path(leases.__file__).parents[2]


def entry(job):
    return {"job": job, "scheduler": "pbs", "restarts": 0, "host": "n01"}


def test_a_lease_is_taken_once_and_again_when_it_was_given_back(tmp_path):
    first = leases.take(str(tmp_path), entry("1"), lambda _: False)
    with pytest.raises(leases.HeldError, match="job 1 on n01 holds"):
        leases.take(str(tmp_path), entry("2"), lambda _: False)
    first.give_back()
    second = leases.take(str(tmp_path), entry("2"), lambda _: False)
    assert second.is_ours()
    assert not first.is_ours()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["lease-000001", "lease-000002"]


def test_a_lease_is_void_when_its_job_is_over_and_silent_or_after_long(tmp_path):
    lease = leases.take(str(tmp_path), entry("1"), lambda _: False)
    now = time.time()
    os.utime(lease.path, (now, now - leases.SILENT - 1))
    with pytest.raises(leases.HeldError):
        leases.take(str(tmp_path), entry("2"), lambda _: False)
    second = leases.take(str(tmp_path), entry("2"), lambda held: held.job == "1")
    os.utime(second.path, (now, now - leases.VOID - 1))
    assert leases.take(str(tmp_path), entry("3"), lambda _: False).is_ours()
    assert not second.is_ours()


@pytest.mark.slow
def test_of_many_that_take_a_void_lease_at_once_one_has_it(tmp_path, monkeypatch, subtests):
    def no_link(*_):
        raise OSError(95, "Operation not supported")

    for ended, has_links in (("given back", True), ("given back", False), ("silent", True), ("silent", False)):
        with subtests.test(ended, has_links=has_links), monkeypatch.context() as patch:
            folder = tmp_path / f"{ended} {has_links}"
            folder.mkdir()
            if not has_links:
                patch.setattr(leases.os, "link", no_link)
            first = leases.take(str(folder), entry("0"), lambda _: False)
            if ended == "given back":
                first.give_back()
            else:
                os.utime(first.path, (0, time.time() - leases.VOID - 1))
            assert sum(take_at_once(folder, 8)) == 1


def take_at_once(folder, number):
    """Whether each of so many processes has got the lease."""
    pids = []
    for place in range(number):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                while not (folder / "start").exists():
                    time.sleep(0.001)
                leases.take(str(folder), entry(str(place)), lambda _: False)
                code = 0
            except leases.HeldError:
                pass
            finally:
                os._exit(code)
        pids.append(pid)
    (folder / "start").touch()
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids]


class Holder:
    """A process that holds a lease, has it renewed, and listens to nothing; a context manager."""

    def __init__(self, tmp_path, *, ends=leases.ENDS):
        self.folder = tmp_path / "chain"
        self.folder.mkdir()
        self._program = f"""
import os, sys, time
sys.path.insert(0, {str(SRC)!r})
from ezpz.launch import chain_lease as lease
lease.EVERY, lease.ENDS = 0.2, {ends!r}
mine = lease.take({str(self.folder)!r}, {entry("1")!r}, lambda _: False)
mine.keep()
while not mine.lost():
    time.sleep(0.05)
print(mine.lost(), flush=True)
time.sleep(120)
"""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", self._program], stdout=subprocess.PIPE, text=True)
        process.wait_until(lambda: len(self.pids()) == 2, 30, "a guard, and what renews")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        process.wait_until(lambda: not self.pids(), 10, "the end of the guard and of what renews")

    def pids(self):
        """Of the guard and of what renews, in this order."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if any(word.startswith(f"{self.folder}/lease-".encode()) for word in words):
                    found.append(int(path.parent.name))
        return sorted(found)

    def says(self):
        return self.process.stdout.readline()


@pytest.mark.slow
def test_who_has_lost_its_lease_is_told_and_ended(tmp_path):
    with Holder(tmp_path) as holder:
        (holder.folder / "lease-000002").write_text(json.dumps(entry("2")))
        assert holder.says() == "another job has taken it\n"
        assert holder.process.wait(60) == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_the_end_of_what_keeps_a_lease_is_told(tmp_path, which):
    with Holder(tmp_path) as holder:
        os.kill(holder.pids()[which], signal.SIGKILL)
        assert holder.says() == "the process that renews it was killed\n"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_who_cannot_renew_its_lease_is_ended_before_it_is_void(tmp_path, how):
    assert leases.ENDS + 65 < leases.VOID  # of which a launch that does not listen has 35 to end
    with Holder(tmp_path, ends=2.0) as holder:
        if how == "fails":  # as a file system that has gone away
            holder.folder.rename(tmp_path / "away")
        else:
            os.kill(holder.pids()[1], signal.SIGSTOP)
        assert holder.says() == f"{holder.folder} could not be written for 2 s\n"
        assert holder.process.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_a_lease_that_is_renewed_after_its_job_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "PATIENCE", 2.0)
    with Holder(tmp_path) as holder:
        with pytest.raises(leases.HeldError, match="ago although the scheduler says that this job is over; it is void"):
            leases.take(str(holder.folder), entry("2"), lambda _: True)
        assert holder.process.poll() is None


@pytest.mark.slow
def test_what_ends_a_job_gently_leaves_the_lease_alone(tmp_path):
    with Holder(tmp_path) as holder:
        for pid in holder.pids():
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGUSR2)
        path = Path(leases.holder(str(holder.folder))[0])
        for _ in range(2):
            os.utime(path, (0, 0))
            process.wait_until(lambda: path.stat().st_mtime, 60, "its renewal")
        assert len(holder.pids()) == 2
        assert holder.process.poll() is None
