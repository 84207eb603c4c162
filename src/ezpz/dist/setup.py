"""One call that makes a process a rank, and one that ends it."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ezpz.dist.device import (
    BACKENDS,
    bind_device,
    get_torch_backend,
    get_torch_device,
    get_torch_device_type,
    group_backend,
)
from ezpz.dist.recorder import answer_requests
from ezpz.dist.rendezvous import meet
from ezpz.dist.world import told
from ezpz.dist.world_check import check_group, check_mpi, check_plan
from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger
from ezpz.progress import stage

if TYPE_CHECKING:
    from ezpz.ranks import Ranks

__all__ = ["cleanup", "get_dist_info", "seed_everything", "setup_torch"]

# gloo's threads finish the last asynchronous work after it was waited for, and need Python's lock for that. An
# interpreter that ends meanwhile aborts the process: 9 of 45 runs of a DDP script, 0 of 50 with a pause (torch 2.13).
_GLOO_SECONDS = 0.05
_RENDEZVOUS_SECONDS = 300  # long enough for Python to start on a slow shared file system, short against a job's hours


def setup_torch(
    *,
    backend: str | None = None,
    port: int | None = None,
    seed: int | None = None,
    timeout: timedelta | float | None = None,
    verbose: bool = False,
) -> int:
    """Make this process a rank: device, backend, process group.

    Works alone, under ``ezpz launch``, torchrun, a bare ``mpiexec`` of MPICH, Intel MPI and Open MPI, and under srun,
    without any MPI library. A world of one gets a working group too. Calling it again returns the rank and does nothing. The
    world is compared with the launch's plan, with a group that the script has made, and with mpi4py where that is in use.

    The launcher's answers are written into ``os.environ`` under torchrun's names where they are missing, because other
    libraries look there.

    Args:
        backend: Collective backend such as ``gloo`` or ``nccl``; by default the device's own.
        port: Port of rank 0's store; by default as the launcher tells, or a free one.
        seed: If given, passed to `seed_everything`.
        timeout: Time limit of one collective, in seconds or as timedelta; torch's own by default.
        verbose: Let every rank print its line instead of one per host.

    Returns:
        The rank of this process.

    Raises:
        RankError: The environment, the plan of the launch, torch's group or MPI contradict each other about the world.
        RendezvousError: A rank did not arrive within 300 s (``EZPZ_RENDEZVOUS_SECONDS``), or the port is taken.
        MachineError: torch is missing, the host shows fewer devices than it has ranks, or no backend serves the device.
        UsageError: ``TORCH_DEVICE``, ``TORCH_BACKEND``, ``backend`` or ``MASTER_PORT`` is unusable.
    """
    ranks = told()
    check_plan(ranks, os.environ)
    dist = _distributed()
    stage("torch")
    if dist.is_initialized():
        check_group(ranks)
        return ranks.rank
    check_mpi(ranks, os.environ)
    if backend is not None and backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r} (from setup_torch); expected one of {', '.join(BACKENDS)}.")
    device = get_torch_device()
    bind_device(device)
    chosen = backend or get_torch_backend()
    store = meet(ranks, os.environ, _patience(), port)
    _fill_environ(ranks)
    _make_group(chosen, device, ranks, store, timeout)
    stage("group")
    answer_requests(ranks.rank, chosen, os.environ)
    if seed is not None:
        seed_everything(seed)
    if verbose or ranks.local_rank == 0 or os.environ.get("EZPZ_LOG_ALL_RANKS") == "1":
        _say_who(ranks, str(device))
    return ranks.rank


def _make_group(backend: str, device: Any, ranks: Ranks, store: Any, timeout: timedelta | float | None) -> None:
    options: dict[str, Any] = {}
    if timeout is not None:
        options["timeout"] = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if device.type in {"cuda", "xpu"} and backend in {"nccl", "xccl"}:
        options["device_id"] = device
    names = group_backend(backend, device.type)
    _distributed().init_process_group(names, store=store, rank=ranks.rank, world_size=ranks.world_size, **options)


def cleanup() -> None:
    """Leave the process group; never fails a run that succeeded, and does nothing without a group."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    try:
        gloo = "gloo" in torch.distributed.get_backend_config()
        torch.distributed.destroy_process_group()
        if gloo:
            time.sleep(_GLOO_SECONDS)
    except RuntimeError as error:  # a peer that left first must not turn success into failure
        get_logger(__name__).warning(f"could not leave the process group cleanly: {error}")


