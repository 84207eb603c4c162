"""Make the environment that every rank gets: torchrun's whole contract, and nothing stale of an outer launcher.

Source of the contract: torch 2.13, ``torch.distributed.run``. The launcher sets what is equal on all ranks; the rest is
added per rank, by the local flavour itself or by the shim in front of a rank (`ezpz.launch.host.shim`).

    EZPZ_PLACEMENT=4(x2),3   ranks per host, from which the shim derives and checks who it is
    EZPZ_CONTROL=secret@port@address,address   where the launcher listens for agents; ranks do not see it
    EZPZ_SOCKET=@ezpz-5f3a…  where the agent of this host listens for shims and ranks (`ezpz.local_socket`)
    EZPZ_LAUNCH=5f3a…        id of the launch, for what starts ranks; `outer/inner` inside a rank of another launch
    EZPZ_LAUNCH_ID=5f3a…     the same for ranks and all that they start: what is left of them is known by it; behind it
                             `/00000002` for those of the second world that a launch has its agents start
    EZPZ_NO_MPI=1            no MPI started these ranks: one that is started in them finds each alone
    EZPZ_NO_MPI=--mpi no     by the option that is named, no rank starts one: the agent ends one that does
    EZPZ_RUN_ID=5f3a0c1e     TORCHELASTIC_RUN_ID once more: a launcher inside a rank changes that one alone
    EZPZ_RECORDER=/tmp/…     folder for the dumps of torch's flight recorder (`ezpz.launch.host.rank_start`)
    EZPZ_COLLECTIVES=/tmp/…  folder where ranks leave their last collectives (`ezpz.watch.collectives.last_collectives`)
    EZPZ_IGNORED=1 2         signals that the launcher was started with ignored, as by `nohup`: ranks ignore them too
    EZPZ_PATH=/usr/bin:/bin  the user's PATH, which the shim gives back where the launcher may have changed it
    EZPZ_LD_LIBRARY_PATH=    the same for this one; empty where the user has none
    EZPZ_PACKED=42415348…    the user's variables whose names the launcher carries to no other host: functions of bash
    EZPZ_REMOTE_SHELL=srun … words of the scheduler that start a command on the host behind them (`bin/remote_shell`)
    EZPZ_REMOTE_AS=4711,PBS_JOBID,…   a process of the job, and the variables that these words need and this shell lacks
    EZPZ_DEVICES=…           the devices that were chosen, for a launcher that sets masks anew
    (`ezpz.launch.device_choice`) EZPZ_SIGNALLED_BY=slurmstepd   the scheduler's program that signals ranks itself; for
    shims EZPZ_IGNORED_AT_START=SIGUSR1 SIGUSR2   signals that a rank starts with ignored by us, where others signal
    ranks EZPZ_STDIN=none          the launcher has no input to pass on, so that no rank shall wait for any
"""

from __future__ import annotations

import math
import os

from ezpz.cgroup import cpu_quota
from ezpz.ranks import CONTRACT, LAUNCHERS_OWN, Ranks, alike

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BY_LAUNCHER = "--by-launcher"  # first word for the agent that an mpiexec or srun starts; the command follows
LONGEST_VARIABLE = 64 * 1024  # characters: half of what Linux grants one variable

_PATHS = ("PATH", "LD_LIBRARY_PATH")
OURS = (
    "EZPZ_PLACEMENT",
    "EZPZ_CONTROL",
    "EZPZ_SOCKET",
    "EZPZ_LAUNCH",
    "EZPZ_LAUNCH_ID",
    "EZPZ_IGNORED",
    "EZPZ_STDIN",
    "EZPZ_HOSTS",
    "EZPZ_LAUNCH_CMD",
    "EZPZ_FLAVOUR",
    "EZPZ_NO_MPI",
    "EZPZ_OVERSUBSCRIBE",
    "EZPZ_ATTEMPT",
    "EZPZ_RUN_ID",
    "EZPZ_RECORDER",
    "EZPZ_COLLECTIVES",
    "EZPZ_PATH",
    "EZPZ_LD_LIBRARY_PATH",
    "EZPZ_PACKED",
    "EZPZ_REMOTE_SHELL",
    "EZPZ_REMOTE_AS",
    "EZPZ_DEVICES",
    "EZPZ_SIGNALLED_BY",
    "EZPZ_IGNORED_AT_START",
)
_NOT_INHERITED = frozenset((*CONTRACT, *OURS, *LAUNCHERS_OWN))


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without what an outer launcher left in it: it speaks for none of the ranks to come.

    A scheduler may set ``OMP_NUM_THREADS`` to the CPUs of the whole host, which is meant for no rank.
    """
    from ezpz.cluster.scheduler import schedulers  # shims, which need no scheduler, do not call this

    kept = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
    if environ.get("EZPZ_NO_MPI", "1") != "1":  # a launch inside a rank: its own ranks may start an MPI
        from ezpz.launch.host.mpi_trap import cleared

        kept = cleared(kept)
    whole_host = [environ.get(one.threads_variable) for one in schedulers() if one.is_marked(environ)]
    if kept.get("OMP_NUM_THREADS", "") in filter(None, whole_host):
        del kept["OMP_NUM_THREADS"]
    return kept


def kept_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables of ours that hold the user's paths, for a launcher that changes those of ranks."""
    return {f"EZPZ_{name}": environ.get(name, "") for name in _PATHS}


