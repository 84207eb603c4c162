"""Slurm: the hosts of a job from its variables, so that no daemon is asked as long as they tell enough.

    SLURM_JOB_ID=12  SLURM_JOB_NODELIST=node[01-02]  SLURM_TASKS_PER_NODE=3,1  SLURM_JOB_CPUS_PER_NODE=3,1
    SLURM_NTASKS=4 only when the user asked for tasks; otherwise the tasks per node follow from the CPUs.
    Inside a step: SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NUM_TASKS.
    Heterogeneous: SLURM_HET_SIZE=2 and SLURM_JOB_NODELIST_HET_GROUP_0, …_1; salloc gives no name without a suffix, in
    a batch script such a name tells of component 0, in a step of the step's own component.

A shell opened by ssh has none of these: ``squeue --nodelist=HOST`` knows the job, as ``id|name of the id|hosts``:

    4|3+1|n[02-03]            component 1 of the heterogeneous job 3

Devices that were granted:

    SLURM_GPUS_ON_NODE=4                    this host's, inside the job; in a step the step's
    SLURM_STEP_GPUS=0,1  SLURM_JOB_GPUS=0-3 global numbers of this host's devices, in a step and in the batch script
    GPU_DEVICE_ORDINAL=2,3                  as Slurm sets CUDA_VISIBLE_DEVICES: from 0 on where a cgroup hides others
    SLURM_GPUS=5 | a100:5                   of the whole job, as asked for with --gpus: hosts may get different numbers
    SLURM_GPUS_PER_NODE=4 | a100:4 | a100:2,h100:1      as asked for with --gpus-per-node; also where salloc left the
    shell SLURM_GPUS_PER_TASK=1 with SLURM_NTASKS_PER_NODE=4  as asked for
    https://slurm.schedmd.com/sbatch.html, "OUTPUT ENVIRONMENT VARIABLES"; tests/data/environments/slurm-batch-gpus.json

Recorded from Slurm 22.05.8 (tests/data/environments/slurm-*.json).
"""

from __future__ import annotations

import os
import re
import signal

from ezpz import proc
from ezpz.cluster.allocation import Allocation, Grant, checked_job
from ezpz.cluster.components import heterogeneous
from ezpz.cluster.earlier_exports import earlier_hosts
from ezpz.cluster.hostlist import expand
from ezpz.cluster.questions import ask
from ezpz.cluster.scheduler import Scheduler
from ezpz.cluster.scontrol import show_job
from ezpz.errors import MachineError
from ezpz.fields import replace
from ezpz.ranks import expand_counts

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h counts its special step ids down from 0xFFFFFFFE
_GRANTS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS")
_GPUS_HERE = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_GPU_NUMBERS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_TWIN = "GPU_DEVICE_ORDINAL"  # set beside CUDA_VISIBLE_DEVICES and alike, and never by hand
_GPUS_TOTAL = "SLURM_GPUS"
_GPUS_ASKED = "SLURM_GPUS_PER_NODE"
_GPUS_PER_TASK, _TASKS = "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_NODE"
_ROW = r"\d+\|\d+([_+]\S+)?\|[^\s|]+"  # number, the name that users see, hosts; what else squeue prints is no job
_UNSET = {"", "(null)"}
_GROUP = "_HET_GROUP_"  # after the name of a variable and before the number of a component
_KEPT_GROUPS = 8  # components that a second shell learns of
# Of the whole job; a heterogeneous one has them for each component.
_JOBS_SHAPE = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
)


