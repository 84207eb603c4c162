"""Chains of jobs: what starts the next one, what stops it, and that two never write to one run."""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz.launch import chain as chains
from ezpz.launch import lease as leases
from lab import process
from lab.small_pbs import SmallPbs

CHAINED = Path(__file__).parent / "scripts" / "chained.py"
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_bug_starts_no_further_job(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, bug=12, pause=0.05)
    chain.submit()
    chain.until_idle()
    assert chain.verdict().startswith("stop: rank 0"), chain.words()
    assert ("2.head", "R") not in pbs.history
    assert pbs.jobs()["1.head"]["Exit_status"] == 1


@pytest.mark.slow
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


@pytest.mark.slow
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
    if how == "gently":
        assert chain.verdict() == f"stop: {wanted}\n", chain.words()
        assert ("2.head", "R") not in pbs.history
    else:  # no launch was left that could cancel the next job, which starts no rank
        assert f"stop: {wanted}; job 2.head ends without training" in chain.words()
    assert sum(line.startswith("began") for line in chain.log()) == 1
    chain.check()


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_a_job_without_training_has_cancelled_waits_no_more(pbs, tmp_path):
    chain = Chained(tmp_path, pbs)
    (chain.folder / "verdict").write_text("done\n")
    rows = [{"job": "9.head", "restarts": 0, "verdict": "done"}]
    (chain.folder / "jobs.json").write_text(json.dumps({"jobs": rows, "waiting": ["2.head"]}))
    waiting = pbs.submit(chain.file, after=chain.submit())
    chain.until_idle()
    assert ("2.head", "R") not in pbs.history, waiting
    assert json.loads((chain.folder / "jobs.json").read_text()) == {"jobs": rows, "waiting": [], "queueing": False}


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_job_that_died_before_its_launch_starts_nothing(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=400)
    first = chain.submit()
    chain.until_steps(1)
    process.kill_all(pbs.pids(first, "ezpz.launch"))  # no verdict, and the script goes on to its end
    chain.until_idle()
    assert chain.verdict().startswith("stop: it left no verdict"), chain.words()
    assert sum(line.startswith("began") for line in chain.log()) == 1
    chain.check()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        chains.Chain({"EZPZ_CHAIN": str(tmp_path)}, print)


# The lease alone


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
    second = leases.take(str(tmp_path), entry("2"), lambda held: held["job"] == "1")
    os.utime(second.path, (now, now - leases.VOID - 1))
    assert leases.take(str(tmp_path), entry("3"), lambda _: False).is_ours()
    assert not second.is_ours()


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
from ezpz.launch import lease
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
        return sorted(guards(self.folder))

    def says(self):
        return self.process.stdout.readline()


def guards(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(word.startswith(f"{folder}/lease-".encode()) for word in words):
                found.append(int(path.parent.name))
    return found


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


@pytest.mark.slow
def test_ranks_of_a_job_that_has_lost_its_lease_save_nothing_more(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=4000, more=["save-at-term"])
    job = chain.submit()
    chain.until_steps(1)
    (chain.folder / "lease-000002").write_text(json.dumps(entry("another")))
    chain.until(lambda: pbs.states()[job] == "F", "its end")
    assert pbs.jobs()[job]["Exit_status"] == 125, chain.words()
    assert "another job has taken it; killing all ranks" in chain.words()
    assert not any(line.startswith("asked") for line in chain.log()), chain.log()
    assert not chain.verdict()  # that is for the other to leave
    pbs.end(running(pbs) or "", "wall")


@pytest.mark.slow
def test_a_job_whose_lease_is_renewed_no_more_ends(pbs, tmp_path):
    chain = Chained(tmp_path, pbs, last=4000, more=["save-at-term"])
    chain.submit()
    chain.until_steps(1)
    process.kill_all(guards(chain.folder))
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


@pytest.mark.slow
@pytest.mark.timeout(300 + 15 * KILLS)
def test_random_kills_make_no_second_writer_and_lose_no_checkpoint(pbs, tmp_path):
    _kill_at_random(pbs, tmp_path, KILLS, os.environ.get("EZPZ_SEED", "7"))
