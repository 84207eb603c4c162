"""How the ranks find each other: a store of torch on the host of rank 0.

In this order:

    alone                a store inside the process, no port
    MASTER_ADDR and _PORT  as torchrun and ``ezpz launch`` set them, or the user; under torchrun the agent owns the store
    all ranks on one host  rank 0 lets the kernel choose a port and publishes it in a private file, whose name comes from
                           the user, the job and the process that started all ranks: two jobs side by side never meet
    several hosts          the first host of the allocation, and a port from job and step; taken means a named error

Every rank writes its name into the store under a prefix of its own job, so that an error can say who is missing and a
stranger who found the port is not counted.
"""

from __future__ import annotations

import time
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from ezpz.dist import meeting
from ezpz.errors import RendezvousError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist

    from ezpz.ranks import Ranks

__all__ = ["meet"]

# Below the ports that Linux hands out for outgoing connections (32768 on), above the well-known ones.
_FIRST_PORT, _PORTS = 20_000, 12_000
_STEP_NAMES = ("SLURM_STEP_ID", "PALS_APID", "PMIX_NAMESPACE", "I_MPI_HYDRA_UUID", "FLUX_JOB_ID")


# Stores stay open as long as the process: rank 0 would otherwise take one away under ranks that meet for a second time.
_opened: dict[Address, dist.Store] = {}
_published: dict[str, Address] = {}
_rounds: dict[Address, int] = {}


class Address(NamedTuple):
    """Where rank 0 listens, who says so, and whether this process opens the store there."""

    host: str
    port: int
    origin: str
    listens: bool


def meet(ranks: Ranks, environ: Mapping[str, str], timeout: timedelta, port: int | None = None) -> dist.Store:
    """Return a store that all ranks of this job share, after all of them have arrived.

    Args:
        ranks: Who this rank is.
        environ: Environment of the process.
        timeout: How long to wait for the last rank.
        port: Port of rank 0's store; None means as told or found.

    Raises:
        RendezvousError: A rank is missing when time is up, or the port is taken; address, port and ranks are named.
    """
    import torch.distributed as dist

    if ranks.world_size == 1 and ranks.family == "alone":
        return dist.HashStore()
    deadline = time.monotonic() + timeout.total_seconds()
    if "MASTER_ADDR" not in environ and port is None and ranks.local_world_size == ranks.world_size:
        return _meet_on_one_host(ranks, environ, deadline)
    address = _address(ranks, environ, port)
    job = environ.get("TORCHELASTIC_RUN_ID") or _job(environ)
    if address not in _opened:
        _opened[address] = _open(address, timeout)
    return _check_in(
        _opened[address], f"{job}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", ranks, address, deadline
    )


def _meet_on_one_host(ranks: Ranks, environ: Mapping[str, str], deadline: float) -> dist.Store:
    import torch.distributed as dist

    key = meeting.key(environ)
    if key in _published:
        return _check_in(_opened[_published[key]], key, ranks, _published[key], deadline)
    with meeting.Point(key) as point:
        left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        if ranks.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=left, wait_for_workers=False)
            point.publish(store.port)
            address = Address("127.0.0.1", store.port, "chosen by rank 0", listens=True)
        else:
            address = Address("127.0.0.1", point.wait(deadline), f"published by rank 0 in {point.path}", listens=False)
            store = _open(address, left)
        _opened[address], _published[key] = store, address
        store = _check_in(store, key, ranks, address, deadline)
        if ranks.rank == 0:
            point.remove()
            store.set("removed", "1")
        else:  # a second program of the same job must not find the first one's file
            store.wait(["removed"], left)
    return store


def _address(ranks: Ranks, environ: Mapping[str, str], port: int | None) -> Address:
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listens = ranks.rank == 0 and not agent
    told = environ.get("MASTER_PORT", "")
    if told and not (told.isdigit() and 0 < int(told) < 65536):
        raise UsageError(f"unusable port {told!r} (from MASTER_PORT); expected 1 to 65535. Run `unset MASTER_PORT`.")
    if "MASTER_ADDR" in environ:
        number = port or int(told or _hashed(environ))
        return Address(environ["MASTER_ADDR"], number, "MASTER_ADDR, MASTER_PORT", listens)
    if ranks.local_world_size == ranks.world_size:
        return Address("127.0.0.1", port or int(told), "port=", listens)
    from ezpz.cluster import detect, probe

    allocation = detect(environ, run=probe.run_nothing)
    if allocation.scheduler == "none":
        raise RendezvousError(
            f"rank {ranks.rank} of {ranks.world_size} spans several hosts (from {ranks.family}), but no scheduler names them; "
            "expected MASTER_ADDR. Start the ranks with `ezpz launch`, or `export MASTER_ADDR=<host of rank 0>`."
        )
    number = port or int(told or _hashed(environ))
    return Address(allocation.hosts[0], number, f"{allocation.origin['hosts']}, port from job and step", listens)


def _job(environ: Mapping[str, str]) -> str:
    job = environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or environ.get("FLUX_JOB_ID") or "no-job"
    step = next((f"{name}={environ[name]}" for name in _STEP_NAMES if name in environ), "no-step")
    return f"{job}/{step}"


def _hashed(environ: Mapping[str, str]) -> int:
    return _FIRST_PORT + zlib.crc32(_job(environ).encode()) % _PORTS


def _open(address: Address, timeout: timedelta) -> dist.Store:
    import torch.distributed as dist

    try:
        return dist.TCPStore(
            address.host, address.port, is_master=address.listens, timeout=timeout, wait_for_workers=False
        )
    except (RuntimeError, OSError) as error:  # torch derives DistNetworkError from RuntimeError
        doing = "listen on" if address.listens else "reach rank 0 at"
        raise RendezvousError(
            f"cannot {doing} {address.host}:{address.port} (from {address.origin}): {_reason(error)}; expected a free port "
            "on a reachable host. Set MASTER_PORT to another port, or check MASTER_ADDR."
        ) from None


def _reason(error: Exception) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "in use" in text:
        return "another process holds the port"
    return text.splitlines()[0]


def _check_in(base: dist.Store, job: str, ranks: Ranks, address: Address, deadline: float) -> dist.Store:
    """Write this rank's name, wait until all have, and return the store of this job and round.

    Every round has names of its own: a rank that meets again, after it left its group, must not find the last round's.
    """
    import torch.distributed as dist

    _rounds[address] = _rounds.get(address, 0) + 1
    store = dist.PrefixStore(f"ezpz/{job}/{_rounds[address]}", base)
    store.set(f"rank/{ranks.rank}", "here")
    left = timedelta(seconds=max(0.1, deadline - time.monotonic()))
    try:
        if ranks.rank == 0:
            store.wait([f"rank/{rank}" for rank in range(ranks.world_size)], left)
            store.set("all", "here")
        else:
            store.wait(["all"], left)
    except RuntimeError:  # torch's DistStoreError and DistNetworkError
        raise RendezvousError(
            f"rank {ranks.rank} waited at {address.host}:{address.port} (from {address.origin}), but {_missing(store, ranks)}. "
            "Look at the first error above of a rank that did not arrive, or start fewer ranks."
        ) from None
    return store


def _missing(store: dist.Store, ranks: Ranks) -> str:
    try:
        absent = [rank for rank in range(ranks.world_size) if not store.check([f"rank/{rank}"])]
    except RuntimeError:
        return "rank 0 is gone"
    shown = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
    return (
        f"{len(absent)} of {ranks.world_size} ranks never came: {shown}" if absent else "rank 0 did not answer in time"
    )
