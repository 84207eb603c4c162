"""A GPT that `ezpz submit --until-done` trains in many jobs of a real Slurm has the losses of one unbroken job."""

import json
import os
import sys
from pathlib import Path

import pytest

from ezpz.track import read_journal
from ezpz.track.goodput_account import read_spans
from ezpz.track.run_reader import open_run
from lab import process

pytest.importorskip("torch")
MATRIX = bool(os.environ.get("EZPZ_MATRIX"))
STEPS, EVERY = (3000, 500) if MATRIX else (800, 100)
MINUTES = int(os.environ.get("EZPZ_TEST_CHAIN_MINUTES", "15"))  # of each of the three jobs whose seconds are counted
# Slurm counts in minutes: so that a test need not wait for them, a job's shell tells launch of an earlier end.
EARLIER_END = """\
if [[ -n ${{SLURM_JOB_ID:-}} && -z ${{EARLIER_END:-}} ]]; then
  export EARLIER_END=yes SLURM_JOB_END_TIME=$(($(date +%s) + {seconds}))
fi
"""


def training(steps, every, evaluate):
    """Return the words of a small GPT that saves and evaluates every so many steps."""
    return [
        *("python3", str(Path(__file__).with_name("slow_gpt.py")), "--preset", "debug", "--resume", "auto"),
        *("--no_plots", "--train.dtype", "fp32", "--train.max_iters", str(steps), "--train.save_interval", str(every)),
        *("--train.eval_interval", str(evaluate), "--train.log_interval", "1", "--train.prompt", ""),
        *("--model.n_layer", "2", "--model.n_embd", "32", "--model.n_head", "2", "--model.block_size", "32"),
        *("--model.batch_size", "4", "--model.dropout", "0.1"),
    ]


def losses(run):
    """Return the loss of each step as exact text; of a step that was done twice, that of the last job."""
    return {row["m"]["step"]: float(row["m"]["loss"]).hex() for row in read_journal(run) if "loss" in row["m"]}