def packed(environ: Mapping[str, str], names: Iterable[str]) -> str:
    """Return variables as one word of letters, for a launcher that carries none of their names; empty where they are
    too long for one.
    """
    text = "\0".join(f"{name}={environ[name]}" for name in names)
    return os.fsencode(text).hex() if len(text) < LONGEST_VARIABLE // 2 else ""


def restore_environment(environ: dict[str, str]) -> None:
    """Give a rank the paths of the user again, where `kept_paths` holds them, and what came `packed`."""
    for name in _PATHS:
        value = environ.pop(f"EZPZ_{name}", None)
        if value:
            environ[name] = value
        elif value == "":
            environ.pop(name, None)
    for entry in filter(None, os.fsdecode(bytes.fromhex(environ.pop("EZPZ_PACKED", ""))).split("\0")):
        name, _, value = entry.partition("=")
        environ.setdefault(name, value)


def picked(mask: str, entries: Sequence[str]) -> str:
    """Return a mask that leaves some of the devices of another one.

    Args:
        mask: The value of a variable such as CUDA_VISIBLE_DEVICES; empty where all devices are visible.
        entries: Places among its devices, or UUIDs; places beyond them are left out.
    """
    visible = [entry.strip() for entry in mask.split(",")] if mask.strip() else None
    if visible is None:
        return ",".join(entries)
    places = [entry for entry in entries if not entry.isdigit() or int(entry) < len(visible)]
    return ",".join(visible[int(entry)] if entry.isdigit() else entry for entry in places)


def restore_mask(environ: dict[str, str]) -> None:
    """Let a rank see the devices that the user chose, where its launcher has set the mask anew."""
    chosen = environ.pop("EZPZ_DEVICES", "").split(" ")
    if len(chosen) == 3 and environ.get(chosen[0]) != chosen[1]:
        environ[chosen[0]] = picked(environ.get(chosen[0], ""), chosen[2].split(","))


def named_hosts(hosts: tuple[str, ...]) -> str:
    """Return ``n01,n02`` for ``EZPZ_HOSTS``; empty when it would come near the 128 KiB that Linux grants a variable."""
    text = ",".join(hosts)
    return text if len(text) < LONGEST_VARIABLE else ""


def rank_variables(ranks: Ranks, hosts: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the contract that differs between ranks, and the names of other launchers that tell the same.

    Args:
        ranks: Who this rank is; the index of its host is known.
        hosts: Number of hosts.
        environ: Its environment, without what another launcher has told.
    """
    return {
        **{name: value for name, value in alike(ranks, environ).items() if value is not None},
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "GROUP_RANK": str(ranks.host_index),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_RANK": str(ranks.rank),
        "ROLE_WORLD_SIZE": str(ranks.world_size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def tell(environ: dict[str, str], ranks: Ranks, hosts: int) -> None:
    """Let an environment that a launcher has made tell one rank, by whichever names it is asked."""
    told = alike(ranks, environ)
    for name in [name for name, value in told.items() if value is None]:
        environ.pop(name, None)
    if ranks.family == "contract":  # torchrun's agent has set it all, and holds the store itself
        environ.update((name, value) for name, value in told.items() if value is not None)
    else:
        environ.update(rank_variables(ranks, hosts, environ))


def threads(local_world_size: int) -> str:
    """Return the threads of one rank: the cores that this process may use, shared among the ranks of its host."""
    return str(max(1, min(bound_cpus() // threads_per_core(), cores()) // local_world_size))


def threads_per_core(cpus: str = "/sys/devices/system/cpu") -> int:
    """Return how many of the CPUs that this process may use are hardware threads of one core; 1 where nothing tells.

    Args:
        cpus: Folder of Linux's facts: ``cpu0/topology/thread_siblings_list`` reads ``0,64`` or ``0-1``.
    """
    if not hasattr(os, "sched_getaffinity"):  # not on macOS
        return 1
    allowed = os.sched_getaffinity(0)
    try:
        with open(f"{cpus}/cpu{min(allowed)}/topology/thread_siblings_list", encoding="utf-8") as file:
            siblings = {
                cpu
                for low, _, high in (part.partition("-") for part in file.read().strip().split(","))
                for cpu in range(int(low), int(high or low) + 1)
            }
    except (OSError, ValueError):
        return 1
    return max(1, len(siblings & allowed))


def quoted(word: str) -> str:
    """Return a word without what separates programs for mpiexec and srun (``:``) or is a macro of torchrun (``$``)."""
    return word.replace("%", "%25").replace(":", "%3A").replace("$", "%24")


def unquoted(word: str) -> str:
    """Return the word that was `quoted`."""
    return word.replace("%24", "$").replace("%3A", ":").replace("%25", "%")


def cores() -> int:
    """Return the number of CPUs that this process may use, each hardware thread of a core counted.

    A quota of CPU time (``docker --cpus``, Kubernetes) leaves all CPUs visible: more threads than it has CPUs are
    stopped by turns.
    """
    quota = cpu_quota()
    return bound_cpus() if quota is None else max(1, min(bound_cpus(), math.ceil(quota)))


def bound_cpus() -> int:
    """Return the number of CPUs that this process is bound to, or all where it is bound to none."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
