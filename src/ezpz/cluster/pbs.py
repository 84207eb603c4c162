"""PBS (OpenPBS, PBS Pro): the hosts of a job from its node file, or from the server where there is none.

    PBS_JOBID=1.head  PBS_NODEFILE=/var/spool/pbs/aux/1.head

The node file names a host once per MPI process that was asked for, in chunk order, short or fully qualified:

    n01
    n01
    n02

It lies on the job's first host only; on its sister hosts ``qstat -f`` knows the same (qstat.py). A shell opened by
ssh has no variables: the last column of ``qstat -u USER -n1rw`` names the hosts of each running job:

    1.head     user     workq     pbs-batch-mpip*     --     3     6    --  00:01 R   --  n01/0*2+n02/0*2+n03/0*2

Recorded from OpenPBS 23.06.06 (tests/data/environments/pbs-*.json).

Its commands are in ``bin`` of the folder that a line ``PBS_EXEC=/opt/pbs`` names in /etc/pbs.conf, or in the file that
PBS_CONF_FILE names (src/lib/Libifl/pbs_loadconf.c of the same).
"""

from __future__ import annotations

import os

from ezpz import proc
from ezpz.cluster.allocation import Allocation, checked_job, is_job
from ezpz.cluster.earlier_exports import earlier_hosts
from ezpz.cluster.probe import is_same_host
from ezpz.cluster.qstat import exec_hosts, show_job
from ezpz.cluster.questions import ask
from ezpz.cluster.scheduler import RemoteShellAccess, Scheduler
from ezpz.errors import MachineError
from ezpz.fields import replace
from ezpz.files import find_program

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.cluster.allocation import Read, Run

_CONFIGURATION, _BIN = "/etc/pbs.conf", "/opt/pbs/bin"
_FILES = "/var/spool/pbs/aux/"  # where the daemon of a host keeps the node files, under the full job id


class Pbs(Scheduler):
    """PBS, whose jobs find their hosts in a file."""

    name = "pbs"
    title = "PBS"
    job_variables = ("PBS_JOBID",)
    array_variables = ("PBS_ARRAY_INDEX", "PBS_ARRAYID")  # the second one is TORQUE's
    ancestor_prefixes = ("pbs_mom", "pbs_demux", "pbs_attach", "pbsdsh", "palsd")
    kept_variables = ("PBS_NODEFILE", "PBS_QUEUE", "PBS_O_HOST", "PBS_O_WORKDIR", "PBS_ENVIRONMENT")
    programs = ("qstat",)
    commands = frozenset(("qstat", "qsub", "qdel"))
    listing = ("qstat",)
    output_variables = ("PBS_QSTAT_",)  # Torque's qstat(1)
    # Its task manager, which believes processes of the job alone: they have the job's cookie (tm_init in Libifl/tm.c).
    remote_shell = ("pbs_tmrsh",)
    passes_output = False
    remote_needs = (
        "PBS_ENVIRONMENT",
        "PBS_JOBID",
        "PBS_NODEFILE",
        "PBS_JOBCOOKIE",
        "PBS_NODENUM",
        "PBS_TASKNUM",
        "PBS_MOMPORT",
    )
    agent_flavour = "pbs_tmrsh"
    mpiexec_mark = "pbs_version ="
    submit_path = "PBS_O_PATH"
    slots_option = "mpiprocs"
    threads_variable = "NCPUS"

    def detect(self, environ: Mapping[str, str], read: Read, run: Run, *, more: bool = False) -> Allocation | None:
        """Return the job that ``environ`` tells of, or None outside PBS.

        Args:
            environ: The environment to read.
            read: Reads the node file.
            run: Asks ``qstat`` where no node file can be read.
            more: Ask for the end of the job and its devices too.

        Raises:
            MachineError: No node file, no answer of ``qstat`` and no earlier shell of the job name a host.
        """
        job = environ.get("PBS_JOBID")
        if not job:
            return None
        checked_job(job, "PBS_JOBID")
        named = environ.get("PBS_NODEFILE", "")
        for path in filter(None, (named, _FILES + job)):
            lines = [line.strip() for line in (read(path) or "").splitlines() if line.strip()]
            if lines:
                granted = _granted(job, lines, path, f"PBS_NODEFILE={path}" if path == named else path)
                answer = show_job(job, run) if more else None
                return replace(_with(granted, answer), notes=_shrunk(environ, job, lines))
        known = show_job(job, run) or earlier_hosts(environ, "pbs", job)
        if known:
            return known
        problem = "is unset" if not named else "cannot be read" if read(named) is None else "is empty"
        raise MachineError(
            f"no hosts of job {job} (from PBS_JOBID): PBS_NODEFILE={named} {problem}, and qstat -f {job} gave no "
            "answer; expected one host per line. Run on the first host of the job, or name the hosts with `launch "
            "--hostfile FILE`."
        )

    def folders(self, environ: Mapping[str, str], read: Read) -> tuple[str, ...]:
        """Return ``bin`` of its installation."""
        for line in (read(environ.get("PBS_CONF_FILE") or _CONFIGURATION) or "").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "PBS_EXEC" and os.path.isabs(value.strip()):
                return (os.path.join(value.strip(), "bin"),)
        return (_BIN,)

    def reach(self, environ: Mapping[str, str], job: str) -> RemoteShellAccess:
        """Tell whether ``pbs_tmrsh`` works here, by the variables of this shell or of a process of the job.

        It needs the job's cookie, which only processes of the job have, and reads the node file, which the job's first
        host alone has.
        """
        program = self.remote_shell[0]
        if not find_program(program, environ.get("PATH")):
            return RemoteShellAccess(f"no {program} on PATH")
        if all(map(environ.get, self.remote_needs)):
            process, nodes = 0, environ["PBS_NODEFILE"]
        else:
            process, nodes = _process_of(job, self.remote_needs)
        if not nodes:
            return RemoteShellAccess(
                f"neither this shell nor any other process of yours on this host belongs to job {job}"
            )
        if not os.access(nodes, os.R_OK):
            return RemoteShellAccess(f"{program} works on the job's first host alone, which has {nodes}")
        return RemoteShellAccess(process=process)

    def about_host(self, host: str, user: str) -> list[list[str]]:
        """Return the questions for the user's jobs: those of an array are only listed where they are asked for."""
        del host
        return [["qstat", *tasks, "-u", user, "-n1rw"] for tasks in ([], ["-t"])]

    def find(self, host: str, user: str, run: Run) -> Allocation | None:
        """Return the user's job that runs on a host, for a shell that has no variables of it.

        Raises:
            MachineError: Several of the user's jobs run there.
        """
        plain, with_tasks = self.about_host(host, user)
        text = ask(run, plain)
        if text is None:
            return None
        jobs = _on(host, _running(text)) or _on(host, _running(run(with_tasks)))
        if not jobs:
            return None
        if len(jobs) > 1:
            raise MachineError(
                f"cannot tell which job this shell belongs to: {', '.join(jobs)} all run on {host} (from qstat); "
                f"expected one. Choose it: `export PBS_JOBID={next(iter(jobs))}`."
            )
        [(job, hosts)] = jobs.items()
        known = show_job(job, run)
        origin = dict.fromkeys(("scheduler", "job_id", "hosts"), f"qstat -u {user} -n1rw")
        return known or Allocation("pbs", job, hosts, origin=origin)

    def running(self, user: str, run: Run) -> Mapping[str, Sequence[str]]:
        """Return the user's running jobs and their hosts, by the list that `find` has asked for."""
        return _running(run(self.about_host("", user)[0]))


