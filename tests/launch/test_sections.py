"""Sections: inside one a rank may be without a heartbeat for as long as its timeout says."""

from __future__ import annotations

import sys

import pytest

from ezpz.launch import agent_messages
from ezpz.launch.host.rank_process import RankProcess
from ezpz.watch.progress import host
from ezpz.watch.progress.host import ProgressOfHost
from lab.agents import settings
from lab.watching import HostHandleOfTests, watch_all

watch_all()

IDLE = 100.0


class Rank:
    """One rank that speaks to what watches its progress; `idle_after(s)` is what is reported after s seconds."""

    def __init__(self, **more):
        self.process = RankProcess(0, pid=1)
        self.handle = HostHandleOfTests({0: self.process}, settings(**{"idle": IDLE, **more}))
        self.progress = ProgressOfHost(self.handle)

    def say(self, *lines):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "time", self.handle)
            for line in lines:
                self.progress.hear(self.process, agent_messages.FROM_RANKS.decode(line.encode()))

    def hang_up(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "time", self.handle)
            self.progress.hung_up(None, self.process, 1)

    def idle_after(self, seconds):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "time", self.handle)
            return [(each.section, each.limit) for each in self.handle.pass_time(seconds)]


@pytest.fixture
def rank():
    return Rank()


def test_the_limit_is_that_of_the_section(subtests):
    for line, limit in (
        ("section 600 0 checkpoint", 600.0),
        ("section 10 0 checkpoint", 10.0),  # shorter than the idle limit
        ("section 10 1 checkpoint", IDLE),  # a trainer's shortens nothing
        ("section 600 1 checkpoint", 600.0),
    ):
        with subtests.test(line):
            rank = Rank()
            rank.say("beat", line)
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
        assert own.idle_after(1e5) == []


@pytest.mark.parametrize("idle", [2.0, 4.5, IDLE])
@pytest.mark.parametrize("before", [0.0, 0.4])
def test_no_time_counts_in_which_the_host_stood_still(idle, before):
    """Nor is a rank idle at the first look after that: what ranks have said meanwhile is read later."""
    rank = Rank(idle=idle)
    rank.say("beat")
    rank.handle.stand_still(before)
    rank.say("at 1")
    rank.handle.stand_still(10 * idle)
    assert rank.idle_after(idle - before - 0.1) == []
    rank.say("beat")
    assert rank.idle_after(idle - 0.1) == []
    assert rank.idle_after(idle + 0.1) == [("", idle)]


def test_after_the_section_the_idle_limit_counts_again(rank):
    rank.say("beat", "section 600 0 checkpoint", "section 0 0 ")
    assert rank.idle_after(IDLE - 5) == []
    assert rank.idle_after(IDLE + 1) == [("", IDLE)]


def test_a_rank_that_never_beat_is_watched_in_a_section_only(rank):
    rank.say("section 50 0 load", "section 0 0 ")
    assert rank.idle_after(1e5) == []
    rank.say("section 50 0 load")
    assert rank.idle_after(51) == [("load", 50.0)]
    rank.say("beat", "section 0 0 ")
    assert rank.idle_after(IDLE + 1) == [("", IDLE)]


def test_a_program_that_has_ended_has_a_limit_of_its_own(rank):
    rank.say("ending 300")
    assert rank.idle_after(1e5) == []  # it never beat
    rank.say("beat", "section 600 0 load", "ending 300")
    assert rank.idle_after(299) == []
    assert rank.idle_after(301) == [("", 300.0)]
    rank.say("section 20 0 clean up")
    assert rank.idle_after(21) == [("clean up", 20.0)]


def test_a_connection_that_ends_ends_the_section(rank):
    rank.say("beat", "section 0 0 endless")
    rank.hang_up()
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
