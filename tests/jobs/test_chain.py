"""Chains of jobs: what starts the next one, what stops it, and that two never write to one run."""

import contextlib
import json
import os
import random
import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from ezpz.jobs import job_chain as chains
from lab import process
from lab.small_pbs import SmallPbs

pytestmark = pytest.mark.slow
CHAINED = Path(__file__).parents[1] / "launch" / "scripts" / "chained.py"
JOB = """\
#!/bin/bash
#PBS -l select=1
cd "$PBS_O_WORKDIR"
export EZPZ_CHAIN={chain} PYTHONPATH={src}
exec {python} -m ezpz.launch -n 1 -- {python} {program}
"""
SRC = Path(chains.__file__).parents[2]


class Chained:
    """A chain of jobs of `chained.py` under a `SmallPbs`."""

    def __init__(self, tmp_path, pbs, *, jobs=10, last=40, every=5, pause=0.1, bug=-1, ids=(), more=()):
        self.pbs, self.folder, self.run = pbs, tmp_path / "chain", tmp_path / "run"
        self.folder.mkdir(parents=True)
        words = [str(CHAINED), str(self.run), str(last), str(every), str(pause), str(bug), *more]
        self.file = self.folder / "job.pbs"
        self.file.write_text(JOB.format(chain=self.folder, src=SRC, python=sys.executable, program=shlex.join(words)))
        self.limits = {"file": "job.pbs", "ids": list(ids), "jobs": jobs, "queued_at_once": False, "hosts": 1}
        self.write_limits()
        self.last = last

    def write_limits(self):
        (self.folder / "chain.json").write_text(json.dumps(self.limits))

    def verdict(self):
        path = self.folder / "verdict"
        return path.read_text() if path.exists() else ""

    def rows(self):
        path = self.folder / "jobs.json"
        return json.loads(path.read_text())["jobs"] if path.exists() else []

    def submit(self):
        return self.pbs.submit(self.file)

    def log(self):
        path = self.run / "log"
        return path.read_text().splitlines() if path.exists() else []

    def saved(self):
        return [int(line.split()[1]) for line in self.log() if line.startswith("saved")]

    def words(self):
        """What all jobs have printed, for a message."""
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.pbs.folder.glob("*.out")))

    def until(self, condition, what, timeout=120):
        try:
            return process.wait_until(condition, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.pbs.states()}\n{self.verdict()}\n{self.words()}") from None

    def until_idle(self, timeout=120):
        self.until(self.pbs.is_idle, "the end of all jobs", timeout)

    def until_steps(self, number):
        before = len(self.saved())
        self.until(lambda: len(self.saved()) >= before + number or self.pbs.is_idle(), "more steps")

    @contextlib.contextmanager
    def held(self):
        """A job that trains saves once, and goes on when the context ends."""
        self.submit()
        self.until_steps(1)
        (self.run / "hold").touch()
        yield
        (self.run / "hold").unlink()
        self.until_idle()
        self.check()

    def check(self):
        """Nobody has written beside another, and every run went on from the newest that was saved."""
        assert not (self.run / "two").exists(), self.words()
        newest = 0
        for line in self.log():
            word, step = line.split()
            if word == "began":
                assert int(step) == newest, self.log()
            newest = int(step) if word == "saved" else newest
        for path in self.run.glob("*.json"):
            assert json.loads(path.read_text())["step"] == int(path.stem)


@pytest.fixture
def pbs(tmp_path):
    with SmallPbs(tmp_path) as small:
        yield small


def running(pbs):
    return next((job for job, state in pbs.states().items() if state == "R"), None)


def test_success_is_done_and_leaves_nothing_queued(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=20, pause=0.05)
    chain.submit()
    chain.until_idle()
    assert chain.verdict() == "done\n", chain.words()
    assert list(pbs.states()) == ["1.head", "2.head"]  # the second was queued when the first began
    assert ("2.head", "R") not in pbs.history
    assert [row["verdict"] for row in chain.rows()] == ["done"]
    assert "job 1 of at most 10" in chain.words()
    chain.check()


def test_a_bug_starts_no_further_job(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, bug=12, pause=0.05)
    chain.submit()
    chain.until_idle()
    assert chain.verdict().startswith("stop: rank 0"), chain.words()
    assert ("2.head", "R") not in pbs.history
    assert pbs.jobs()["1.head"]["Exit_status"] == 1


