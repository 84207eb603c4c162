"""Memory of devices that an earlier attempt still holds: who counts, how long it is waited for, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ezpz.cluster.devices import nvml
from ezpz.launch.host import device_memory_wait

EARLIER, NOW, OTHER = "9425ec0dbb097ccc", "9425ec0d71217815", "77777777bb097ccc"


@pytest.fixture
def left_behind():
    """`left_behind(launch)` -> the pid of a process that a rank of that launch has left here."""
    started = []

    def start(launch):
        line = [sys.executable, "-c", "print(flush=True); input()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(line, env={"EZPZ_LAUNCH_ID": launch}, **pipes))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def card(monkeypatch):
    """What computes on the only card, as its driver says: to be changed."""
    computing = set()

    class Nvml:
        def __init__(self, ranks):
            assert not ranks.pids

        def computing(self):
            return computing

    monkeypatch.setattr(nvml, "Nvml", Nvml)
    return computing


def test_processes_of_earlier_attempts_count_where_a_card_names_them(left_behind, card, monkeypatch):
    earlier, now, other, world = map(left_behind, (EARLIER, NOW, OTHER, f"{NOW}/00000001"))
    card |= {earlier, now, other, world, 1}
    assert device_memory_wait.holders(NOW) == [earlier]
    assert device_memory_wait.holders(f"outer/{NOW}") == []
    card.clear()
    assert device_memory_wait.holders(NOW) == []
    monkeypatch.setattr(device_memory_wait, "on_devices", lambda pid: 4096 * (pid == earlier))
    assert device_memory_wait.holders(NOW) == [earlier]


def test_no_driver_is_asked_where_nothing_was_left(monkeypatch):
    monkeypatch.setattr(nvml, "Nvml", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(device_memory_wait, "is_exiting", lambda text: False)
    assert device_memory_wait.holders(NOW) == []


ENDING = {
    "4711 (python3) D 1 4711 4711 0 -1 4194564 0 0": True,
    "4711 (a) b) S 1 4711 4711 0 -1 4194560 0 0": False,
    "4711 (python3) Z 1 4711 4711 0 -1 4194564 0 0": False,  # it has given back all
    "": False,
}
ON_DEVICES = {  # KiB
    "pos:\t0\ndrm-driver:\tamdgpu\ndrm-memory-vram:\t2097152 KiB\ndrm-memory-gtt: \t7 KiB\n": 2097152,
    "drm-driver:\txe\ndrm-total-vram0:\t4096 KiB\ndrm-resident-vram0:\t2048 KiB\n": 4096,
    "drm-driver:\ti915\ndrm-resident-local0:\t12 KiB\ndrm-resident-system0:\t99 KiB\n": 12,
    "pos:\t0\nflags:\t02\n": 0,
}


def test_files_of_a_process_tell_that_it_ends_and_what_it_has_on_devices():
    assert {text: device_memory_wait.is_exiting(text) for text in ENDING} == ENDING
    assert {text: device_memory_wait.drm_memory(text) for text in ON_DEVICES} == ON_DEVICES


def test_it_waits_until_nobody_holds_any_or_its_time_is_over():
    answers = [[7, 8], [8], []]
    seconds, left = device_memory_wait.wait(NOW, look=lambda _: answers.pop(0))
    assert (answers, left) == ([], [])
    assert seconds >= 0.4
    assert device_memory_wait.wait(NOW, 0.3, lambda _: [7])[1] == [7]


def test_what_is_said_of_it():
    host = os.uname().nodename
    assert device_memory_wait.note_on("0.2") == device_memory_wait.note_on("") == ""
    told = f"the ranks on {host} have waited 3.2 s for memory of devices that an earlier attempt held"
    assert device_memory_wait.note_on("3.2") == told
    assert device_memory_wait.note_on("60.1 12 14").startswith(
        "after 60.1 s processes 12, 14 of an earlier attempt still hold"
    )
