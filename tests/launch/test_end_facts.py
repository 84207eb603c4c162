"""What a host says of the end of a rank: counters of its kernel, and the room on the disks where it could not write."""

import os
import time

import pytest

from ezpz.launch import messages
from ezpz.launch.host import end_facts
from ezpz.launch.host.end_facts import Counters, room_on_disks

LATER = time.time() + 3600
FULL = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    save()
OSError: [Errno 28] No space left on device: '{}'
"""


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
    found = {rank: counters.at_end(rank, LATER) for rank in range(3)}
    assert [(each.before, each.after, each.host_before, each.host_after) for each in found.values()] == [
        (5, 5, 9, 10),
        (1, 2, 9, 10),
        (-1, -1, 9, 10),
    ]
    assert (found[1].peak, found[1].limit, found[0].limit) == (4095, 4096, -1)
    assert found[1].group == f"{tmp_path}/sys/fs/cgroup/task_1"
    assert found[2].group == ""


def test_without_counters_nothing_is_known(tmp_path):
    counters = Counters(str(tmp_path))
    counters.begin(0, "self")
    assert counters.at_end(0, LATER) == messages.NOTHING_COUNTED
    assert counters.at_end(5, LATER) == messages.NOTHING_COUNTED  # a rank that was never noted


def test_the_file_system_of_the_file_that_could_not_be_written_is_told(tmp_path):
    ((mount, free, files, size), *_) = room_on_disks(FULL.format(tmp_path / "not" / "there" / "step-3.pt"))
    assert os.path.ismount(mount)
    assert str(tmp_path).startswith(mount.rstrip("/"))
    assert 0 <= free <= size
    assert files >= -1


def test_disks_are_not_asked_about_a_rank_that_could_write(monkeypatch):
    monkeypatch.setattr(end_facts, "_local_mounts", lambda: pytest.fail("asked"))
    assert room_on_disks("ValueError: no such luck\n") == []
    assert room_on_disks("") == []


def test_full_file_systems_are_told_where_the_exception_names_no_file(tmp_path, monkeypatch):
    rooms = {"/a": ("/a", 0, 5, 100), "/b": ("/b", 1 << 30, 5, 1 << 40), "/c": ("/c", 1 << 30, 0, 1 << 40), "/d": None}
    monkeypatch.setattr(end_facts, "_local_mounts", lambda: list(rooms))
    monkeypatch.setattr(end_facts, "_room", rooms.get)
    words = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0\n"
    assert [row[0] for row in room_on_disks(words)] == ["/a", "/c"]


def test_the_disks_of_the_ranks_own_folders_come_before_all_others(monkeypatch):
    rooms = {"/a": ("/a", 0, 5, 100), "/b": ("/b", 1 << 30, 5, 1 << 40), "/tmp": ("/tmp", 0, 5, 100)}
    monkeypatch.setattr(end_facts, "_local_mounts", lambda: list(rooms))
    monkeypatch.setattr(end_facts, "_mount_point", lambda path: "/" + path.split("/")[1])
    monkeypatch.setattr(end_facts, "_room", rooms.get)
    words = "RuntimeError: PytorchStreamWriter failed writing file data/0\n"
    assert [row[0] for row in room_on_disks(words, ["/b/run", "/tmp", ""])] == ["/tmp"]
    assert [row[0] for row in room_on_disks(words, ["/b/run"])] == ["/a", "/tmp"]
    assert [row[0] for row in room_on_disks(FULL.format("/b/x"), ["/tmp"])] == ["/b"]


def test_a_message_holds_the_largest_file_system(monkeypatch):
    class Room:
        f_frsize, f_bavail, f_blocks, f_files, f_favail = 1 << 20, 1 << 50, 1 << 50, 1, 1 << 60

    monkeypatch.setattr(end_facts.os, "statvfs", lambda _: Room)
    row = end_facts._room("/lustre")
    failed = messages.RankFailed(
        rank=0,
        pid=1,
        code=1,
        at=1.0,
        why="",
        words="",
        shown=True,
        step=-1,
        memory=messages.NOTHING_COUNTED,
        room=[row],
    )
    assert messages.REPORTS.decode(messages.REPORTS.encode(failed)) == failed


def test_of_a_rank_that_ended_at_once_nothing_is_known(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/task_0\n")
    count(tmp_path, "/task_0", 1, 1)
    counters = Counters(str(tmp_path))
    counters.begin(0, "self")
    assert counters.at_end(0, time.time() - 1) == messages.NOTHING_COUNTED
    assert counters.at_end(0, LATER).after == 1
