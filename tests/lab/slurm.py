"""A real Slurm over lab hosts: munged and slurmctld on ``head``, one slurmd on each other host, all in one folder.

It has its own munge key and socket, so the machine's own munge and Slurm are neither used nor touched. Every daemon
lives inside a lab host and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

from lab import process

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "sinfo", "squeue", "scancel")
DEVICES = 4
FREEZER = Path("/sys/fs/cgroup/freezer")
CONF = """\
ClusterName=lab
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
InactiveLimit=0
KillWait={kill_wait}
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
GresTypes=gpu
{nodes}
PartitionName=main Nodes={main} Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""
# How most clusters follow processes: by control groups. Their names hold host and job, so jobs of two test runs need
# numbers of their own.
BY_GROUPS = """\
FirstJobId={first_job}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes={preempting} MaxTime=60 PriorityTier=10 PreemptMode=OFF
PartitionName=requeued Nodes={preempting} MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=cancelled Nodes={preempting} MaxTime=60 PriorityTier=1 PreemptMode=CANCEL GraceTime=5
"""
GROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
"""


def problem():
    """Why Slurm cannot run here, or None."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=os.pathsep.join(process.SYSTEM_PATH))]
    return f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)" if missing else None


def groups_problem():
    """Why Slurm cannot follow processes by control groups here, or None."""
    return problem() or (None if os.access(FREEZER / "cgroup.procs", os.W_OK) else f"no {FREEZER} (cgroup v1)")