def _process_of(job: str, names: Sequence[str]) -> tuple[int, str]:
    """Return a process of the user's job on this host, and the path of its node file; 0 and nothing without one.

    The job's own shell, which the daemon has started, is preferred: it lives as long as the job, and no server of
    screens from before the job was run again has its cookie. What it has besides is never kept.
    """
    found = []
    wanted = [f"\0{name}=".encode() for name in names]
    for pid in proc.pids():
        environ = proc.environ(pid)
        if f"\0PBS_JOBID={job}\0".encode() not in environ or not all(name in environ for name in wanted):
            continue
        fields = proc.stat(pid)
        # The task manager listens on loopback. Root may read the variables of others too.
        if fields is None or proc.link(pid, "ns/net") != proc.link("self", "ns/net") or proc.owner(pid) != os.geteuid():
            continue
        above = proc.name(fields.parent)
        nodes = os.fsdecode(environ.partition(b"\0PBS_NODEFILE=")[2].partition(b"\0")[0])
        found.append((not above.startswith("pbs_mom"), int(fields.start), pid, nodes))
    return min(found)[2:] if found else (0, "")


def _granted(job: str, lines: list[str], path: str, source: str) -> Allocation:
    counts: dict[str, int] = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    origin = dict.fromkeys(("scheduler", "job_id"), "PBS_JOBID")
    origin |= dict.fromkeys(("hosts", "slots", "tasks", "hostfile"), source)
    return Allocation(
        scheduler="pbs",
        job_id=job,
        hosts=tuple(counts),
        slots=tuple(counts.values()),
        tasks=len(lines),
        hostfile=path if len(counts) == len(lines) else "",
        origin=origin,
    )


def _with(known: Allocation, answer: Allocation | None) -> Allocation:
    """Return the node file's answer with what only the server knows."""
    if answer is None:
        return known
    origin = {**known.origin, **{name: answer.origin[name] for name in ("devices", "end_time")}}
    return replace(known, devices=answer.devices, end_time=answer.end_time, origin=origin)


def _shrunk(environ: Mapping[str, str], job: str, lines: list[str]) -> tuple[str, ...]:
    """Return a note when hosts were given back (pbs_release_nodes) since an earlier shell of the job looked."""
    before = earlier_hosts(environ, "pbs", job)
    gone = [host for host in before.hosts if host not in set(lines)] if before else []
    if not gone:
        return ()
    shown = ", ".join(gone[:4]) + ", …" * (len(gone) > 4)
    return (f"{len(gone)} hosts have left the job since this shell was set up: {shown}; run ezpz_setup_job again",)


def _running(text: str | None) -> dict[str, tuple[str, ...]]:
    """Return the running jobs of ``qstat -n1w``, each with its hosts."""
    jobs = {}
    for line in (text or "").splitlines():
        words = line.split()
        # id user queue name session hosts tasks memory time state elapsed exec_host
        if len(words) >= 11 and words[-3] == "R" and "/" in words[-1] and is_job(words[0]):
            jobs[words[0]] = tuple(dict.fromkeys(exec_hosts(words[-1])))
    return jobs


def _on(host: str, jobs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {job: hosts for job, hosts in jobs.items() if any(is_same_host(host, name) for name in hosts)}


SCHEDULER = Pbs()