class Slurm(Scheduler):
    """Slurm, whose jobs describe themselves in variables."""

    name = "slurm"
    title = "Slurm"
    job_variables = ("SLURM_JOB_ID", "SLURM_JOBID")
    array_variables = ("SLURM_ARRAY_TASK_ID",)
    ancestor_prefixes = ("slurmstepd", "salloc", "srun")
    own_launcher = "srun"
    programs = ("squeue", "scontrol")
    bootstrap = "slurm"
    remote_shell = ("srun", "-N1", "-n1", "--overlap", "--cpu-bind=none", "--input=none", "--nodelist")
    job_option = "--jobid"
    kept_variables = (
        *_JOBS_SHAPE[1:],
        *(f"{name}{_GROUP}{number}" for number in range(_KEPT_GROUPS) for name in _JOBS_SHAPE),
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_PARTITION",
        "SLURM_HET_SIZE",
    )
    outliving = "--no-kill"
    of_job = "SLURM_"
    lasting = ("SLURM_CONF", "SLURM_CLUSTERS")
    listing = ("squeue", "--noheader", "--states=RUNNING")
    # squeue(1), sacct(1), scontrol(1), sinfo(1), "ENVIRONMENT VARIABLES"; they also choose which jobs are shown.
    output_variables = (
        *("SQUEUE_", "SACCT_", "SCONTROL_", "SINFO_"),
        *("SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SLURM_JSON", "SLURM_YAML", "SLURM_DEBUG"),
    )
    end_variable = "SLURM_JOB_END_TIME"
    start_variable = "SLURM_JOB_START_TIME"
    slots_option = "--ntasks-per-node"
    component_option = "--het-group"
    host_variable = "SLURMD_NODENAME"
    device_variables = (*_GPUS_HERE, _GPUS_ASKED)
    signalling_daemon = "slurmstepd"
    configuration = ("scontrol", "show", "config")
    singletons_cause = (
        "srun started every task as a step of its own: its MPI plugin (`srun --mpi=list`) or a variable such as "
        "SLURM_NTASKS says so"
    )

    def detect(self, environ: Mapping[str, str], read: Read, run: Run, *, more: bool = False) -> Allocation | None:
        """Return the job that ``environ`` tells of, or None outside Slurm.

        Args:
            environ: The environment to read.
            read: Unused: every answer is in the environment or the scheduler's.
            run: Asks ``scontrol`` where the variables do not tell the hosts, or a grant of devices (a shell of salloc).
            more: Ask for the end of the job too.

        Raises:
            MachineError: The job's variables are incomplete or contradict each other.
            UsageError: The host expression cannot be read.
        """
        del read
        job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        if not job:
            return None
        checked_job(job, "SLURM_JOB_ID")
        names = _names(environ)
        listed = next((name for name in names["hosts"] if environ.get(name)), "")
        in_salloc = "SLURMD_NODENAME" not in environ and not any(environ.get(name) for name in _GRANTS)
        size = _components(environ) if listed.endswith(f"{_GROUP}0") else 0
        asks = more or in_salloc or not listed or size or _may_differ(environ)
        shown = show_job(job, run) if asks else None
        if not listed:
            return shown or _left_over(environ, job)
        if size:
            known = dict(enumerate(shown.parts)) if shown else {}
            groups = range(size)
            return heterogeneous(
                tuple(_described(environ, job, _plain(f"{_GROUP}{number}"), known.get(number)) for number in groups)
            )
        described = _described(environ, job, names, shown)
        notes = () if shown or not _may_differ(environ) else (_uneven(environ),)
        return replace(described, components=_groups_of(environ, described.hosts), notes=notes)

    def about_host(self, host: str, user: str) -> list[list[str]]:
        """Return the question for the user's running jobs on a host."""
        line = ["squeue", "--noheader", "--states=RUNNING", f"--user={user}"]
        return [[*line, f"--nodelist={host.split('.', 1)[0]}", "--format=%A|%i|%N"]]

    def find(self, host: str, user: str, run: Run) -> Allocation | None:
        """Return the user's job that runs on a host, for a shell that has no variables of it.

        Raises:
            MachineError: Several of the user's jobs run there.
        """
        [question] = self.about_host(host, user)
        text = ask(run, question)
        rows = [row.split("|") for row in (text or "").splitlines() if re.fullmatch(_ROW, row, re.ASCII)]
        # A component's own number means nothing to srun: the leader's does.
        jobs = dict.fromkeys(name.split("+")[0] if "+" in name else number for number, name, _ in rows)
        if not jobs:
            return None
        if len(jobs) > 1:
            raise MachineError(
                f"cannot tell which job this shell belongs to: {', '.join(jobs)} all run on {host} (from squeue); "
                f"expected one. Choose it: `export SLURM_JOB_ID={next(iter(jobs))}`."
            )
        [job] = jobs
        known = show_job(job, run)
        if known:
            return known
        where = f"squeue --nodelist={host.split('.', 1)[0]}"
        hosts = tuple(dict.fromkeys(name for row in rows for name in expand(row[2])))
        return Allocation("slurm", job, hosts, origin=dict.fromkeys(("scheduler", "job_id", "hosts"), where))

    def granted(self, environ: Mapping[str, str], *, here: bool) -> Grant | None:
        """Return the devices of each host: this host's own count before the one that was asked for.

        Raises:
            UsageError: A variable cannot be read.
        """
        asked = _asked_gpus(environ)
        for name in _GPUS_HERE if here else ():
            text = environ.get(name, "").strip()
            if text in _UNSET:
                continue
            number = len(_gpu_set(name, text)) if name in _GPU_NUMBERS else _gpu_count(name, text)
            notes: tuple[str, ...] = ()
            if asked is not None and asked.number != number:
                notes = (f"{name}={text} tells {number}, {asked.origin} {asked.number}; this host's own decides",)
            return Grant(number, name, notes)
        return asked

    def signals_ranks(self, environ: Mapping[str, str], read: Read) -> bool:
        """Tell whether Slurm signals all that its tasks have started; where nothing says so, shims pass signals on.

        ProctrackType=proctrack/linuxproc    all processes below a task
        ProctrackType=proctrack/cgroup       usual, and the default: the task alone; SIGKILL reaches all
        ProctrackType=proctrack/pgid         the task's group; a rank has one of its own
        """
        files = (environ.get("SLURM_CONF", ""), "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
        text = next(filter(None, map(read, filter(None, files))), None) or ""
        return bool(re.search(r"(?aim)^[^\S\n]*ProctrackType\s*=\s*proctrack/linuxproc\b", text))

    def script_in_front(self) -> int:
        """Return the pid of the batch script's shell where it would end of Slurm's SIGTERM; else 0.

        Slurm then kills all that the script has started, at once and not after KillWait.
        """
        pid, status = os.getpid(), proc.stat("self")
        while status and status.parent > 1 and proc.name(status.parent) != self.signalling_daemon:
            pid, status = status.parent, proc.stat(status.parent)
        if not status or status.parent <= 1 or pid == os.getpid():
            return 0
        return 0 if proc.catches(pid, signal.SIGTERM) or proc.ignores(pid, signal.SIGTERM) else pid

    def kill_wait(self, text: str) -> float:
        """Return what ``scontrol show config`` says: ``KillWait                = 30 sec``."""
        found = re.search(r"^KillWait\s*=\s*(\d+) sec", text, re.ASCII | re.MULTILINE)
        return float(found[1]) if found else 0.0

    def mask(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the devices of this host as Slurm's own mask names them.

        Raises:
            UsageError: A variable cannot be read.
        """
        twin = environ.get(_TWIN, "").strip()
        if twin:
            return tuple(entry.strip() for entry in twin.split(","))
        for name in _GPU_NUMBERS:
            text = environ.get(name, "").strip()
            if text not in _UNSET:
                return tuple(map(str, sorted(_gpu_set(name, text))))
        grant = self.granted(environ, here=True)
        return tuple(map(str, range(grant.number))) if grant else ()


def _names(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the variables that tell hosts, slots, tasks and CPUs here: in a step, a component or the whole job."""
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_STEP_NODELIST" in environ and not _is_shell(environ):
        slots, tasks = ("SLURM_STEP_TASKS_PER_NODE",), ("SLURM_STEP_NUM_TASKS",)
        return {"hosts": ("SLURM_STEP_NODELIST",), "slots": slots, "tasks": tasks, "cpus": ("",)}
    is_first = environ.get("SLURM_HET_SIZE") and environ.get(f"SLURM_JOB_NODELIST{_GROUP}0")
    return _plain(f"{_GROUP}0" if is_first else "")


def _plain(suffix: str) -> dict[str, tuple[str, ...]]:
    """Return the variables that tell of the whole job, or of one of its components."""
    plain = {
        "hosts": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        "slots": ("SLURM_TASKS_PER_NODE",),
        "tasks": ("SLURM_NTASKS",),
        "cpus": ("SLURM_JOB_CPUS_PER_NODE",),
    }
    return {field: tuple(f"{name}{suffix}" for name in names) for field, names in plain.items()}


def _is_shell(environ: Mapping[str, str]) -> bool:
    """Tell whether the step is the batch script or an interactive shell: it names one host, the job has more."""
    step = environ.get("SLURM_STEP_ID", "0")
    return not step.isdigit() or int(step) >= _FIRST_SPECIAL_STEP


def _described(
    environ: Mapping[str, str], job: str, names: Mapping[str, tuple[str, ...]], shown: Allocation | None
) -> Allocation:
    """Return what the variables with these names tell, and what of the rest ``scontrol`` knew."""
    listed = next(name for name in names["hosts"] if environ.get(name))
    origin = {"scheduler": "SLURM_JOB_ID", "job_id": "SLURM_JOB_ID", "hosts": listed}
    origin |= {name: names[name][0] for name in ("slots", "tasks", "cpus")}
    end = environ.get("SLURM_JOB_END_TIME", "")
    if shown:
        origin |= {name: shown.origin[name] for name in ("devices", "end_time")}
    if end.isdigit():
        origin["end_time"] = "SLURM_JOB_END_TIME"
    return Allocation(
        scheduler="slurm",
        job_id=job,
        hosts=tuple(dict.fromkeys(expand(environ[listed]))),
        slots=_counts(environ, names["slots"][0]),
        tasks=_number(environ, names["tasks"][0]),
        cpus=_counts(environ, names["cpus"][0]) if names["cpus"][0] else None,
        # A step's hosts and devices may be fewer than the job's; its own variables tell.
        devices=shown.devices if shown and listed != "SLURM_STEP_NODELIST" else None,
        end_time=int(end) if end.isdigit() else shown.end_time if shown else None,
        origin=origin,
    )


def _components(environ: Mapping[str, str]) -> int:
    """Return the number of components of a heterogeneous job whose hosts are known; 0 in other jobs."""
    size = environ.get("SLURM_HET_SIZE", "")
    numbers = range(int(size) if size.isdigit() else 0)
    return next((number for number in numbers if not environ.get(f"SLURM_JOB_NODELIST{_GROUP}{number}")), len(numbers))


def _groups_of(environ: Mapping[str, str], hosts: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the component of each host of a step of a heterogeneous job: one that holds all hosts, else each its own.

    srun starts nothing in another component than 0 unless asked to, not even inside a step of that component.
    """
    groups = [set(expand(environ[f"SLURM_JOB_NODELIST{_GROUP}{number}"])) for number in range(_components(environ))]
    for number, group in enumerate(groups):
        if group.issuperset(hosts):
            return (number,) * len(hosts)
    found = [next((number for number, group in enumerate(groups) if host in group), None) for host in hosts]
    return None if None in found else tuple(number for number in found if number is not None)


def _may_differ(environ: Mapping[str, str]) -> bool:
    """Tell whether a job asked for a total of devices, which Slurm may spread unevenly; ranks are not to ask for it."""
    total, here, hosts = (environ.get(name, "") for name in (_GPUS_TOTAL, "SLURM_GPUS_ON_NODE", "SLURM_JOB_NUM_NODES"))
    if "SLURM_STEP_NUM_TASKS" in environ and not _is_shell(environ):
        return False
    number = re.fullmatch(r"(?:[^\s:,()]+:)*(\d+)", total)
    if not number or not hosts.isdigit() or hosts == "1":
        return False
    return not here.isdigit() or int(number[1]) != int(here) * int(hosts)


def _uneven(environ: Mapping[str, str]) -> str:
    return (
        f"{_GPUS_TOTAL}={environ[_GPUS_TOTAL]} may be spread unevenly over the hosts, and scontrol did not tell: each "
        "is taken to have as many devices as this one; run `export EZPZ_NGPU_PER_HOST=N` if wrong"
    )


def _left_over(environ: Mapping[str, str], job: str) -> Allocation:
    earlier = earlier_hosts(environ, "slurm", job)
    if earlier:
        return earlier
    raise MachineError(
        f"no hosts of job {job} (from SLURM_JOB_ID): SLURM_JOB_NODELIST is unset and scontrol gave no answer; "
        "expected a host expression. Run inside the job (salloc, sbatch), or `unset SLURM_JOB_ID`."
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise MachineError(f"not a number of tasks: {text!r} (from {name}); expected digits. Run `unset {name}`.")
    return int(text) if text else None


def _counts(environ: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    return tuple(expand_counts(environ[name])) if environ.get(name) else None


def _asked_gpus(environ: Mapping[str, str]) -> Grant | None:
    text = environ.get(_GPUS_ASKED, "").strip()
    if text not in _UNSET:
        return Grant(_gpu_count(_GPUS_ASKED, text), _GPUS_ASKED)
    text, tasks = environ.get(_GPUS_PER_TASK, "").strip(), environ.get(_TASKS, "").strip()
    if text in _UNSET or not (tasks.isascii() and tasks.isdigit()):
        return None
    return Grant(_gpu_count(_GPUS_PER_TASK, text) * int(tasks), f"{_GPUS_PER_TASK} times {_TASKS}")


def _gpu_count(name: str, text: str) -> int:
    total = 0
    for item in text.split(","):
        match = re.fullmatch(r"(?:[^\s:,()]+:)*(\d+)(?:\(S:[\d,-]+\))?", item.strip(), re.ASCII)
        if not match:
            raise _unreadable_gpus(name, text, "a count such as 4, a100:4 or a100:2,h100:1")
        total += int(match[1])
    return total


def _gpu_set(name: str, text: str) -> set[int]:
    seen: set[int] = set()
    for item in text.removeprefix("[").removesuffix("]").split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", item.strip(), re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise _unreadable_gpus(name, text, "device numbers such as 0,1 or 0-3")
        seen.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return seen


def _unreadable_gpus(name: str, text: str, expected: str) -> Exception:
    from ezpz.cluster.devices.device_answer import refusal

    return refusal("the devices that Slurm granted", name, text, expected, "run `export EZPZ_NGPU_PER_HOST=N`")


SCHEDULER = Slurm()