class Slurm:
    """The running cluster. `env` is what a user there has; `hosts` the lab; `workers` the hosts that run jobs.

    A job asks for devices with ``--gres=gpu:N``; they are mere device files. Hosts claim 4 cores each, whatever the
    machine has, so two ranks a host are no oversubscription for Slurm.

    With `by_groups` it is as most clusters are: processes are followed by control groups, so that SIGTERM reaches only
    what Slurm itself has started and SIGKILL everything, KillWait is Slurm's own 30 s (else 2 s), and on all hosts but
    the first two the partition `urgent` preempts jobs of `requeued` and `cancelled`.
    """

    def __init__(self, hosts, *, by_groups=False, kill_wait=None):
        self.hosts = hosts
        self.kill_wait = kill_wait or (30 if by_groups else 2)
        self.by_groups = by_groups
        self.head = hosts["head"]
        self.workers = [host.name for host in hosts if host.name != "head"]
        self.folder = hosts.folder / "slurm"
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._login = {**process.minimal_env(hosts.folder, hosts.prefix), **self.env}

    def start(self):
        self._write_files()
        self._start_munge()
        self.head.run(["slurmctld"], self._login, timeout=30).check_returncode()
        for name in self.workers:
            self.hosts[name].run(["slurmd", "-N", name], self._login, timeout=30).check_returncode()
        self.wait_idle(45)
        return self

    def stop(self):
        """Cancel the jobs, those that wait too; the daemons end with their hosts."""
        for options in ([], ["--signal=KILL"]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run(["scancel", "--user=root", *options], timeout=10)

    def run(self, args, env=None, *, timeout=60, cwd=None, stdin=None):
        """Run any program on ``head`` (sinfo, scontrol, a whole script) with the cluster's environment added."""
        return self.head.run(args, {**(env or self._login), **self.env}, timeout=timeout, cwd=cwd, stdin=stdin)

    def salloc(self, options, command, env=None, *, timeout=60, cwd=None):
        """``salloc OPTIONS COMMAND`` on ``head`` -> CompletedProcess; `command` runs on head inside the allocation."""
        return self._job(["salloc", "--quiet", *options, *command], env, timeout, cwd)

    def srun(self, options, command, env=None, *, timeout=60, cwd=None):
        """A job of its own, started with ``srun OPTIONS COMMAND`` from ``head``."""
        return self._job(["srun", "--quiet", *options, *command], env, timeout, cwd)

    def sbatch(self, options, script, env=None, *, timeout=60, cwd=None):
        """Submit the text `script`, wait for its end -> CompletedProcess: the job's exit code and output."""
        output = self.folder / f"job-{os.urandom(4).hex()}.out"
        line = ["sbatch", "--parsable", f"--output={output}", "--chdir", str(cwd or self.folder), *options]
        done = self._job(line, env, timeout, cwd, stdin=script)
        if done.returncode:
            return done
        try:
            code = process.wait_until(lambda: self._exit_code(done.stdout.strip()), timeout, f"the end of {line}")
        except AssertionError:
            self._free_hosts()
            raise
        text = output.read_text(errors="replace") if output.exists() else ""
        return subprocess.CompletedProcess(done.args, int(code.split(":")[0]), text, done.stderr)

    @contextlib.contextmanager
    def kills_after(self, seconds):
        """With another KillWait."""
        conf = self.folder / "slurm.conf"
        usual = conf.read_text()
        try:
            self._configure(usual.replace(f"KillWait={self.kill_wait}\n", f"KillWait={seconds}\n"))
            yield
        finally:
            self._configure(usual)

    def _configure(self, text):
        conf = self.folder / "slurm.conf"
        if conf.read_text() != text:
            conf.write_text(text)
            self.run(["scontrol", "reconfigure"]).check_returncode()

    @contextlib.contextmanager
    def submitted(self, line, env, folder, hosts=1, options=()):
        """A job of two ranks that runs this line in a folder, and writes its file `out`; -> its number."""
        placed = [f"-N{hosts}", f"--ntasks-per-node={2 // hosts}", f"--chdir={folder}", f"--output={folder}/out"]
        done = self.run(["sbatch", "--parsable", *placed, *options], env, stdin=f"#!/bin/bash\n{line}\n")
        try:
            yield done.stdout.strip()
        finally:
            self.run(["scancel", done.stdout.strip()])
            self.wait_idle(60)

    def states(self):
        """``{host: state}`` as sinfo names it: idle, allocated, completing, down…"""
        done = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], timeout=20)
        return dict(line.split() for line in done.stdout.splitlines() if " " in line)

    def wait_idle(self, timeout):
        """Wait until no job is left and every worker is idle."""
        wanted = dict.fromkeys(self.workers, "idle")
        try:
            process.wait_until(lambda: self.states() == wanted, timeout, "idle Slurm hosts", every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}; states {self.states()}\n{self.logs()}") from None

    def logs(self, lines=8):
        """The last lines of every daemon's log, for a failure message."""
        tails = [f"== {path.name}\n" + "\n".join(_tail(path, lines)) for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(tails)

    def _job(self, line, env, timeout, cwd, stdin=None):
        try:
            return self.run(line, env, timeout=timeout, cwd=cwd, stdin=stdin)
        except subprocess.TimeoutExpired:
            self._free_hosts()
            raise

    def _free_hosts(self):
        """Or the next test waits for these hosts."""
        self.stop()
        self.wait_idle(20)

    def _exit_code(self, job):
        """``code:signal`` of a job that has ended, else None. sbatch --wait would ask only every some seconds."""
        done = self.run(["scontrol", "--oneliner", "show", "job", job], timeout=20)
        fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
        return None if fields.get("JobState") in {"PENDING", "RUNNING", "COMPLETING"} else fields.get("ExitCode")

    def _write_files(self):
        for name in ("state", *self.workers):
            (self.folder / name).mkdir(parents=True)
        for index in range(DEVICES):
            # Slurm hands out only what looks like a device: each is another /dev/null.
            os.mknod(self.folder / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        names = ",".join(self.workers)
        cores = 8 if self.by_groups else 4
        nodes = [
            f"NodeName={name} NodeHostname={name} NodeAddr={self.hosts[name].address} CPUs={cores} RealMemory=1000 "
            f"Gres=gpu:{DEVICES} State=UNKNOWN"
            for name in self.workers
        ]
        tracking = "cgroup" if self.by_groups else "linuxproc"
        places = {"head": self.head.address, "folder": self.folder, "nodes": "\n".join(nodes)}
        main = ",".join(self.workers[:2]) if self.by_groups else "ALL"
        conf = CONF.format(**places, main=main, tracking=tracking, kill_wait=self.kill_wait)
        if self.by_groups:
            first_job, preempting = os.getpid() % 60000 * 1000 + 1, ",".join(self.workers[2:])
            conf += BY_GROUPS.format(first_job=first_job, preempting=preempting)
            (self.folder / "cgroup.conf").write_text(GROUPS)
        (self.folder / "slurm.conf").write_text(conf)
        gres = f"NodeName={names} Name=gpu Count={DEVICES} File={self.folder}/gpu[0-{DEVICES - 1}]\n"
        (self.folder / "gres.conf").write_text(gres)

    def _start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.folder.chmod(0o711)
        self.hosts.folder.chmod(0o711)  # users other than root must reach the socket
        files = [
            f"--{option}={self.folder}/munge.{end}"
            for option, end in (
                ("key-file", "key"),
                ("socket", "socket"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        self.head.run(["munged", "--force", *files], self._login, timeout=30).check_returncode()
        process.wait_until((self.folder / "munge.socket").exists, 10, "munged's socket")


def _tail(path, lines):
    return path.read_text(errors="replace").splitlines()[-lines:]
