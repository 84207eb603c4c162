"""Make a process a rank, in one call."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ezpz.dist import ending
from ezpz.dist.arguments import split_backend, whole_port
from ezpz.dist.arrivals import report_arrivals
from ezpz.dist.backend import check_backend, device_id_for_group, get_torch_backend, group_backend
from ezpz.dist.device import bind_device, choose_device
from ezpz.dist.device import device as own_device
from ezpz.dist.ending import answer_requests
from ezpz.dist.failure_watch import join
from ezpz.dist.job_around import this_rank
from ezpz.dist.rendezvous import is_supervised, meet
from ezpz.dist.seeds import keep_run_seed, seed_everything
from ezpz.dist.verify_world import check_group, check_mpi, check_plan
from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger
from ezpz.progress import stage

if TYPE_CHECKING:
    import torch

    from ezpz.dist.rendezvous import Met
    from ezpz.ranks import Ranks


# The line by which a host shows that its ranks are up.
#
# ['n01'][device='cuda:0'][rank=0/8][local_rank=0/4][tp:0/2][dp:0/4]      counts are true sizes: the first of eight;
# tp and dp only where setup_torch makes the mesh


def say_who(ranks: Ranks, device: str) -> None:
    """Print this rank's line, whatever rank it is: others than 0 are silent at INFO, and each host shall speak once."""
    from ezpz.dist.mesh import coordinate, degree, get_mesh

    mesh = get_mesh()
    # A script may call `init_mesh` later: without a mesh nothing is known of it yet.
    names = [name for name in ("pp", "cp", "tp", "dp") if mesh and (name in {"tp", "dp"} or degree(mesh, name) > 1)]
    parts = "".join(f"[{name}:{coordinate(mesh, name)}/{degree(mesh, name)}]" for name in names)
    line = (
        f"['{os.uname().nodename}'][device='{device}'][rank={ranks.rank}/{ranks.world_size}]"
        f"[local_rank={ranks.local_rank}/{ranks.local_world_size}]{parts}"
    )
    get_logger("ezpz.dist.who", rank=0).info(line)  # it says itself which rank it is


_RENDEZVOUS_SECONDS = 300  # long enough for Python to start on a slow shared file system, short against a job's hours


def setup_torch(
    backend: str | None = None,
    *,
    port: int | str | None = None,
    seed: int | None = None,
    timeout: timedelta | float | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    context_parallel_size: int = 1,
    dp_replicate: int = 1,
    device_id: int | str | torch.device | None = None,
    verbose: bool = False,
) -> int:
    """Make this process a rank (device, backend, process group, and the mesh if sizes are given) and return its rank.

    Works alone, under ``ezpz launch``, torchrun, a bare ``mpiexec`` of MPICH, Intel MPI and Open MPI, and under srun,
    without any MPI library; a world of one gets a group too. Calling it again returns the rank, and only a seed or
    sizes that are given have an effect. The launch's plan, a group that the script has made, and mpi4py where that is
    in use must agree. The ranks' numbers are written into ``os.environ`` under torchrun's names where they are missing,
    because other libraries look there. From here on an exception that is not caught ends the other ranks too.

    Args:
        backend: Collective backend such as ``gloo`` or ``nccl``; by default the device's own. ``DDP`` and
            ``deepspeed``, which older programs pass, choose no collective backend.
        port: Port of rank 0's store; by default as the launcher tells, or a free one.
        seed: If given, passed to `seed_everything`; `ezpz.prepare` draws the order of data from it.
        timeout: Time limit of one collective, in seconds or as timedelta; else ``TORCH_DDP_TIMEOUT`` in seconds, else
            torch's own.
        tensor_parallel_size: Ranks that share each layer; together with the next three it makes a mesh, which
            `get_mesh` returns.
        pipeline_parallel_size: Ranks among which the layers are divided.
        context_parallel_size: Ranks that share each sequence.
        dp_replicate: Copies of a model that is sharded inside each copy.
        device_id: Index of the device, or the device, where the local rank's own is not wanted.
        verbose: Let every rank print its line instead of one per host; ``EZPZ_LOG_ALL_RANKS=1`` does the same.

    Raises:
        RankError: The environment, the plan of the launch, torch's group or MPI contradict each other about the world.
        RendezvousError: A rank did not arrive within 300 s (``EZPZ_RENDEZVOUS_SECONDS``) or has ended, or the port is
            taken.
        MachineError: torch is missing, the host shows fewer devices than it has ranks, or no backend serves the device.
        UsageError: ``TORCH_DEVICE``, ``TORCH_BACKEND``, ``MASTER_PORT`` or an argument is unusable, or the sizes do not
            fit the world.
    """
    sizes = {
        "dp_replicate": dp_replicate,
        "cp": context_parallel_size,
        "tp": tensor_parallel_size,
        "pp": pipeline_parallel_size,
    }
    ranks = _ready(sizes)
    if _distributed().is_initialized():
        check_group(ranks)
    else:
        collective, _ = split_backend(backend)
        device = _choose_device(device_id, collective)
        _join_group(ranks, device, collective or get_torch_backend(), whole_port(port), timeout)
        verbose = verbose or ranks.local_rank == 0 or os.environ.get("EZPZ_LOG_ALL_RANKS") == "1"
    _make_mesh(ranks, sizes)
    if seed is not None:
        seed_everything(seed)
        keep_run_seed(seed)
    if verbose:
        say_who(ranks, str(own_device()))
    return ranks.rank


