"""How a Slurm job ends before its training does, or nearly so: the rows of `test_slurm_endings.py`, and a job of one.

The cluster follows processes by control groups and has Slurm's own KillWait, as most have. Its clock of limits ticks
every 30 s: a job of one minute is ended 60 to 90 s after its start, and a signal that is asked for N s before the end
comes N to N + 30 s before it.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import process
from lab.checkout import ROOT
from lab.flavours import Flavour, base_bin

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
UTILS = ROOT / "src" / "ezpz" / "bin" / "utils.sh"
PROGRAMS = {"fsdp_tp": "ending_trainer.py", "plain": "ending_plain.py"}  # as their columns are called
TRAINER = ["--preset", "debug", "--n_layers", "1", "--seq_len", "32", "--batch_size", "4", "--eval_samples", "4"]
FOR_EVER = 10**6  # steps
RECORDED = 20  # rows; then the training is under way
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}


class NotStaged(Exception):  # noqa: N818  # a finding about the stage, not about what is tested
    """What was to happen did not: on a busy machine a minute may be over before the first step."""


@dataclass(frozen=True)
class Way:
    """How a job's script starts its ranks.

    Attributes:
        hosts: Of the job; two ranks in all.
        line: The script, with the launch's options and the ranks' program to be filled in.
        flavour: The lab's MPI whose environment the job has; "" without one.
    """

    hosts: int
    line: str
    flavour: str = ""


WAYS = {
    "utils.sh": Way(1, f"source {UTILS}\nset -euo pipefail\nlaunch --flavour local {{}}"),
    "srun": Way(2, "exec {python} -m ezpz.launch --flavour srun {}"),
    "mpich": Way(2, "exec {python} -m ezpz.launch --flavour mpich {}", "mpich"),
    "openmpi": Way(2, "exec {python} -m ezpz.launch --flavour openmpi5 {}", "openmpi"),
}
BY_SRUN = ("srun",)  # a signal to the steps alone reaches the ranks of srun, and of no other launcher


@dataclass(frozen=True)
class Ending:
    """A row of the table.

    Attributes:
        name: What happens to the job.
        stage: Makes it happen.
        state: What Slurm says of the job then; any of them.
        repetitions: In `make matrix`, each.
        options: Of sbatch.
        ways: The ways to start ranks, taken in turn.
        finishes: The training is to end by itself, complete, instead of by SIGTERM.
        saves: Checkpoints that the trainer must have written at least.
        compiles: The program waits, as if it compiled, until `Job.go_on`.
        alone: Two such jobs would be in each other's way.
    """

    name: str
    stage: Callable[[Job], None]
    state: tuple[str, ...]
    repetitions: int = 5
    options: tuple[str, ...] = ("--time=10",)
    ways: tuple[str, ...] = tuple(WAYS)
    finishes: bool = False
    saves: int = 1
    compiles: bool = False
    alone: bool = False

    def cells(self, program):
        """The names in the results of each of its jobs with this program."""
        return [f"{self.name} / {program} / {number}" for number in range(self.repetitions)]


class Job:
    """One job: submitted, brought to its end, and then what it has left behind.

    Attributes:
        program, ending, way: What it is.
        folder, out: Where all of it lies, and the run folder in there.
        steps: That the program is asked for.
        ended: What Slurm said of it at its end; "" before.
    """

    def __init__(self, slurm, folder, program, ending, way):
        self.slurm, self.folder, self.program, self.ending = slurm, folder, program, ending
        self.way, self.out, self.printed = WAYS[way], folder / "run", folder / "output.txt"
        self.steps, self.ended = 200 if ending.finishes else FOR_EVER, ""
        self._tag = f"ezt-{uuid.uuid4().hex[:12]}"

    def run(self):
        """Submit it, let it end, and wait until nothing of it is left."""
        home = self.folder / "home"
        home.mkdir(parents=True)
        flavour = Flavour(self.way.flavour, home, self._tag) if self.way.flavour else None
        env = flavour.env() if flavour else process.minimal_env(home, self._tag, base_bin())
        env |= {"TORCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
        hosts = self.way.hosts
        placed = [f"-N{hosts}", f"--ntasks-per-node={2 // hosts}", "--requeue", "--open-mode=append"]
        line = ["sbatch", "--parsable", *placed, f"--output={self.printed}", f"--chdir={self.folder}"]
        python = str(flavour.python if flavour else base_bin() / "python3")
        script = f"#!/bin/bash\n{self.way.line.format(self._words(python), python=python)}\n"
        done = self.slurm.run([*line, *self.ending.options], env, stdin=script)
        done.check_returncode()
        self.number = done.stdout.strip()
        try:
            self.ending.stage(self)
            self.wait_over()
            self.ended = self.state()  # Slurm forgets it after 5 minutes
            self._wait_gone()
        finally:
            self.slurm.run(["scancel", self.number])
            process.kill_all(process.survivors(self._tag))

    def _words(self, python):
        """The options of launch, and what each rank runs."""
        go = self.folder / "go" if self.ending.compiles else self.folder
        launch = ["-n", "2", "--log-dir", self.folder / "launch", python, HERE / PROGRAMS[self.program], go]
        own = [self.out, self.steps]
        if self.program == "fsdp_tp":
            own = [*TRAINER, "--max_iters", self.steps, "--resume", "auto", "--outdir", self.out, "--no_plots"]
        return shlex.join(map(str, [*launch, *own]))

    # What a stage does.

    def go_on(self):
        """Let the program end its compilation."""
        (self.folder / "go").touch()

    def wait_recorded(self):
        """Wait until the training is under way."""
        self._wait(lambda: self.rows() >= RECORDED, 120, "its steps")

    def wait_said(self, text):
        """Wait until the job has printed this."""
        self._wait(lambda: text in self.said(), 110, text)

    def wait_over(self):
        """Wait until Slurm counts the job as over."""
        process.wait_until(lambda: self.state() in OVER, 620, f"the end of job {self.number}\n{self.told()}", every=1)

    def wait_saved(self):
        """Wait until the trainer has written a checkpoint; the plain script has no handler to wait for."""
        if self.program == "fsdp_tp":
            self._wait(lambda: any(self.out.glob("checkpoints/step-*")), 30, "a checkpoint")

    def signal(self, *options):
        """Run scancel on the job."""
        self.slurm.run(["scancel", *options, self.number]).check_returncode()

    def signal_ranks(self):
        """Send SIGUSR2 as a user does: to the steps where these are the ranks, else to the script."""
        self.signal(*([] if self.way is WAYS["srun"] else ["--batch"]), "--signal=USR2")

    def requeue(self):
        """Requeue the job."""
        self.slurm.run(["scontrol", "requeue", self.number]).check_returncode()

    def preempt(self):
        """Let a job of higher priority take both hosts for a moment."""
        words = ["sbatch", "--parsable", "--partition=urgent", "-N2", "--exclusive", "--output=/dev/null"]
        done = self.slurm.run(words, stdin="#!/bin/sh\nsleep 1\n")
        done.check_returncode()
        other = done.stdout.strip()
        try:
            process.wait_until(lambda: self.state(other) in OVER, 90, "the end of the job that preempts", every=0.5)
        finally:
            self.slurm.run(["scancel", other])

    def wait_back(self):
        """Wait until the job runs again; Slurm would wait two minutes with that, if it were not asked."""
        deadline = time.monotonic() + 90
        while not (self._told_of().get("Restarts") == "1" and self.state() in OVER | {"RUNNING"}):
            if time.monotonic() > deadline:
                raise AssertionError(f"job {self.number} was not started again\n{self.told()}")
            if self.state() == "PENDING":
                self.slurm.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now"])
            time.sleep(0.5)

    # What is known of it.

    def rows(self):
        """Return how many rows the journal has; 0 without one."""
        journal = self.out / "metrics.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def said(self):
        """Return what the job has printed."""
        return self.printed.read_text(errors="replace") if self.printed.exists() else ""

    def state(self, number=None):
        """Return what Slurm says of the job: ``RUNNING``."""
        return self._told_of(number).get("JobState", "")

    def launch(self):
        """Return the record of the launch: of the last one, where the job came back."""
        return json.loads((self.folder / "launch" / "run.json").read_text())

    def told(self):
        """Return all that helps to understand a failure."""
        found = sorted(str(path.relative_to(self.out)) for path in self.out.glob("**/*"))
        return f"job {self.number} in {self.folder}: {self._told_of()}\n{found}\n{self.said()[-6000:]}"

    def _told_of(self, number=None):
        done = self.slurm.run(["scontrol", "--oneliner", "show", "job", number or self.number], timeout=20)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def _wait(self, condition, seconds, what):
        """Wait for what must come while the job runs; when it ends before, the stage was not set."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.state() in OVER:
                raise NotStaged(f"the job was over before {what} came\n{self.told()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s without {what}\n{self.told()}")
            time.sleep(0.5)

    def _wait_gone(self):
        """A job counts as over while its processes still use the time that Slurm leaves them."""
        left = {}

        def gone():
            left.clear()
            left.update(process.survivors(self._tag))
            return not left

        process.wait_until(gone, 60, f"the end of all processes of job {self.number}: {left}", every=0.5)


