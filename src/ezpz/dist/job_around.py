"""Describe the job around this rank: hosts, devices, scheduler, machine. No program is started for an answer.

Inside `ezpz launch` its answer counts, because an MPI may hide the job's variables from ranks:

    EZPZ_HOSTS=n01,n02  EZPZ_PLACEMENT=4(x2)  EZPZ_SCHEDULER=pbs  EZPZ_JOBID=4[2].head  EZPZ_FLAVOUR=MPICH

Otherwise `ezpz.cluster` looks at variables and files. "Node" in a name is older code's word for a host.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ezpz.cluster import count_devices, detect, probe
from ezpz.cluster.devices.mask_variables import MASKS
from ezpz.cluster.site import recognise
from ezpz.errors import MachineError, RankError, UsageError
from ezpz.log import get_logger
from ezpz.ranks import ALONE, Ranks, expand_counts, from_environ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster import Allocation


# Rank and world size, before and after the process group exists.
#
# The environment tells (`ezpz.ranks`). Where it only shows that some MPI has started this process, and not as which
# rank, mpi4py is asked: these are launchers that `ezpz.ranks` does not read, such as a bare prterun or mpirun_rsh, and
# PALS on Aurora, which tells a rank but no size.

# Set in every process of some launcher: PALS without sizes, PMI and PMIx ones, MVAPICH's mpirun_rsh, Cray's aprun.
_SIGNS = ("PALS_RANKID", "PMIX_RANK", "PMI_RANK", "PMI_ID", "MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK", "ALPS_APP_PE")

_by_mpi: Ranks | None = None


def this_rank() -> Ranks:
    """Return who the launcher says this process is.

    Raises:
        RankError: The environment contradicts itself, or an unknown launcher has started this process and MPI cannot be
            asked.
    """
    if "RANK" not in os.environ and _tells_no_size(os.environ):
        return _ask_mpi(ALONE, os.environ)
    ranks = from_environ(os.environ)
    return _ask_mpi(ranks, os.environ) if ranks.family == "alone" else ranks


def _tells_no_size(environ: Mapping[str, str]) -> bool:
    """Tell whether PALS started this rank outside of `ezpz launch` and, as on Aurora, without the size of the world."""
    return "PALS_RANKID" in environ and not environ.keys() & {"PALS_SIZE", "PMI_SIZE", "EZPZ_PLACEMENT"}


def get_rank() -> int:
    """Return this process's rank, 0 for the first of ``get_world_size()``."""
    return this_rank().rank


def get_world_size(*, total: bool = False, in_use: bool = False) -> int:
    """Return the number of ranks, at least 1.

    Args:
        total: Return what all devices of the job could hold instead.
        in_use: Return the number of ranks; the older name of what is returned anyway.
    """
    if total and not in_use:
        return get_world_size_total()
    return this_rank().world_size


def get_local_rank() -> int:
    """Return this process's rank among those of its own host."""
    return this_rank().local_rank


def _ask_mpi(alone: Ranks, environ: Mapping[str, str]) -> Ranks:
    """Return what mpi4py says where it runs, or where a sign of an unknown launcher makes it worth a question.

    The first answer is collective, because MPI counts the ranks of a host together; it is kept.
    """
    global _by_mpi
    if _by_mpi is not None:
        return _by_mpi
    sign = next((name for name in _SIGNS if name in environ), "")
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None and sign:
        module = _import_mpi(sign, environ[sign])
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return alone
    world = module.COMM_WORLD
    rank, size = int(world.Get_rank()), int(world.Get_size())
    if sign and environ[sign] != str(rank):
        raise RankError(
            f"mpi4py says rank {rank} of {size}, but {sign}={environ[sign]} (from the launcher); expected the same: "
            "mpi4py was built for another MPI than the launcher's. Start the ranks with `ezpz launch`, or install "
            "mpi4py for that MPI."
        )
    host = world.Split_type(module.COMM_TYPE_SHARED)
    local, local_size = int(host.Get_rank()), int(host.Get_size())
    host.Free()
    _by_mpi = Ranks(rank, size, local, local_size, 0 if local_size == size else None, "mpi4py")
    return _by_mpi


def _import_mpi(sign: str, value: str) -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # it is absent, or its MPI library is
        raise RankError(
            f"cannot tell the rank: {sign}={value} (from the environment) shows a launcher whose other variables are "
            f"unknown, and mpi4py cannot be asked: {error}; expected mpi4py, or RANK and WORLD_SIZE. Start the ranks "
            f"with `ezpz launch`, or `unset {sign}` if no launcher started this."
        ) from None
    return MPI


def get_hostname() -> str:
    """Return this host's name as the kernel tells it."""
    return os.uname().nodename


def get_num_nodes(hostfile: str | os.PathLike[str] | None = None) -> int:
    """Return the number of hosts of this launch, otherwise of the job, otherwise 1.

    Args:
        hostfile: Count the hosts of this file instead, each once.

    Raises:
        UsageError: The file cannot be read or names no host.
    """
    if hostfile is not None:
        return len(get_nodes_from_hostfile(hostfile))
    if _is_launched() and os.environ.get("EZPZ_PLACEMENT"):
        return len(list(expand_counts(os.environ["EZPZ_PLACEMENT"])))
    return len(job()[2])


