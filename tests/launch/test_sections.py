"""Sections: inside one a rank may be without a heartbeat for as long as its timeout says."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import closing

import pytest

from ezpz.launch import messages
from ezpz.launch.host.progress import Progress
from ezpz.launch.host.rank_process import RankProcess
from lab.agents import settings

IDLE = 100.0


class Rank:
    """One rank that speaks to what its agent knows of it; `idle_after(s)` is what is reported after s seconds."""

    def __init__(self, **more):
        self.process = RankProcess(0, pid=1)
        self.progress = Progress({0: self.process}, settings(**{"idle": IDLE, **more}), 0.0)
        self.connection, self.other = socket.socketpair()
        self.say("rank 0 1")

    def say(self, *lines):
        for line in lines:
            assert self.progress.hear(self.connection, messages.FROM_RANKS.decode(line.encode()))

    def idle_after(self, seconds):
        told = self.progress.tick(time.monotonic() + seconds, 1)
        return [(each.section, each.limit) for each in told if isinstance(each, messages.Idle)]

    def close(self):
        self.connection.close()
        self.other.close()


@pytest.fixture
def rank():
    value = Rank()
    yield value
    value.close()


def test_the_limit_is_that_of_the_section(subtests):
    for line, limit in (
        ("section 600 0 checkpoint", 600.0),
        ("section 10 0 checkpoint", 10.0),  # shorter than the idle limit
        ("section 10 1 checkpoint", IDLE),  # a trainer's shortens nothing
        ("section 600 1 checkpoint", 600.0),
    ):
        with subtests.test(line), closing(Rank()) as rank:
            rank.say("beat", line)
            assert rank.progress.due() <= time.monotonic() + max(limit, 0.3)
            assert rank.idle_after(limit - 5) == []
            assert rank.idle_after(limit + 1) == [("checkpoint", limit)]
            assert rank.idle_after(limit + 2) == []  # once is enough


def test_without_a_limit_none_counts(rank):
    for own, line in (
        (rank, "section 0 0 endless"),
        (rank, "section 0 1 endless"),
        (Rank(idle=None), "section 5 0 save"),
    ):
        own.say("beat", line)
        assert own.idle_after(1e9) == []
    own.close()


def test_after_the_section_the_idle_limit_counts_again(rank):
    rank.say("beat", "section 600 0 checkpoint", "section 0 0 ")
    assert rank.idle_after(IDLE - 5) == []
    assert rank.idle_after(IDLE + 1) == [("", IDLE)]


def test_a_rank_that_never_beat_is_watched_in_a_section_only(rank):
    rank.say("section 50 0 load", "section 0 0 ")
    assert rank.idle_after(1e9) == []
    rank.say("section 50 0 load")
    assert rank.idle_after(51) == [("load", 50.0)]
    rank.say("beat", "section 0 0 ")
    assert rank.idle_after(IDLE + 1) == [("", IDLE)]


def test_a_program_that_has_ended_has_a_limit_of_its_own(rank):
    rank.say("ending 300")
    assert rank.idle_after(1e9) == []  # it never beat
    rank.say("beat", "section 600 0 load", "ending 300")
    assert rank.idle_after(299) == []
    assert rank.idle_after(301) == [("", 300.0)]
    rank.say("section 20 0 clean up")
    assert rank.idle_after(21) == [("clean up", 20.0)]


def test_a_connection_that_ends_ends_the_section(rank):
    rank.say("beat", "section 0 0 endless")
    rank.progress.hung_up(rank.connection)
    assert rank.idle_after(IDLE + 1) == [("", IDLE)]


SCRIPT = """
import os, time
import ezpz
ezpz.heartbeat(3)
with ezpz.section("checkpoint", timeout="1h"):
    time.sleep(4)
print("saved", flush=True)
with ezpz.section("evaluation", timeout="1m"):
    ezpz.heartbeat()
    if os.environ["RANK"] == "1":
        with ezpz.section("reading the data", timeout="1s"):
            time.sleep(600)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_line_of_a_run_that_hangs_names_the_section(run_cli, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--idle-timeout", "3", sys.executable, "script.py"]
    done = run_cli(line, timeout=90)
    assert done.stdout.split() == ["saved", "saved"], done.stderr
    assert done.returncode == 124
    assert "ezpz: rank 1 on host " in done.stderr
    assert "has shown no progress for 1 second in section reading the data; asking every rank" in done.stderr
