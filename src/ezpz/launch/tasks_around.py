"""Refuse to start a world in each of several tasks of one launcher, as ``srun launch …`` would.

``srun -n 4 torchrun …`` is a habit, and each of its tasks would start all ranks, on the same hosts. What tells the
tasks is what tells ranks (`ezpz.ranks`). Not so inside a program that is a rank, of `ezpz launch` or of another
launcher: it may start launches of its own.
"""

from __future__ import annotations

import os
import shlex
import time

from ezpz import proc
from ezpz.cluster.probe import is_here
from ezpz.errors import RankError, UsageError
from ezpz.launch.flavours import LOCAL
from ezpz.ranks import FAMILIES, TORCHRUN, Family, Ranks

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.launch.options import LaunchOptions

_PASS_ON = {"conda", "mamba", "pipenv", "poetry", "hatch", "pdm"}  # written in Python, and what they run is the task
_MEET = " --master-addr $MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node auto"
_FIRST_SPEAKS = 2.0  # seconds in which the first task says why: many launchers end all tasks when one has failed


def task_around(environ: Mapping[str, str]) -> tuple[Family, Ranks] | None:
    """Return the launcher that has started this process as one of several tasks, and which; None where none has."""
    if "EZPZ_LAUNCH_ID" in environ:
        return None
    for family in (*FAMILIES, TORCHRUN):
        try:
            ranks = family.read(environ)
        except RankError:
            ranks = _of_unknown_world(family, environ)
        if ranks:
            alone = ranks.world_size == 1 or _is_shell(family, environ) or _is_of_program(family, environ)
            return None if alone else (family, ranks)
    return None


def _of_unknown_world(family: Family, environ: Mapping[str, str]) -> Ranks | None:
    """Return a task where the launcher tells the number of those on this host alone, as PALS does on Aurora."""
    rank, _, local, size = (environ.get(name, "") for name in family.variables[:4])
    if not (rank.isdigit() and local.isdigit() and size.isdigit() and int(size) > 1):
        return None  # leftovers, or one task per host, or one in all
    return Ranks(int(rank), 0, int(local), int(size), None, family.name)


def _is_shell(family: Family, environ: Mapping[str, str]) -> bool:
    """Tell whether a person types into the first task, as with ``srun -N 2 --pty bash``: the others have ended."""
    if not family.terminal_variable or family.terminal_variable not in environ or not _has_terminal():
        return False
    return proc.name(os.getppid()) != family.careless_starter  # else the task itself is `launch`


def _has_terminal() -> bool:
    """Tell whether this process has a terminal, also where its input and output are none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return any(map(os.isatty, range(3)))
    return True


def _is_of_program(family: Family, environ: Mapping[str, str]) -> bool:
    """Tell whether a program that is a rank stands between the launcher and this process, and not shells alone."""
    rank = family.variables[0]
    if family is not TORCHRUN and environ.get("RANK") == environ[rank]:  # which this launcher does not set
        return True
    pid = os.getppid()
    while pid > 1 and f"\0{rank}=".encode() in proc.environ(pid):
        # A script that names Python in its first line has a name of its own.
        if os.path.basename(proc.link(pid, "exe")).startswith("python") and proc.name(pid) not in _PASS_ON:
            return True
        status = proc.stat(pid)
        pid = status.parent if status else 0
    return False


def _refuse_as_pod(options: LaunchOptions, environ: Mapping[str, str]) -> None:
    """Refuse to launch in one of several pods of Kubeflow's PyTorchJob, which no launch reaches from another.

    Its operator sets ``MASTER_ADDR MASTER_PORT WORLD_SIZE=2 RANK=1`` for each pod, and for torchrun, which knows what
    to do with them, ``PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 …``; ``PET_NNODES=1:4`` if it is
    elastic.
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch

    Raises:
        UsageError: This is one.
    """
    named = [environ.get("MASTER_ADDR"), environ.get("RANK"), environ.get("KUBERNETES_SERVICE_HOST")]
    by_older = all(named) and "LOCAL_RANK" not in environ
    origin = "PET_NNODES" if environ.get("PET_NNODES") else "WORLD_SIZE"
    pods = environ.get("PET_NNODES", "").rpartition(":")[2] or (environ.get("WORLD_SIZE", "") if by_older else "")
    if not pods.isdigit() or int(pods) < 2 or "EZPZ_LAUNCH_ID" in environ or _is_meant(options):
        return
    command = list(options.command)
    if os.path.basename(command[0]).startswith("python") and command[1:2] and command[1].endswith(".py"):
        del command[0]
    front = "" if origin == "PET_NNODES" else f" --nnodes $WORLD_SIZE --node-rank $RANK{_MEET}"
    no_python = "" if command[0].endswith(".py") else " --no-python"
    raise UsageError(
        f"this is a pod of a PyTorchJob of {pods} (from {origin}), and `launch` would start a world in each: it "
        "reaches no other pod; expected ranks of the one world of the job. Write "
        f"`torchrun{front}{no_python} {shlex.join(command)}`, which takes the job's variables (PET_*, MASTER_ADDR); "
        "for a world in this pod alone, `launch --flavour local …`."
    )


def refuse_as_task(options: LaunchOptions, typed: Sequence[str], environ: Mapping[str, str]) -> int:
    """Refuse to launch as one of several tasks; return the exit code of all but the first, which say nothing, and 0
    where ranks may start.

    One task per host may start a world of its own there, where the user has named this host.

    Args:
        options: What the user asked for.
        typed: The words behind ``launch``.
        environ: The environment of the launcher.

    Raises:
        UsageError: This is the first of several tasks, or a pod of several.
    """
    _refuse_as_pod(options, environ)
    around = task_around(environ)
    if not around:
        return 0
    family, ranks = around
    if ranks.local_world_size == 1 and _is_meant(options):
        return 0
    if ranks.rank:
        time.sleep(_FIRST_SPEAKS)
        return UsageError.exit_code
    world, rank = ranks.world_size, family.variables[0]
    as_many = world and ranks.local_world_size > 1 and options.ranks is None and options.per_host is None
    line = shlex.join(["launch", *(["-n", str(world)] if as_many else []), *typed])
    raise UsageError(
        f"`{family.program} … launch` would start a world in each of {world or 'several'} tasks, on the same hosts "
        f"(from {rank}); expected one launch, which starts the ranks of all hosts itself. Write `{line}`, without "
        f"{family.program}; to launch in one task alone, `env -u {rank} launch …`."
    )


def _is_meant(options: LaunchOptions) -> bool:
    hosts = options.hosts or ()
    return options.flavour == LOCAL or (len(hosts) == 1 and is_here(hosts[0]))
