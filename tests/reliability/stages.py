"""Where launches of the cases run: every flavour, on this host or from `head` over the hosts of a lab.

Everything of one launch carries a tag in its environment, so that what is left of it is found in whatever session,
group or host it hides. Ranks say who they are in files (`up.RANK`), because their output is one of the things under
test.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path

from runs import WORLD, Run

from lab import flavours, process
from lab import hosts as lab_hosts
from lab import slurm as lab_slurm
from lab.ssh import CLIENT, LAUNCH, SRC

AGENTS = "-agents"  # after a flavour: with --mpi no, so that it starts an agent per host in place of the ranks
FLAVOURS = ("local", "mpich", "openmpi", "openmpi4", "impi", "srun", "torchrun", "ssh", "mpich-agents", "srun-agents")
NAMES = {"openmpi": "openmpi5"}  # where the lab's name is not the one of --flavour
MPI = flavours.NAMES
HOSTS = "n01:2\nn02:1\n"
ALWAYS_OVER_HOSTS = ("srun", "ssh")
JOB_LASTS = 2400.0  # seconds; the lab's partition grants an hour
HERE_ALONE = ("local", "torchrun")


def flavour_of(name):
    """The flavour itself, without its way of starting ranks."""
    return name.removesuffix(AGENTS)


def problem(name):
    """Why launches of the flavour `name` cannot run on this machine, or None."""
    name = flavour_of(name)
    if name in MPI:
        return flavours.Flavour(name).problem()
    if name in ALWAYS_OVER_HOSTS:
        return lab_hosts.problem() or (lab_slurm.problem() if name == "srun" else None)
    return None


class Grounds:
    """A lab of hosts and a job of Slurm, made when a launch first needs them; a context manager.

    Args:
        slurm: Function that returns a running `lab.slurm.Slurm`, or None; without one the grounds start their own.
    """

    def __init__(self, slurm=None):
        self._slurm, self._own_slurm = slurm, None
        self._hosts = self._job = None
        self._job_since, self._job_tag, self._job_env = 0.0, "", {}
        self._lock = threading.RLock()  # several launches may want them first
        self.folder = Path(tempfile.mkdtemp(prefix="ezr-"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end_job()
        if self._own_slurm:
            self._own_slurm.stop()
            self._own_slurm.hosts.close()
        if self._hosts:
            self._hosts.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def hosts(self):
        """The lab that whole cases share; one that breaks hosts for good brings its own."""
        with self._lock:
            if self._hosts is None:
                self._hosts = make_hosts()
            return self._hosts

    def slurm(self):
        if self._slurm:
            return self._slurm()
        with self._lock:
            if self._own_slurm is None:
                self._own_slurm = lab_slurm.Slurm(make_hosts()).start()
            return self._own_slurm

    def job(self):
        """The environment of a running allocation of two hosts; renewed before its hour is over."""
        with self._lock:
            if self._job is None or time.monotonic() - self._job_since > JOB_LASTS:
                self._end_job()
                self._start_job()
            return self._job_env

    def _start_job(self):
        slurm, told = self.slurm(), self.folder / f"job-{uuid.uuid4().hex[:6]}"
        keep = f"env -0 >{told}.part && mv {told}.part {told} && exec sleep 36000"
        self._job_tag = f"ezt-job-{uuid.uuid4().hex[:6]}"
        env = {**process.minimal_env(self.folder, self._job_tag), **slurm.env}
        self._job = slurm.head.popen(["salloc", "--quiet", "-N2", "-n4", "--overcommit", "bash", "-c", keep], env)
        self._job_since = time.monotonic()
        process.wait_until(told.exists, 30, "an allocation of Slurm")
        pairs = (pair.partition("=") for pair in told.read_text().split("\0") if pair)
        self._job_env = {name: value for name, _, value in pairs if name.startswith(("SLURM", "SALLOC"))}

    def _end_job(self):
        if self._job is None:
            return
        # salloc gives the allocation back when its command ends.
        process.kill_all(pid for pid, line in process.survivors(self._job_tag).items() if line.startswith("sleep"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._job.wait(10)
        process.kill_group(self._job)
        self._job = None


def make_hosts():
    return lab_hosts.Hosts("head", "n01", "n02").__enter__()


class Stage:
    """Launches of one flavour: `start(options, command)` gives a `Run`.

    Args:
        name: One of `FLAVOURS`.
        grounds: Where hosts and Slurm come from.
        over_hosts: Whether ranks 0 and 1 run on `n01` and rank 2 on `n02` of a lab, instead of all on this host.
        fresh: Whether the lab is this stage's own, to be broken.
    """

    def __init__(self, name, grounds, *, over_hosts=False, fresh=False):
        self.starts_agents = name.endswith(AGENTS)
        name = flavour_of(name)
        self.name, self.grounds = name, grounds
        self.over_hosts = over_hosts or name in ALWAYS_OVER_HOSTS
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=grounds.folder))
        self.tag = f"ezt-{uuid.uuid4().hex[:12]}"
        self._fresh = None
        self.hosts = None
        if name == "srun":
            self.hosts = grounds.slurm().hosts
        elif self.over_hosts:
            self._fresh = make_hosts() if fresh else None
            self.hosts = self._fresh or grounds.hosts()

    def close(self):
        process.kill_all(process.survivors(self.tag))
        if self._fresh:
            self._fresh.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def mpi(self):
        """The MPI flavour's wheel: `.bin`, `.mpiexec`; None for the others."""
        return flavours.Flavour(self.name) if self.name in MPI else None

    def env(self):
        bins = [self.mpi.bin] if self.mpi else []
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        told = process.minimal_env(home, self.tag, *bins, flavours.base_bin())
        told |= {"PYTHONPATH": SRC, "EZPZ_TEST_DIR": str(self.folder), "EZPZ_NGPU_PER_HOST": "0"}
        if self.name == "srun":
            told |= {**self.grounds.job(), **self.grounds.slurm().env}
        elif self.name == "ssh":
            told["EZPZ_SSH"] = str(self._client())
        elif self.over_hosts:
            told |= flavours.remote(self.hosts)
        return told

    def line(self, options, command):
        where = ["-n", str(WORLD)]
        if self.over_hosts:
            (self.folder / "hosts").write_text(HOSTS)
            where = ["--hostfile", str(self.folder / "hosts")]
        told = [name.partition("=")[0] for name in options]
        if "-n" in told or "--hosts" in told or "--hostfile" in told:
            where = []
        chosen = [] if "--flavour" in told else ["--flavour", NAMES.get(self.name, self.name)]
        chosen += ["--mpi", "no"] * self.starts_agents
        return [*LAUNCH, *chosen, *where, *options, "--", *command]

    def start(self, options, command, *, env=None, wrap=None, cwd=None, stdin=None):
        """Start one launch. `wrap` makes another command line of this one; `stdin` is a file to read."""
        line = self.line(options, [str(word) for word in command])
        line = wrap(self, line) if wrap else line
        env = {**self.env(), **(env or {})}
        env = {name: value for name, value in env.items() if value is not None}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            how = {"cwd": cwd or self.folder, "stdout": out, "stderr": err, "stdin": stdin or subprocess.DEVNULL}
            if self.over_hosts:
                started = self.hosts["head"].popen(line, env, **how)
            else:
                started = subprocess.Popen(line, env=env, start_new_session=True, **how)
        return Run(self, started)

    def _client(self):
        return process.program(self.folder / "client", CLIENT.format(f'"{self.hosts.rsh}" "$@"'))