@pytest.mark.parametrize("how", ["qdel", "STOP"])
def test_cancelling_and_a_file_stop_the_chain(pbs, tmp_path, how):
    chain = Chained(tmp_path, pbs, last=400)
    job = chain.submit()
    chain.until_steps(1)
    if how == "STOP":
        (chain.folder / "STOP").touch()
        pbs.end(job, "preempt")  # which alone would be again
    else:
        pbs.end(job, "qdel")
    chain.until_idle()
    wanted = {"qdel": "stop: it was cancelled", "STOP": "stop: a file STOP"}
    assert chain.verdict().startswith(wanted[how]), chain.words()
    assert sum(line.startswith("began") for line in chain.log()) == 1
    chain.check()


@pytest.mark.parametrize("how", ["gently", "--now"])
def test_a_kill_stops_the_chain_and_leaves_nothing_queued(pbs, tmp_path, how):
    chain = Chained(tmp_path, pbs, last=4000)
    job = chain.submit()
    chain.until_steps(1)
    line = [sys.executable, "-m", "ezpz", "kill", job, *([how] if how == "--now" else [])]
    done = process.run(line, pbs.env(PYTHONPATH=str(SRC)))
    assert done.returncode == 0, done
    assert f"no further job of its chain trains: {chain.folder / 'STOP'} asks for it; remove it to go on" in done.stdout
    chain.until_idle()
    wanted = f"`ezpz kill` on {os.uname().nodename} has ended a job (remove STOP to go on)"
    assert chain.verdict() == f"stop: {wanted}\n", chain.words()
    assert ("2.head", "R") not in pbs.history  # the launch cancels it, also where its ranks are killed at once
    assert sum(line.startswith("began") for line in chain.log()) == 1
    chain.check()


def test_a_job_that_starts_and_finds_a_stop_ends_at_once(pbs, tmp_path):
    chain = Chained(tmp_path, pbs)
    (chain.folder / "verdict").write_text("stop: a bug\n")
    waiting = pbs.submit(chain.file, after=chain.submit())
    chain.limits["ids"] = ["1.head", waiting]
    chain.write_limits()
    chain.until_idle()
    assert pbs.jobs()["1.head"]["Exit_status"] == 0
    assert "stop: a bug; job 1.head ends without training" in chain.words()
    assert not chain.log()


def test_what_a_job_without_training_has_cancelled_waits_no_more(pbs, tmp_path):
    chain = Chained(tmp_path, pbs)
    (chain.folder / "verdict").write_text("done\n")
    rows = [{"job": "9.head", "restarts": 0, "verdict": "done"}]
    (chain.folder / "jobs.json").write_text(json.dumps({"jobs": rows, "waiting": ["2.head"]}))
    waiting = pbs.submit(chain.file, after=chain.submit())
    chain.until_idle()
    assert ("2.head", "R") not in pbs.history, waiting
    assert json.loads((chain.folder / "jobs.json").read_text()) == {"jobs": rows, "waiting": [], "queueing": False}


@pytest.mark.parametrize(("how", "found"), [("hangs", "STOP"), ("refuses", "done")])
def test_a_job_that_must_not_train_ends_soon_whatever_the_scheduler_does(pbs, tmp_path, how, found):
    chain = Chained(tmp_path, pbs, ids=[f"{number}.head" for number in range(90, 100)])
    (chain.folder / "jobs.json").write_text('{"jobs": [], "waiting": ["100.head"], "queueing": false}')
    (chain.folder / "STOP").touch() if found == "STOP" else (chain.folder / "verdict").write_text("done\n")
    does = "exec sleep 600" if how == "hangs" else "sleep 2; echo no >&2; exit 1"
    for name in ("qdel", "qstat"):
        (pbs.bins / name).write_text(f"#!/bin/bash\necho {name} >>{tmp_path}/calls\n{does}\n")
    pbs.submit(chain.file)
    chain.until_idle(60)
    assert pbs.jobs()["1.head"]["Exit_status"] == 0, chain.words()
    why = {"hangs": r"no answer of qdel within (5|4\.\d) s", "refuses": "not cancelled within 5 s|no"}[how]
    assert len(re.findall(rf"still waits \(({why})\)", chain.words())) == 11, chain.words()
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) <= (4 if how == "refuses" else 2), calls  # and not one for each job that waits
    assert not chain.log()