class Submitted:
    """A job, or a chain of jobs, that `ezpz submit` has queued in the lab's Slurm."""

    def __init__(self, slurm, env, folder, options, program):
        self.slurm, self.env, self.cwd = slurm, env, folder
        self.run = folder / "run"
        folder.mkdir()
        # --force: the lab's hosts share one disk, and the temporary folder is mostly on it
        line = ["ezpz", "submit", "--force", "-A", "none", "--nhosts", "1", "--json", *options, "--", "-n", "1"]
        done = self.call([*line, *program, "--outdir", str(self.run)])
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        self.folder, [self.job] = folder / told["folder"], told["jobs"]

    def call(self, words):
        words = [sys.executable, "-m", "ezpz", *words[1:]]
        return self.slurm.run(words, self.env, cwd=self.cwd, timeout=120)

    def queued(self):
        return self.slurm.run(["squeue", "--noheader", "--format=%i %T %r"]).stdout.split("\n")[:-1]

    def words(self):
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.out")))

    def until_idle(self, timeout):
        try:
            process.wait_until(lambda: not self.queued(), timeout, "the end of all jobs", every=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.queued()}\n{self.words()}") from None

    def chain(self, name):
        return json.loads((self.folder / name).read_text())

    def goodput(self, *names):
        done = self.call(["ezpz", "runs", "--goodput", "--json", *map(str, names)])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def submit(slurm, clean_env, tmp_path):
    """`submit(name, *options, ends_after=None, program=None)` -> Submitted; what is queued goes after the test."""
    slurm.wait_idle(60)

    def make(name, *options, ends_after=None, program=None):
        env = {**clean_env, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
        if ends_after is not None:
            path = tmp_path / f"{name}.sh"
            path.write_text(EARLIER_END.format(seconds=round(ends_after)))
            env["BASH_ENV"] = str(path)
        program = program or training(STEPS, EVERY, STEPS // 4)
        return Submitted(slurm, env, tmp_path / name, options, program)

    yield make
    slurm.run(["scancel", "--user=root"])
    slurm.wait_idle(60)


@pytest.mark.timeout(1800)
def test_many_jobs_train_as_one_and_every_second_is_accounted_for(submit, capsys):
    whole = submit("whole", "--time", "30m")
    whole.until_idle(900)
    rows = read_journal(whole.run)
    assert {*losses(whole.run)} == {*range(STEPS)}, whole.words()
    granted = whole.goodput(whole.run)
    stepping = rows[-1]["t"] - rows[0]["t"]
    start = granted["granted_seconds"] - stepping

    # However much slower or faster the machine has become, a job trains for a while, and not to the end.
    ends_after = None if MATRIX else 1.5 * start + 8
    chain = submit("chain", "--until-done", "--jobs", "8", "--time", "1m" if MATRIX else "10m", ends_after=ends_after)
    chain.until_idle(900)
    jobs, words = chain.chain("jobs.json")["jobs"], chain.words()
    assert 2 <= len(jobs) <= 8, words
    assert [job["verdict"] for job in jobs] == ["again"] * (len(jobs) - 1) + ["done"], words
    assert (chain.folder / "verdict").read_text() == "done\n"
    assert losses(chain.run) == losses(whole.run), words

    listed = json.loads(chain.call(["ezpz", "runs", "--json", str(chain.cwd)]).stdout)
    assert [run["state"] for run in listed] == ["finished"], listed
    stands = {"job": len(jobs), "jobs": 8, "waiting": [], "verdict": "done", "folder": str(chain.folder)}
    assert listed[0]["chain"] == stands
    assert f"    chain: job {len(jobs)} of at most 8; done\n" in chain.call(["ezpz", "runs", str(chain.cwd)]).stdout
    for record in (chain.cwd.parent / "state" / "ezpz" / "launches").glob("*/run.json"):
        fields = json.loads(record.read_text())
        if fields.get("chain"):  # what a job does before its launch is granted, too
            assert fields["started"] - 60 < fields["job_started"] <= fields["started"]
    made = chain.goodput(chain.folder)
    assert made == chain.goodput(chain.run)
    shares = {row["name"]: row["share"] for row in made["rows"]}
    with capsys.disabled():
        print(f"\n{len(jobs)} jobs:", json.dumps(made, indent=1))
    assert abs(sum(shares.values()) - 1) < 0.005, made
    assert abs(shares["unexplained"]) <= 0.02, made
    assert made["jobs"] == made["attempts"] == len(jobs)
    assert made["failures"] == made["repeated_steps"] == 0, made
    assert made["steps"] == STEPS


@pytest.mark.timeout(300)
def test_a_chain_is_told_while_it_trains_and_a_file_in_its_run_folder_stops_it(submit):
    chain = submit("chain", "--until-done", "--jobs", "8", "--time", "10m")
    journal = chain.run / "metrics.jsonl"
    process.wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 20, 120, "some steps")
    assert len(chain.queued()) == 2
    made = chain.goodput(chain.folder)  # no job has told its run folder yet
    assert made["running"]
    assert made["folders"] == [str(chain.run)]
    [waiting] = chain.chain("jobs.json")["waiting"]
    shown = chain.call(["ezpz", "runs", str(chain.cwd)]).stdout
    assert f"    chain: job 1 of at most 8, next {waiting} queued\n" in shown
    (chain.run / "STOP").touch()
    chain.until_idle(120)
    assert (chain.folder / "verdict").read_text() == "stop: it was asked to save and to end\n", chain.words()
    assert len(chain.chain("jobs.json")["jobs"]) == 1
    [run] = json.loads(chain.call(["ezpz", "runs", "--json", str(chain.cwd)]).stdout)
    assert run["state"] == "stopped"
    assert (chain.run / "checkpoints" / f"step-{run['last_step'] + 1:08}").is_dir()
    assert "start it again" not in chain.words()


@pytest.mark.skipif(not MATRIX, reason="three jobs of a quarter of an hour: make matrix")
@pytest.mark.timeout(3 * 60 * MINUTES + 900)
def test_of_three_longer_jobs_most_seconds_are_in_steps_or_saves(submit, capsys, monkeypatch, tmp_path):
    """From the start of the first rank to the end of the job; the share is 92 % of jobs of 15 minutes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = training(10**7, 1000, 10**7)
    chain = submit("chain", "--until-done", "--jobs", "3", "--time", f"{MINUTES}m", program=program)
    chain.until_idle(3 * 60 * MINUTES + 600)
    jobs, words = chain.chain("jobs.json")["jobs"], chain.words()
    assert [job["verdict"] for job in jobs] == ["again", "again", "stop: all 3 jobs of the chain have run"], words
    spans = read_spans(open_run(chain.run))
    assert len(spans) == 3
    used = whole = 0.0
    for job, span in zip(jobs, spans, strict=True):
        each = sum(span.took) + sum(span.saved), job["ended"] - span.born
        with capsys.disabled():
            print(f"\njob {job['job']}: {each[0]:.1f} of {each[1]:.1f} s in {len(span.steps)} steps and their saves")
        used, whole = used + each[0], whole + each[1]
    with capsys.disabled():
        print(f"{used / whole:.1%} of {whole:.0f} s; load {os.getloadavg()[2]:.0f}")
        print(json.dumps(chain.goodput(chain.folder), indent=1))
    if MINUTES >= 15:
        assert used / whole >= 0.92