def seed_everything(seed: int) -> None:
    """Seed Python, numpy (if it is loaded) and torch with the same number on every rank.

    Equal seeds make equal initial weights; data is told apart by rank where it is sharded, not by the seed.

    Args:
        seed: A whole number from 0 to 2**32 - 1.

    Raises:
        UsageError: The seed is out of range.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"unusable seed {seed}; expected 0 to {2**32 - 1}, the range that numpy takes.")
    import torch

    random.seed(seed)
    torch.manual_seed(seed)  # all devices included
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def get_dist_info() -> dict[str, Any]:
    """Return what this rank knows of itself and its job, e.g. for a log or a configuration."""
    ranks = told()
    scheduler, job_id, hosts = _job()
    return {
        "RANK": ranks.rank,
        "WORLD_SIZE": ranks.world_size,
        "LOCAL_RANK": ranks.local_rank,
        "LOCAL_WORLD_SIZE": ranks.local_world_size,
        "LAUNCHER": os.environ.get("EZPZ_FLAVOUR", ranks.family),
        "DEVICE": str(get_torch_device()),
        "DEVICE_TYPE": get_torch_device_type(),
        "BACKEND": get_torch_backend(),
        "HOSTNAME": os.uname().nodename,
        "HOSTS": hosts,
        "SCHEDULER": scheduler,
        "JOB_ID": job_id,
        "LAUNCH_CMD": os.environ.get("EZPZ_LAUNCH_CMD", ""),
    }


def _distributed() -> Any:
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        raise MachineError(
            f"cannot become a rank: {error} (from {sys.executable}); expected a Python with torch. "
            "Run `ezpz_setup_env`, or load the site's module that brings torch."
        ) from None
    return dist


def _job() -> tuple[str, str, list[str]]:
    """Return scheduler, job id and hosts: the launcher's answer, because an MPI may hide the job's variables from ranks."""
    if os.environ.get("EZPZ_FLAVOUR") and os.environ.get("EZPZ_HOSTS"):
        return os.environ["EZPZ_SCHEDULER"], os.environ["EZPZ_JOBID"], os.environ["EZPZ_HOSTS"].split(",")
    from ezpz.cluster import detect, probe

    try:
        allocation = detect(run=probe.run_nothing)
    except MachineError as error:
        get_logger(__name__).warning(str(error))
        return "unknown", "", [os.uname().nodename]
    return allocation.scheduler, allocation.job_id, list(allocation.hosts)


def _patience() -> timedelta:
    text = os.environ.get("EZPZ_RENDEZVOUS_SECONDS", str(_RENDEZVOUS_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise UsageError(
            f"unusable time {text!r} (from EZPZ_RENDEZVOUS_SECONDS); expected a positive number of seconds."
        )
    return timedelta(seconds=seconds)


def _fill_environ(ranks: Ranks) -> None:
    for name, value in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), ranks[:4], strict=True):
        os.environ.setdefault(name, str(value))


def _say_who(ranks: Ranks, device: str) -> None:
    line = (
        f"['{os.uname().nodename}'][device='{device}'][rank={ranks.rank}/{ranks.world_size}]"
        f"[local_rank={ranks.local_rank}/{ranks.local_world_size}]"
    )
    logger = get_logger(__name__)
    # Handled directly, because other ranks than 0 are silent at INFO and each host shall speak once.
    where = _say_who.__code__
    record = logger.makeRecord(logger.name, logging.INFO, where.co_filename, where.co_firstlineno, line, (), None)
    logger.handle(record)