def test_a_job_that_died_before_its_launch_starts_nothing(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=400)
    first = chain.submit()
    chain.until_steps(1)
    process.kill_all(pbs.pids(first, "ezpz.launch"))  # no verdict, and the script goes on to its end
    chain.until_idle()
    assert chain.verdict().startswith("stop: it left no verdict"), chain.words()
    assert sum(line.startswith("began") for line in chain.log()) == 1
    chain.check()


@pytest.mark.parametrize("how", ["preempt", "wall", "host"])
def test_what_the_scheduler_did_is_followed(pbs, tmp_path, how):
    chain = Chained(tmp_path, pbs, last=60)
    job = chain.submit()
    chain.until_steps(4)  # a rank tells its step once per second, and saves twice in it
    pbs.end(job, how)
    chain.until_idle()
    if how == "host":  # no launch was left that could tell how far it came
        assert chain.verdict().startswith("stop: a host has failed"), chain.words()
    else:
        assert chain.verdict() == "done\n", chain.words()
        assert chain.saved()[-1] == 60
        assert len(chain.rows()) == 2
    chain.check()


@pytest.mark.parametrize(
    ("lacks", "how"),
    [("PATH", "preempt"), ("PATH", "qdel"), ("history", "preempt"), ("history", "qdel"), ("qstat", "preempt")],
)
def test_what_pbs_did_is_followed_as_far_as_it_tells(pbs, tmp_path, how, lacks):
    if lacks == "PATH":
        pbs.keep_off_path("qstat", "qdel")
    elif lacks == "history":
        pbs.keep_no_history()
    else:
        pbs.jobs_lack("qstat")
    chain = Chained(tmp_path, pbs, last=60)
    job = chain.submit()
    chain.until_steps(4)  # a rank tells its step once per second, and saves twice in it
    pbs.end(job, how)
    chain.until_idle()
    if how == "preempt" and lacks != "qstat":
        assert chain.verdict() == "done\n", chain.words()
        assert [row["job"] for row in chain.rows()] == [job, job]
    elif lacks == "PATH":
        assert chain.verdict() == "stop: it was cancelled\n", chain.words()
    else:
        words = "no qstat on PATH" if lacks == "qstat" else "qstat: Unknown Job Id 1.head"
        assert chain.verdict().startswith("stop: "), chain.words()
        assert f"the scheduler does not say why ({words}" in chain.verdict(), chain.words()
    chain.check()


def test_never_more_jobs_than_the_limit(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, jobs=2, last=4000)
    chain.submit()
    for _ in range(2):
        chain.until(lambda: running(pbs), "a job that runs")
        chain.until_steps(4)
        job = running(pbs)
        assert pbs.end(job, "wall")
        chain.until(lambda job=job: pbs.states()[job] == "F", "its end")
    chain.until_idle()
    assert chain.verdict() == "stop: all 2 jobs of the chain have run\n", chain.words()
    assert list(pbs.states()) == ["1.head", "2.head"]


def test_a_second_launch_beside_the_first_is_refused(pbs, tmp_path):
    chain = Chained(tmp_path, pbs)
    with chain.held():
        second = chain.submit()
        chain.until(lambda: pbs.states()[second] == "F", "the end of the second")
        assert pbs.jobs()[second]["Exit_status"] == 125, chain.words()
        assert "holds" in (pbs.folder / f"{second}.out").read_text()
    assert chain.verdict() == "done\n"


TORN = [
    ("jobs.json", '{"jobs": [{"job": "1.head", "resta'),
    ("jobs.json", ""),
    ("jobs.json", "[]"),
    ("jobs.json", '{"jobs": {"1": 2}}'),
    ("jobs.json", '{"jobs": [{"id": 7, "status": "ok"}]}'),
    ("chain.json", '{"file": "job.pbs", "jobs": "many"}'),
]