def get_nodes_from_hostfile(hostfile: str | os.PathLike[str]) -> list[str]:
    """Return the hosts of a file in its order, each once: PBS repeats a host for each rank.

    Args:
        hostfile: One host per line, with ``:4`` or ``slots=4`` after it if wished; ``#`` begins a comment.

    Raises:
        UsageError: The file cannot be read or names no host.
    """
    path = os.fspath(hostfile)
    text = probe.read(path)
    lines = [line.partition("#")[0].split() for line in (text or "").splitlines()]
    hosts = list(dict.fromkeys(words[0].rpartition("@")[2].partition(":")[0] for words in lines if words))
    if not hosts:
        what = "it cannot be read" if text is None else "it names no host"
        raise UsageError(f"no hosts from {path} (from get_nodes_from_hostfile): {what}; expected one host per line.")
    return hosts


def get_gpus_per_node() -> int:
    """Return the accelerators of this host that the job may use, 0 on a machine without any.

    Counted as `ezpz.cluster.count_devices` does; of a rank that sees one device only, the ranks of its host are
    counted, since its launcher gave one to each.

    Raises:
        UsageError: A variable that counts or hides devices cannot be read.
    """
    allocation = _allocation()
    job_id = allocation.job_id if allocation else ""
    site = recognise(os.environ, probe.read, job_id).site
    run = probe.run if this_rank().family == "alone" else probe.run_nothing  # ranks do not ask a driver all at once
    devices = count_devices(os.environ, probe.read, run, allocation, site)
    is_own = devices.count == 1 and devices.origin.partition(",")[0] in MASKS
    return max(1, this_rank().local_world_size) if is_own else devices.count


def get_cpus_per_node() -> int:
    """Return the CPUs of this host that the job was granted, otherwise all that it has; binding is left out of
    account.
    """
    allocation = _allocation()
    if allocation is not None and allocation.cpus:
        index = _index_among(allocation.hosts)
        if index is not None:
            return allocation.cpus[index]
    return os.cpu_count() or 1


def get_node_index() -> int:
    """Return the index of this rank's host among those of the launch, 0 for the first.

    Raises:
        MachineError: Neither the launcher nor the job's list of hosts tells.
    """
    index = host_index()
    if index is None:
        raise MachineError(
            f"cannot tell the index of host {get_hostname()}: the launcher does not say it (from "
            f"{this_rank().family}) and the job's hosts are {', '.join(job()[2])}; expected this host among them. "
            "Start the ranks with `ezpz launch`."
        )
    return index


def get_world_size_total() -> int:
    """Return the ranks that the job could hold: hosts times accelerators, or times one where there are none."""
    return get_num_nodes() * max(get_gpus_per_node(), 1)


def get_world_size_in_use() -> int:
    """Return the number of ranks that run, as `get_world_size` does."""
    return this_rank().world_size


def get_scheduler(_scheduler: str | None = None) -> str:
    """Return ``SLURM``, ``PBS``, ``FLUX``, or ``UNKNOWN``: of the job, otherwise of the site that this host belongs to.

    Args:
        _scheduler: Returned in capitals if given; ``EZPZ_SCHEDULER`` asks for the same.
    """
    name = _scheduler or job()[0]
    if name in {"none", "unknown"}:
        site = recognise(os.environ, probe.read).site
        name = os.environ.get("EZPZ_SCHEDULER") or (site.scheduler if site else "")
    return "UNKNOWN" if name.lower() in {"", "none"} else name.upper()


def get_machine(hostname: str | None = None) -> str:
    """Return the machine's name, for example ``Aurora``, ``Polaris``, ``Perlmutter``; an unknown one's host name.

    The sites of `ezpz sites` decide, by variables and names that no other machine shares: a host called ``login1``
    alone belongs to no site.

    Args:
        hostname: Name the machine that a host of this name belongs to, instead of this host's.

    Raises:
        UsageError: ``EZPZ_SITE`` names no known site.
    """
    if hostname is None:
        site = recognise(os.environ, probe.read).site
    else:
        home = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in os.environ}
        # Of another host only its name is known: this one's /etc/hosts would add a domain of here.
        own = {"/proc/sys/kernel/hostname": hostname, "/etc/hosts": None, "/etc/resolv.conf": None}
        site = recognise(home, lambda path: own[path] if path in own else probe.read(path)).site
    return site.name.capitalize() if site else hostname or get_hostname()


def query_environment() -> dict[str, int]:
    """Return ``world_size``, ``rank`` and ``local_rank`` of this process."""
    ranks = this_rank()
    return {"world_size": ranks.world_size, "rank": ranks.rank, "local_rank": ranks.local_rank}


def _is_launched() -> bool:
    return bool(os.environ.get("EZPZ_FLAVOUR"))  # EZPZ_HOSTS alone may be a leftover of a shell


def job() -> tuple[str, str, list[str]]:
    """Return scheduler, job id and hosts: the launcher's answer, because an MPI may hide the job's variables from
    ranks.
    """
    if _is_launched() and os.environ.get("EZPZ_HOSTS"):
        told_by_launcher = (os.environ.get("EZPZ_SCHEDULER", "none"), os.environ.get("EZPZ_JOBID", ""))
        return (*told_by_launcher, os.environ["EZPZ_HOSTS"].split(","))
    allocation = _allocation()
    if allocation is None:
        return "unknown", "", [get_hostname()]
    return allocation.scheduler, allocation.job_id, list(allocation.hosts)


def _allocation() -> Allocation | None:
    try:
        return detect(run=probe.run_nothing)
    except MachineError as error:  # a job whose hosts are lost must not stop a training
        get_logger(__name__).warning(str(error))
        return None


def _index_among(hosts: tuple[str, ...] | list[str]) -> int | None:
    here = get_hostname()
    return next((index for index, host in enumerate(hosts) if probe.is_same_host(host, here)), None)


def host_index() -> int | None:
    """Return the index of this rank's host; None where neither the launcher nor the job's list of hosts tells."""
    host_index = this_rank().host_index
    return _index_among(job()[2]) if host_index is None else host_index