def _ready(sizes: dict[str, int]) -> Ranks:
    """Return who this process is, when nothing speaks against its becoming a rank: before anybody waits for anybody."""
    ending.install(os.environ)
    ranks = this_rank()
    if ranks.world_size > 1:
        _refuse_spawned()
    check_plan(ranks, os.environ)
    _distributed()
    stage("setup")
    if _asks_for_mesh(sizes):
        from ezpz.dist.mesh import check_degrees

        check_degrees(ranks.world_size, sizes)
    return ranks


def _refuse_spawned() -> None:
    """Refuse a process that multiprocessing has spawned and that runs the script again, to have what it defines.

    It would become a second rank of the same number: the port is taken, or both wait for each other.

    Raises:
        UsageError: This is one.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes and getattr(processes.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise UsageError(
            "setup_torch is called by a process that the script has spawned (a worker of a DataLoader or of a Pool), "
            'which runs the script again; expected it under `if __name__ == "__main__":`. Put what is to run once per '
            "rank there."
        )


def _choose_device(device_id: int | str | torch.device | None, backend: str | None) -> torch.device:
    """Return the device of this rank, made the current one: groups and their backends look at that."""
    device = choose_device(device_id)
    if backend:
        check_backend(backend, device.type, "setup_torch")
    bind_device(device)
    return device


def _join_group(
    ranks: Ranks, device: torch.device, backend: str, port: int | None, timeout: timedelta | float | None
) -> None:
    check_mpi(ranks, os.environ)
    if os.environ.get("EZPZ_SIMULATE"):
        from ezpz.dist.simulate.rank import make_group

        make_group(ranks, device)
    else:
        met = meet(ranks, os.environ, _seconds("EZPZ_RENDEZVOUS_SECONDS", _RENDEZVOUS_SECONDS), port)
        stage("met")
        _fill_environ(ranks)
        _make_group(backend, device, ranks, met, timeout)
        if ranks.world_size > 1 and not is_supervised(os.environ):
            ending.tell_others_by(join(ranks, met.store, met.host))
    ending.install(os.environ)
    stage("group")
    answer_requests(ranks.rank, backend, os.environ)
    report_arrivals(ranks.world_size, os.environ)


def _make_group(backend: str, device: torch.device, ranks: Ranks, met: Met, timeout: timedelta | float | None) -> None:
    options: dict[str, Any] = {}
    if timeout is None and "TORCH_DDP_TIMEOUT" in os.environ:
        timeout = _seconds("TORCH_DDP_TIMEOUT", 0)
    if timeout is not None:
        options["timeout"] = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    bound = device_id_for_group(device, backend)
    if bound is not None:
        options["device_id"] = bound
    names = group_backend(backend, device.type)
    _distributed().init_process_group(names, store=met.store, rank=ranks.rank, world_size=ranks.world_size, **options)


def _make_mesh(ranks: Ranks, sizes: dict[str, int]) -> None:
    """Make the mesh of these sizes, unless only data is parallel.

    Raises:
        UsageError: There is another one already.
    """
    if not _asks_for_mesh(sizes):
        return
    from ezpz.dist.mesh import check_degrees, degree, get_mesh, init_mesh

    there = get_mesh()
    if there is not None:
        wanted = check_degrees(ranks.world_size, sizes).by_name()
        if any(degree(there, name) != size for name, size in wanted.items()):
            raise UsageError(
                f"setup_torch was called again with another mesh: {wanted} (from its sizes), but this process has "
                f"{there}; expected the same. Call it once, or make further meshes with ezpz.init_mesh."
            )
    init_mesh(sizes["dp_replicate"], cp=sizes["cp"], tp=sizes["tp"], pp=sizes["pp"])


def _asks_for_mesh(sizes: dict[str, int]) -> bool:
    return any(size != 1 for size in sizes.values())


def _distributed() -> Any:
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        raise MachineError(
            f"cannot become a rank: {error} (from {sys.executable}); expected a Python with torch. "
            "Run `ezpz_setup_env`, or load the site's module that brings torch."
        ) from None
    return dist


def _seconds(name: str, otherwise: float) -> timedelta:
    text = os.environ.get(name, str(otherwise))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"unusable time {text!r} (from {name}); expected a positive number of seconds.")
    return timedelta(seconds=seconds)


def _fill_environ(ranks: Ranks) -> None:
    variables = dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), map(str, ranks[:4]), strict=True))
    if "RANK" not in os.environ:  # a WORLD_SIZE without it is that of the job, which ezpz_setup_job exports
        os.environ.update(variables)
    for name, value in variables.items():
        os.environ.setdefault(name, value)