def test_files_of_a_chain_that_are_torn_or_foreign_start_nothing(pbs, tmp_path, subtests):
    for number, (name, text) in enumerate(TORN):
        with subtests.test(name, text=text):
            chain = Chained(tmp_path / str(number), pbs)
            (chain.folder / "verdict").write_text("again\n")
            (chain.folder / name).write_text(text)
            job = chain.submit()
            chain.until_idle()
            assert pbs.jobs()[job]["Exit_status"] == 2, chain.words()
            [line] = (pbs.folder / f"{job}.out").read_text().splitlines()
            start = f"ezpz: cannot read {chain.folder / name} (from EZPZ_CHAIN): it does not hold a "
            assert line.startswith(start), line
            assert len(pbs.states()) == number + 1
            assert not chain.log()
            assert (chain.folder / name).read_text() == text


def test_a_job_that_may_not_train_changes_no_row_of_the_one_that_does(pbs, tmp_path):
    chain = Chained(tmp_path, pbs)
    with chain.held():
        before = (chain.folder / "jobs.json").read_text()
        assert json.loads(before)["waiting"] == ["2.head"]
        (chain.folder / "verdict").write_text("stop: by hand\n")
        second = chain.submit()
        chain.until(lambda: pbs.states()[second] == "F", "the end of the second")
        assert "2.head" not in [job for job, state in pbs.states().items() if state != "F"]
        assert (chain.folder / "jobs.json").read_text() == before
    assert [row["verdict"] for row in chain.rows()] == ["done"]


def test_outside_of_a_job_a_chain_is_refused(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "FLUX_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Exception, match="is in no job of a scheduler"):
        chains.Chain({"EZPZ_CHAIN": str(tmp_path)})


def test_ranks_of_a_job_that_has_lost_its_lease_save_nothing_more(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=4000, more=["save-at-term"])
    job = chain.submit()
    chain.until_steps(1)
    (chain.folder / "lease-000002").write_text(json.dumps({"job": "another"}))
    chain.until(lambda: pbs.states()[job] == "F", "its end")
    assert pbs.jobs()[job]["Exit_status"] == 125, chain.words()
    assert "another job has taken it; killing all ranks" in chain.words()
    assert not any(line.startswith("asked") for line in chain.log()), chain.log()
    assert not chain.verdict()  # that is for the other to leave
    pbs.end(running(pbs) or "", "wall")


def test_a_job_whose_lease_is_renewed_no_more_ends(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=4000, more=["save-at-term"])
    job = chain.submit()
    chain.until_steps(1)
    process.kill_all(pbs.pids(job, f"{chain.folder}/lease-"))
    chain.until_idle()
    assert chain.verdict() == "stop: its lease was lost: the process that renews it was killed\n", chain.words()
    assert not any(line.startswith("asked") for line in chain.log()), chain.log()
    chain.check()


def _kill_at_random(pbs, tmp_path, kills, seed):
    """End running jobs in all ways at random moments; start the chain by hand where that stops it."""
    print(f"EZPZ_SEED={seed}")
    dice = random.Random(seed)
    chain = Chained(tmp_path, pbs, jobs=10 * kills + 10, last=100000, every=2, pause=0.05)
    chain.submit()
    for _ in range(kills):
        chain.until(lambda: running(pbs) or pbs.is_idle(), "a job that runs")
        if pbs.is_idle():  # as a person does who has looked why
            (chain.folder / "verdict").write_text("again\n")
            chain.submit()
            chain.until(lambda: running(pbs), "a job that runs")
        time.sleep(dice.uniform(0.0, 4.0))
        job, how = running(pbs), dice.choice(["preempt", "wall", "host", "qdel", "launch", "rank"])
        if how == "launch":
            process.kill_all(pbs.pids(job, "ezpz.launch")) if job else None
        elif how == "rank":
            process.kill_all(pbs.pids(job, CHAINED.name)) if job else None
        elif job:
            pbs.end(job, how)
        time.sleep(dice.uniform(0.0, 1.0))
    (chain.folder / "STOP").touch()
    for job in pbs.states():
        pbs.end(job, "wall")
    chain.until_idle(180)
    chain.check()
    assert len(chain.rows()) >= 1
    return chain


KILLS = int(os.environ.get("EZPZ_TEST_KILLS", "6"))


@pytest.mark.timeout(300 + 15 * KILLS)
def test_random_kills_make_no_second_writer_and_lose_no_checkpoint(pbs, tmp_path):
    _kill_at_random(pbs, tmp_path, KILLS, os.environ.get("EZPZ_SEED", "7"))
