"""What a host says of the end of a rank: counters of its kernel, and the room on the disks where it could not write."""

import os
import time
from types import SimpleNamespace

import pytest

from ezpz import proc
from ezpz.launch import agent_messages
from ezpz.launch.host.end_facts import Counters, room_on_disks
from ezpz.why import last_words  # noqa: F401  # before the file system is a stand-in
from lab.agents import failed

FULL = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    save()
OSError: [Errno 28] No space left on device: '{}'
"""


def later():
    """A moment that surely comes after the first look at counters."""
    return time.time() + 3600


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def count(root, group, kills, host):
    write(root, f"sys/fs/cgroup{group}/memory.events", f"oom 0\noom_kill {kills}\n")
    write(root, "proc/vmstat", f"oom_kill {host}\n")


def test_counters_are_those_of_the_group_of_the_rank(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/task_0\n")
    write(tmp_path, "proc/11/cgroup", "0::/task_1\n")
    write(tmp_path, "sys/fs/cgroup/task_1/memory.max", "4096\n")
    write(tmp_path, "sys/fs/cgroup/task_1/memory.peak", "4095\n")
    count(tmp_path, "/task_0", 5, 9)
    count(tmp_path, "/task_1", 1, 9)
    counters = Counters(str(tmp_path))
    counters.begin(0, "self")
    counters.begin(1, 11)
    counters.begin(2, 0)  # a shim of another name space
    count(tmp_path, "/task_1", 2, 10)
    found = {rank: counters.at_end(rank, later()) for rank in range(3)}
    told = [(each.before, each.after, each.host_before, each.host_after) for each in found.values()]
    assert told == [(5, 5, 9, 10), (1, 2, 9, 10), (-1, -1, 9, 10)]
    assert (found[1].peak, found[1].limit, found[0].limit) == (4095, 4096, -1)
    assert found[1].group == f"{tmp_path}/sys/fs/cgroup/task_1"
    assert found[2].group == ""


def test_without_counters_nothing_is_known(tmp_path):
    counters = Counters(str(tmp_path))
    counters.begin(0, "self")
    assert counters.at_end(0, later()) == agent_messages.NOTHING_COUNTED
    assert counters.at_end(5, later()) == agent_messages.NOTHING_COUNTED  # a rank that was never noted


def test_the_file_system_of_the_file_that_could_not_be_written_is_told(tmp_path):
    ((mount, free, files, size), *_) = room_on_disks(FULL.format(tmp_path / "not" / "there" / "step-3.pt"))
    assert os.path.ismount(mount)
    assert str(tmp_path).startswith(mount.rstrip("/"))
    assert 0 <= free <= size
    assert files >= -1


@pytest.fixture
def told(monkeypatch):
    """`told(rooms, words, folders)` -> the rows of a host whose disks have ``{mount: (free bytes, free files)}``."""

    def tell(rooms, words, folders=()):
        def statvfs(mount):
            if mount not in rooms:
                raise OSError(mount)
            free, files = rooms[mount]
            blocks = {"f_frsize": 1 << 20, "f_bavail": free >> 20, "f_blocks": max(100, free >> 20)}
            return SimpleNamespace(**blocks, f_files=1, f_favail=files)

        mounts = "".join(f"disk {mount} ext4 rw 0 0\n" for mount in [*rooms, "/gone"])
        with monkeypatch.context() as patch:
            patch.setattr(proc, "read", lambda *_: mounts.encode())
            patch.setattr(os, "statvfs", statvfs)
            patch.setattr(os.path, "exists", lambda _: True)
            patch.setattr(os.path, "ismount", lambda path: path in {*rooms, "/"})
            return room_on_disks(words, folders)

    return tell


TORN = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0\n"
ROOM = (1 << 30, 5)


def test_disks_are_not_asked_about_a_rank_that_could_write(told):
    full = {"/a": (0, 5)}
    assert [row[0] for row in told(full, TORN)] == ["/a"]
    assert told(full, "ValueError: no such luck\n") == []
    assert told(full, "") == []


def test_full_file_systems_are_told_where_the_exception_names_no_file(told):
    rooms = {"/a": (0, 5), "/b": ROOM, "/c": (1 << 30, 0)}
    assert [row[0] for row in told(rooms, TORN)] == ["/a", "/c"]


def test_the_disks_of_the_ranks_own_folders_come_before_all_others(told):
    rooms = {"/a": (0, 5), "/b": ROOM, "/tmp": (0, 5)}
    words = "RuntimeError: PytorchStreamWriter failed writing file data/0\n"
    assert [row[0] for row in told(rooms, words, ["/b/run", "/tmp", ""])] == ["/tmp"]
    assert [row[0] for row in told(rooms, words, ["/b/run"])] == ["/a", "/tmp"]
    assert [row[0] for row in told(rooms, FULL.format("/b/x"), ["/tmp"])] == ["/b"]


def test_a_message_holds_the_largest_file_system(told):
    (row,) = told({"/lustre": (1 << 70, 1 << 60)}, FULL.format("/lustre/x"))
    report = failed(room=[row])
    assert agent_messages.REPORTS.decode(agent_messages.REPORTS.encode(report)) == report


def test_of_a_rank_that_ended_at_once_nothing_is_known(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/task_0\n")
    count(tmp_path, "/task_0", 1, 1)
    counters = Counters(str(tmp_path))
    counters.begin(0, "self")
    assert counters.at_end(0, time.time() - 1) == agent_messages.NOTHING_COUNTED
    assert counters.at_end(0, later()).after == 1
