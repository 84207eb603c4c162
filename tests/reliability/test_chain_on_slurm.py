"""A chain of real Slurm jobs: the loss curve of many jobs is that of one, and what stops it leaves nothing queued."""

import json
import shlex
import sys
from pathlib import Path

import ezpz
from lab import process

SRC = Path(ezpz.__file__).parents[1]
JOB = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=1
cd "$SLURM_SUBMIT_DIR"
export EZPZ_CHAIN={chain} PYTHONPATH={src} HOME={home} OMP_NUM_THREADS=1
exec {python} -m ezpz.launch -n 1 --flavour local -- {command}
"""


class SlurmChain:
    """A chain of jobs of a command in the lab's Slurm."""

    def __init__(self, slurm, folder, command, *, jobs=10, home=None):
        self.slurm, self.folder = slurm, folder
        folder.mkdir(parents=True)
        self.file = folder / "job.slurm"
        text = JOB.format(
            chain=folder, src=SRC, home=home or folder, python=sys.executable, command=shlex.join(map(str, command))
        )
        self.file.write_text(text)
        limits = {"file": "job.slurm", "ids": [], "jobs": jobs, "queued_at_once": False}
        (folder / "chain.json").write_text(json.dumps(limits))

    def submit(self):
        line = ["sbatch", "--parsable", "--chdir", str(self.folder), str(self.file)]
        done = self.slurm.run(line, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def verdict(self):
        path = self.folder / "verdict"
        return path.read_text() if path.exists() else ""

    def rows(self):
        path = self.folder / "jobs.json"
        return json.loads(path.read_text())["jobs"] if path.exists() else []

    def queued(self):
        return self.slurm.run(["squeue", "--noheader", "--format=%i %T"]).stdout.split("\n")[:-1]

    def words(self):
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("slurm-*.out")))

    def until(self, condition, what, timeout):
        try:
            return process.wait_until(condition, timeout, what, every=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.queued()}\n{self.verdict()}\n{self.words()}") from None

    def until_idle(self, timeout=600):
        self.until(lambda: not self.queued(), "the end of all jobs", timeout)


def training(program, *words):
    """A program's words in a shell that is given no job of its own."""
    return [sys.executable, str(program), *map(str, words)]


CHAINED = Path(__file__).parents[1] / "launch" / "scripts" / "chained.py"


def test_scancel_a_file_and_a_kill_from_another_host_leave_nothing_queued(slurm, clean_env, tmp_path):
    wanted = {"scancel": "stop: it was cancelled", "STOP": "stop: a file STOP", "kill": "stop: `ezpz kill` on "}
    for how, verdict in wanted.items():
        run = tmp_path / f"run-{how}"
        chain = SlurmChain(slurm, tmp_path / how, training(CHAINED, run, 4000, 2, 0.1, -1))
        job = chain.submit()
        chain.until(lambda run=run: (run / "000004.json").exists(), "some steps", 120)
        assert len(chain.queued()) == 2, chain.queued()
        if how == "STOP":
            (chain.folder / "STOP").touch()
        if how == "kill":
            environ = {**clean_env, "HOME": str(chain.folder), "PYTHONPATH": str(SRC)}
            done = slurm.run([sys.executable, "-m", "ezpz", "kill", job], environ, cwd=tmp_path, timeout=120)
            assert done.returncode == 0, (done, chain.words())
        else:
            slurm.run(["scancel", job])
        chain.until_idle(120)
        assert chain.verdict().startswith(verdict), chain.words()
        assert (run / "log").read_text().count("began") == 1
    slurm.wait_idle(40)


def test_a_bug_starts_no_further_job(slurm, tmp_path):
    chain = SlurmChain(slurm, tmp_path / "chain", training(CHAINED, tmp_path / "run", 4000, 2, 0.05, 9))
    chain.submit()
    chain.until_idle(120)
    assert chain.verdict().startswith("stop: rank 0"), chain.words()
    assert (tmp_path / "run" / "log").read_text().count("began") == 1
    slurm.wait_idle(40)