def end_by_limit(job):
    """Let the job's time be over; the training has begun."""
    job.wait_recorded()
    job.wait_over()


def cancel(job):
    job.wait_recorded()
    job.signal()


def send_usr2(job):
    job.wait_recorded()
    job.signal_ranks()
    job.wait_saved()


def warn_early(job):
    """Slurm's signal comes while the program compiles."""
    job.wait_said("SIGUSR2 came before all ranks had a handler for it")
    job.go_on()


def requeue(job):
    job.wait_recorded()
    job.requeue()
    job.wait_back()


def preempt(job):
    job.wait_recorded()
    job.preempt()


def preempt_and_requeue(job):
    preempt(job)
    job.wait_back()


LIMIT = "--time=1"
ENDINGS = [
    Ending("time limit", end_by_limit, ("TIMEOUT",), 20, (LIMIT,)),
    Ending("`scancel`", cancel, ("CANCELLED",), 20),
    Ending("`scancel --signal=USR2`", send_usr2, ("COMPLETED",), finishes=True),
    Ending(
        *("`--signal=B:USR2@N` before the loop", warn_early, ("COMPLETED",)),
        options=("--time=10", "--signal=B:USR2@560"),
        finishes=True,
        compiles=True,
    ),
    Ending(
        *("`--signal=USR2@N` before the loop", warn_early, ("COMPLETED",)),
        options=("--time=10", "--signal=USR2@560"),
        ways=BY_SRUN,
        finishes=True,
        compiles=True,
    ),
    Ending(
        *("`--signal=B:USR2@5`, then the time limit", end_by_limit, ("TIMEOUT",)),
        options=(LIMIT, "--signal=B:USR2@5"),
        saves=2,
    ),
    Ending(
        *("`--signal=USR2@5`, then the time limit", end_by_limit, ("TIMEOUT",)),
        options=(LIMIT, "--signal=USR2@5"),
        ways=BY_SRUN,
        saves=2,
    ),
    Ending("`scontrol requeue`", requeue, ("COMPLETED",), finishes=True),
    Ending(
        *("preempted, `PreemptMode=REQUEUE`", preempt_and_requeue, ("COMPLETED",)),
        options=("--time=10", "--partition=requeued"),
        finishes=True,
        alone=True,
    ),
    Ending(
        *("preempted, `PreemptMode=CANCEL`, `GraceTime=5`", preempt, ("PREEMPTED", "CANCELLED", "FAILED")),
        options=("--time=10", "--partition=cancelled"),
        alone=True,
    ),
]
