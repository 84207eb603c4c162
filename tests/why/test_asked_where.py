"""Ranks of plain scripts that are asked where they are, because another one has waited for them in vain."""

import shutil
import sys
from pathlib import Path

import pytest

from ezpz.watch.collectives.launcher import Collectives
from ezpz.watch.collectives.messages import CollectivesTold, RankCollectives

GAVE_UP = "wait timeout after 4000ms, keys: /default_pg/0//cpu//0/1"
PROGRAM = """
import os, pathlib, signal, sys, time

class DistStoreError(RuntimeError):
    pass

def meet():
    {gives_up}

def save():
    {first}
    pathlib.Path("up").touch()
    time.sleep(100)

def at_term(*_):
    pathlib.Path("saved").touch()
    sys.exit(0)

if os.environ["RANK"] == "1":
    save()
while not pathlib.Path("up").exists():
    time.sleep(0.02)
meet()
"""
FILES_IN_PROC = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
HAS_PY_SPY = bool(shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent)))


def told(rank, host, **more):
    given = {"answered": False, "silent": False, "ended": False, "raised": "", "state": "S", "where": "futex",
             "cpu": 1.0, "step": -1, "frames": [], "groups": [], "entries": [], **more}  # fmt: skip
    return RankCollectives(rank=rank, pid=rank + 10, **given), host


def test_few_ranks_are_asked_first_those_that_stand_out():
    known = Collectives()
    number = known.begin(0.0).id
    ranks = [told(rank, f"n{rank // 32:02}") for rank in range(32 * 12)]
    ranks[40], ranks[70] = told(40, "n01", where="nfs_wait"), told(70, "n02", state="R", where="")
    ranks[90] = told(90, "n02", frames=[("save", "train.py", 7)], answered=True)
    ranks[91] = told(91, "n02", state="")
    for index in range(12):
        here = [rank for rank, host in ranks if host == f"n{index:02}"]
        known.answered(index, f"n{index:02}", CollectivesTold(id=number, host="", ranks=here))
    chosen = known.unplaced({300})
    assert chosen[:3] == [300, 40, 70]
    assert len(chosen) == 64
    assert not {90, 91} & {*chosen}
    assert max(sum(rank // 32 == host for rank in chosen) for host in range(12)) == 8


def of(tmp_path, *, gives_up=f'raise DistStoreError("{GAVE_UP}")', first="pass"):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(gives_up=gives_up, first=first))
    return [sys.executable, str(path)]


@FILES_IN_PROC
@pytest.mark.slow
def test_a_rank_for_which_others_wait_is_named_by_its_line(ended, tmp_path):
    it = ended(of(tmp_path))
    assert it.code == 1
    said = "rank 1 is in save (train.py:13), and never came to meet (train.py:8): rank 0 waits for it"
    assert it.err.rstrip().endswith(said)
    assert it.causes[0]["rank"] == 1
    assert "ended of the signal" not in it.err


@FILES_IN_PROC
@pytest.mark.slow
def test_a_rank_that_saves_at_its_sigterm_is_let_save(ended, tmp_path):
    it = ended(of(tmp_path, first="signal.signal(signal.SIGTERM, at_term)"))
    assert it.code == 1
    assert (tmp_path / "saved").exists()


@FILES_IN_PROC
@pytest.mark.slow
@pytest.mark.skipif(HAS_PY_SPY, reason="py-spy sees where it is, and ends nothing")
def test_a_rank_that_writes_a_file_is_not_aborted(ended, tmp_path):
    it = ended(of(tmp_path, first="file = open('checkpoint.pt', 'wb', 0); file.write(b'weights')"))
    assert it.code == 1
    assert "rank 0 waited 4 s for rank 1 in meet (train.py:8) in vain; rank 1 still ran" in it.err


@FILES_IN_PROC
@pytest.mark.slow
def test_nobody_is_asked_where_no_rank_says_that_it_waited(ended, tmp_path):
    it = ended(of(tmp_path, gives_up="raise ValueError('no such shard')"))
    assert it.code == 1
    assert "save (train.py" not in it.err


WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=9000) ran"
)


@FILES_IN_PROC
@pytest.mark.slow
def test_an_abort_by_the_watchdog_of_nccl_is_a_wait(ended, tmp_path):
    it = ended(of(tmp_path, gives_up=f"print('{WATCHDOG}', file=sys.stderr); os.abort()"))
    assert it.code == 128 + 6
    assert it.causes[0]["text"].startswith("rank 1 is in save (train.py:13), and never came to meet (train.py:8)")
    assert it.err.count(WATCHDOG) == 1


@FILES_IN_PROC
@pytest.mark.slow
def test_a_rank_that_has_raised_and_is_slow_to_end_is_where_it_raised(ended, tmp_path):
    path = tmp_path / "train.py"
    first = "threading.Thread(target=time.sleep, args=(60,)).start(); load()"
    program = PROGRAM.format(gives_up=f"time.sleep(1); raise DistStoreError('{GAVE_UP}')", first=first)
    load = "def load():\n    pathlib.Path('up').touch()\n    raise ValueError('no such shard')\n\n"
    path.write_text(program.replace("def at_term", f"{load}def at_term").replace("sys, time", "sys, threading, time"))
    said = "rank 1 raised ValueError: no such shard (train.py:17) and has not ended yet, and never came to meet (train"
    assert ended([sys.executable, str(path)]).causes[0]["text"].startswith(said)
