"""How a job of a real OpenPBS ends before its training does, or nearly so: the rows of `test_openpbs_endings.py`.

PBS signals the sessions that it has started. A job's script has a login shell above it, which ends of any signal, and
with it PBS kills the job; so a signal of `qsig` is sent to jobs without a script (``qsub … -- PROGRAM``). PBS looks at
wall times every few seconds.
"""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from pathlib import Path

from endings import Ending, Job, Way, cancel, end_by_limit

from lab import openpbs, process
from lab.checkout import ROOT
from lab.flavours import Flavour

# As the job's user sees Python: that of the system, with the libraries of the tests' own.
PYTHON = "/usr/bin/python3"
PACKAGES = [f"{ROOT}/src", *map(str, Path(sys.prefix).glob(f"lib/python3.{sys.version_info[1]}/site-packages"))]
LINE = "exec {python} -m ezpz.launch {{}}"
WAYS = {
    "agents": Way(2, LINE),
    "mpich": Way(2, LINE, "mpich"),
    "openmpi": Way(2, LINE, "openmpi"),
    "no script": Way(2, "{python} -m ezpz.launch {{}}"),
}


class PbsJob(Job):
    """The same of PBS, whose user has no access to the tests' folders."""

    def __init__(self, pbs, program, ending, way):
        super().__init__(None, pbs.home / f"ending-{uuid.uuid4().hex[:8]}", program, ending, "srun")
        self.pbs, self.way, self.has_script = pbs, WAYS[way], way != "no script"

    def run(self):
        self.folder.mkdir()
        os.chown(self.folder, openpbs.UID, openpbs.UID)
        bins = f"{Flavour(self.way.flavour).bin}:" if self.way.flavour else ""
        told = {
            "PATH": f"{openpbs.PREFIX}/bin:{bins}/usr/bin:/bin",
            "PYTHONPATH": ":".join(PACKAGES),
            "TORCH_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "EZPZ_NGPU_PER_HOST": "0",
            process.TAG: self._tag,
        }
        variables = [f"{name}={value}" for name, value in told.items()]
        line = self.way.line.format(python=PYTHON).format(self._words(PYTHON))
        select = ["-l", f"select={self.way.hosts}:ncpus=2:mpiprocs=1", "-l", "place=scatter", *self.ending.options]
        if self.has_script:
            script = f"#!/bin/bash\nexport {shlex.join(variables)}\ncd {self.folder}\n{line}\n"
            program = []
        else:
            script, program = None, ["--", "/usr/bin/env", *variables, *shlex.split(line)]
        self.number, self.printed = self.pbs.qsub(script, "-r", "y", *select, *program)
        try:
            self.ending.stage(self)
            self.wait_over()
            self._wait_gone()
        finally:
            self.pbs.run(["qdel", "-W", "force", self.number])
            process.kill_all(process.survivors(self._tag))

    def signal(self, *options):
        self.pbs.run(["qsig", "-s", *options, self.number] if options else ["qdel", self.number]).check_returncode()

    def requeue(self):
        self.pbs.run(["qrerun", self.number], timeout=120)  # it may only tell that it goes on without us

    def state(self, number=None):
        """Return ``COMPLETED`` when the job is over, whatever its end was: `status` tells it."""
        return "COMPLETED" if self._told_of(number).get("job_state") == "F" else "RUNNING"

    def status(self):
        """Return the exit status as PBS has it: 256 + n for a signal to the shell, -29 at the wall time."""
        return self._told_of().get("Exit_status", "")

    def run_count(self):
        """Return how often it has run."""
        return int(self._told_of()["run_count"])

    def _told_of(self, number=None):
        return self.pbs.fields(number or self.number)


def run_again(job):
    job.wait_recorded()
    job.requeue()
    job.wait_over()
    assert job.run_count() == 2, job.told()


def send_term(job):
    job.wait_recorded()
    job.signal("SIGTERM")


def send_usr2(job):
    job.wait_recorded()
    job.signal("SIGUSR2")
    job.wait_saved()


TIME = ("-l", "walltime=00:10:00")
BY_SCRIPT, ALONE = ("agents", "mpich", "openmpi"), ("no script",)
ROWS = [
    Ending("`qdel`", cancel, ("271",), 3, TIME, BY_SCRIPT),
    Ending("the wall time", end_by_limit, ("-29",), 3, ("-l", "walltime=00:01:30"), BY_SCRIPT),
    Ending("`qrerun`", run_again, ("0",), 3, TIME, BY_SCRIPT, finishes=True),
    Ending("`qsig -s SIGTERM`, no script", send_term, ("143",), 1, TIME, ALONE),
    Ending("`qsig -s SIGUSR2`, no script", send_usr2, ("0",), 1, TIME, ALONE, finishes=True),
]
