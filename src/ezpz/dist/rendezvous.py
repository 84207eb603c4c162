"""Bring the ranks together by a store of torch on the host of rank 0.

In this order:

    alone                  a store inside the process, no port
    MASTER_ADDR and _PORT  as torchrun and ``ezpz launch`` set them, or the user; torchrun's agent owns its store
    all ranks on one host  rank 0 lets the kernel choose a port and publishes it in a private file, whose name comes
                           from the user, the job and the process that started all ranks: jobs side by side never meet
    started by mpi4py      rank 0 opens a store, and MPI tells the others its address
    several hosts          the first host of the allocation, and a port from job and step; taken means a named error

Every rank writes its name into the store under a prefix of its own job, so that an error can say who is missing and a
stranger who found the port is not counted.

The private file is ``$TMPDIR/ezpz-<uid>/meeting-<key>``, readable by its owner alone, and holds ``<port> <pid of rank
0>``.

Hydra (MPICH, Intel MPI) and srun let the other ranks run when one has ended with an error, so that they would wait for
it until time is up. But they start all ranks of a host as children of one process: when it has fewer, a rank is gone.
Linux lists them:

    /proc/4711/task/4711/children     4712 4713 4715                      (proc(5): children of one thread)
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz import proc
from ezpz.cluster.scheduler import schedulers
from ezpz.errors import MachineError, RendezvousError, UsageError
from ezpz.files import private_folder, write_whole
from ezpz.ranks import FAMILIES, family_of, of_this_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    import torch.distributed as dist

    from ezpz.ranks import Ranks

# Below the ports that Linux hands out for outgoing connections (32768 on), above the well-known ones.
_FIRST_PORT, _PORTS = 20_000, 12_000
_MOST_LOOKS = 1024  # ranks of a world in which each looks whether rank 0 listens
# What only the environment of a rank has.
_RANK_NAMES = tuple(f"\0{family.variables[0]}=".encode() for family in FAMILIES)


# Stores stay open as long as the process: rank 0 would otherwise take one away under ranks that meet for a second time.
_opened: dict[Address, dist.Store] = {}
_published: dict[str, Address] = {}
_rounds: dict[Address, int] = {}


class Met(NamedTuple):
    """A store that all ranks share, and the address of rank 0 as this rank reaches it; empty when alone."""

    store: dist.Store
    host: str


class Address(NamedTuple):
    """Where rank 0 listens, who says so, and whether this process opens the store there."""

    host: str
    port: int
    origin: str
    listens: bool


def meet(ranks: Ranks, environ: Mapping[str, str], timeout: timedelta, port: int | None = None) -> Met:
    """Return a store that all ranks of this job share, after all of them have arrived.

    Args:
        ranks: Who this rank is.
        environ: Environment of the process.
        timeout: How long to wait for the last rank.
        port: Port of rank 0's store; None means the one that is set or free.

    Raises:
        RendezvousError: A rank is missing when time is up or has ended, or the port is taken; address, port and ranks
            are named.
    """
    import torch.distributed as dist

    if ranks.world_size == 1 and ranks.family == "alone":
        return Met(dist.HashStore(), "")
    patience = _Patience(ranks, environ, timeout)
    if "MASTER_ADDR" not in environ and port is None:
        if ranks.family == "mpi4py":
            return _meet_by_mpi(ranks, environ, patience)
        if ranks.local_world_size == ranks.world_size:
            return _meet_on_one_host(ranks, environ, patience)
    address = _address(ranks, environ, port)
    job = environ.get("TORCHELASTIC_RUN_ID") or _job(environ)
    if address not in _opened:
        _opened[address] = _open(address, patience)
    job = f"{job}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return _check_in(_opened[address], job, ranks, address, patience)


class _Patience:
    """How long a rank waits for the others, and whether that is still of use."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str], timeout: timedelta) -> None:
        self.deadline = time.monotonic() + timeout.total_seconds()
        self._who = f"rank {ranks.rank} of {ranks.world_size} ({ranks.family})"
        self._ranks = ranks.local_world_size
        self._siblings = Siblings(ranks, environ)
        self.world_size = ranks.world_size
        self.alone = not is_supervised(environ)  # nothing ends this rank when another one fails

    def left(self, least: float = 0.1) -> timedelta:
        """Return the time that is left."""
        return timedelta(seconds=max(least, self.deadline - time.monotonic()))

    def check(self) -> None:
        """Raise when a rank that is waited for has ended.

        Raises:
            RendezvousError: A rank of this host is gone.
        """
        gone = self._siblings.missing()
        if gone:
            raise RendezvousError(
                f"{self._who} waits in vain: {gone} of the {self._ranks} ranks of this host ended before all had met "
                "(from the children of the launcher's process); expected all of them here. Look at the first error "
                "above."
            )


def _meet_on_one_host(ranks: Ranks, environ: Mapping[str, str], patience: _Patience) -> Met:
    import torch.distributed as dist

    start = key(environ)
    if start in _published:
        return _check_in(_opened[_published[start]], start, ranks, _published[start], patience)
    with Point(start) as point:
        if ranks.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=patience.left(1.0), wait_for_workers=False)
            point.publish(store.port)
            address = Address("127.0.0.1", store.port, "chosen by rank 0", listens=True)
        else:
            port = point.wait(patience.deadline, patience.check)
            address = Address("127.0.0.1", port, f"published by rank 0 in {point.path}", listens=False)
            store = _open(address, patience)
        _opened[address], _published[start] = store, address
        met = _check_in(store, start, ranks, address, patience)
        if ranks.rank == 0:
            point.remove()
            met.store.set("removed", "1")
        else:  # a second program of the same job must not find the first one's file
            met.store.wait(["removed"], patience.left())
    return met


def _meet_by_mpi(ranks: Ranks, environ: Mapping[str, str], patience: _Patience) -> Met:
    """Let MPI carry the address: its launcher tells nothing that this module can read, but MPI runs already."""
    import torch.distributed as dist
    from mpi4py import MPI

    from ezpz.cluster.network import route_to

    if "mpi4py" not in _published:
        meeting: Any = None
        if ranks.rank == 0:
            one_host = ranks.local_world_size == ranks.world_size
            host = "127.0.0.1" if one_host else route_to().address or socket.gethostname()
            own = dist.TCPStore(host, 0, is_master=True, timeout=patience.left(1.0), wait_for_workers=False)
            meeting = (host, own.port)
        host, number = MPI.COMM_WORLD.bcast(meeting, root=0)
        address = Address(host, number, "from MPI", ranks.rank == 0)
        _opened[address] = own if ranks.rank == 0 else _open(address, patience)
        _published["mpi4py"] = address
    address = _published["mpi4py"]
    return _check_in(_opened[address], _job(environ), ranks, address, patience)


def _address(ranks: Ranks, environ: Mapping[str, str], port: int | None) -> Address:
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listens = ranks.rank == 0 and not agent
    given = environ.get("MASTER_PORT", "")
    if given and not (given.isdigit() and 0 < int(given) < 65536):
        raise UsageError(f"unusable port {given!r} (from MASTER_PORT); expected 1 to 65535. Run `unset MASTER_PORT`.")
    if "MASTER_ADDR" in environ:
        number = port or int(given or _hashed(environ))
        return Address(environ["MASTER_ADDR"], number, "MASTER_ADDR, MASTER_PORT", listens)
    if ranks.local_world_size == ranks.world_size:
        return Address("127.0.0.1", port or int(given), "port=", listens)
    from ezpz.cluster import detect, probe

    allocation = detect(environ, run=probe.run_nothing)
    if allocation.scheduler == "none":
        raise RendezvousError(
            f"rank {ranks.rank} of {ranks.world_size} spans several hosts (from {ranks.family}), but no scheduler "
            "names them; expected MASTER_ADDR. Start the ranks with `ezpz launch`, or `export MASTER_ADDR=<host of "
            "rank 0>`."
        )
    number = port or int(given or _hashed(environ))
    return Address(
        allocation.hosts[0],
        number,
        f"{allocation.origin.get('hosts', allocation.scheduler)}, port from job and step",
        listens,
    )


def _job(environ: Mapping[str, str]) -> str:
    """Return a text that is the same for all ranks of one start, and for those of no other start."""
    job = next(filter(None, (one.job_id(environ) for one in schedulers())), "no-job")
    tasks = (environ[name] for one in schedulers() for name in one.array_variables if environ.get(name))
    job = "/".join([job, *tasks])
    names = (family.start_variable for family in FAMILIES)
    step = next((f"{name}={environ[name]}" for name in names if name in environ), "no-step")
    return f"{job}/{step}"


def _hashed(environ: Mapping[str, str]) -> int:
    return _FIRST_PORT + zlib.crc32(_job(environ).encode()) % _PORTS


def _open(address: Address, patience: _Patience) -> dist.Store:
    import torch.distributed as dist

    if not address.listens:
        _wait_until_open(address, patience)
    try:
        return dist.TCPStore(
            address.host, address.port, is_master=address.listens, timeout=patience.left(1.0), wait_for_workers=False
        )
    except (RuntimeError, OSError) as error:  # torch derives DistNetworkError from RuntimeError
        doing = "listen on" if address.listens else "reach rank 0 at"
        raise RendezvousError(
            f"cannot {doing} {address.host}:{address.port} (from {address.origin}): {_reason(error)}; expected a free "
            "port on a reachable host. Set MASTER_PORT to another port, or check MASTER_ADDR."
        ) from None


def _wait_until_open(address: Address, patience: _Patience) -> None:
    """Wait for rank 0's port, which a rank may try to reach some milliseconds too early.

    torch would wait as long, but pauses 0.25 to 0.75 s after its first attempt, and would not notice that a rank of
    this host has ended. Where something else looks after the ranks, torch is asked after 2 s; in large worlds at once,
    because each look is a connection to rank 0.
    """
    deadline = patience.deadline
    if not patience.alone:
        if patience.world_size > _MOST_LOOKS:
            return
        deadline = min(deadline, time.monotonic() + 2.0)
    pause = 0.01
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address.host, address.port), timeout=1.0).close()
        except OSError:
            if patience.alone:
                patience.check()
            time.sleep(pause)
            pause = min(0.5, 1.5 * pause)
        else:
            return


def _reason(error: Exception) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "in use" in text:
        return "another process holds the port"
    return text.splitlines()[0]


def _check_in(base: dist.Store, job: str, ranks: Ranks, address: Address, patience: _Patience) -> Met:
    """Write this rank's name, wait until all have, and return the store of this job and round.

    Every round has names of its own: a rank that meets again, after it left its group, must not find the last round's.
    """
    import torch.distributed as dist

    _rounds[address] = _rounds.get(address, 0) + 1
    store = dist.PrefixStore(f"ezpz/{job}/{_rounds[address]}", base)
    store.set(f"rank/{ranks.rank}", "here")
    awaited = [f"rank/{rank}" for rank in range(ranks.world_size)] if ranks.rank == 0 else ["all"]
    try:
        if patience.alone:
            _look_until(store, awaited, patience)
        store.wait(awaited, patience.left())
        if ranks.rank == 0:
            store.set("all", "here")
    except RuntimeError:  # torch's DistStoreError and DistNetworkError
        raise RendezvousError(
            f"rank {ranks.rank} waited at {address.host}:{address.port} (from {address.origin}), but "
            f"{_missing(store, ranks)}. Look at the first error above of a rank that did not arrive, or start fewer "
            "ranks."
        ) from None
    return Met(store, address.host)


def _look_until(store: dist.Store, keys: list[str], patience: _Patience) -> None:
    """Look for the keys again and again, because a rank that has no supervisor may have ended; time is not up here.

    Raises:
        RendezvousError: It has, here or on another host.
    """
    pause = 0.005
    while time.monotonic() < patience.deadline and not store.check(keys):
        if store.check(["vain"]):
            raise RendezvousError(store.get("vain").decode())
        try:
            patience.check()
        except RendezvousError as error:
            store.set("vain", str(error))  # for the hosts whose ranks are all alive
            raise
        time.sleep(pause)
        pause = min(0.5, 1.3 * pause)


def _missing(store: dist.Store, ranks: Ranks) -> str:
    try:
        absent = [rank for rank in range(ranks.world_size) if not store.check([f"rank/{rank}"])]
    except RuntimeError:
        return "rank 0 is gone"
    shown = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
    return (
        f"{len(absent)} of {ranks.world_size} ranks never came: {shown}" if absent else "rank 0 did not answer in time"
    )


def key(environ: Mapping[str, str]) -> str:
    """Return a name that is common to the ranks of this start and to no others.

    It is made of the names of job and start and of the nearest process above that is no rank itself: ranks may be
    wrapped in shells of their own, so the parent alone is not common to them.
    """
    jobs = (name for one in schedulers() for name in (*one.job_variables, *one.array_variables))
    starts = (family.start_variable for family in FAMILIES)
    names = " ".join(f"{name}={environ[name]}" for name in dict.fromkeys((*jobs, *starts)) if name in environ)
    pid, start = starter()
    return f"{zlib.crc32(f'{names} {pid}@{start}'.encode()):08x}"


class Point:
    """A place to meet; a context manager so that rank 0 never leaves the file behind."""

    def __init__(self, name: str) -> None:
        try:
            folder = private_folder()
        except MachineError as error:
            raise RendezvousError(str(error)) from None
        self.path = Path(folder) / f"meeting-{name}"
        self._published = False

    def publish(self, port: int) -> None:
        """Write the port so that readers see the whole line or nothing."""
        write_whole(self.path, f"{port} {os.getpid()}\n")
        self._published = True

    def wait(self, deadline: float, check: Callable[[], object] = bool) -> int:
        """Return the port when rank 0 has published it.

        Args:
            deadline: By ``time.monotonic()``.
            check: Called now and then; raises when waiting is in vain.

        Raises:
            RendezvousError: Nothing was published in time.
        """
        while time.monotonic() < deadline:
            try:
                port, pid = self.path.read_text(encoding="utf-8").split()
            except FileNotFoundError:
                pass
            else:
                if _alive(int(pid)):  # else a leftover of a rank 0 that was killed
                    return int(port)
            check()
            time.sleep(0.02)
        raise RendezvousError(
            f"rank 0 published no port in {self.path} in time (from a launcher that sets no MASTER_ADDR); expected all "
            "ranks on one host. Start the ranks with `ezpz launch`, or set MASTER_ADDR and MASTER_PORT."
        )

    def remove(self) -> None:
        """Take the file away, when this process wrote it."""
        if self._published:
            self.path.unlink(missing_ok=True)
            self._published = False

    def __enter__(self) -> Point:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_supervised(environ: Mapping[str, str]) -> bool:
    """Tell whether `ezpz launch` or torchrun's agent looks after this rank, and ends it when another one fails."""
    by_us = of_this_launch(environ) and "EZPZ_SOCKET" in environ  # a line that was pasted by hand has no agent
    return by_us or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def starter() -> tuple[int, str]:
    """Return pid and start time of the nearest process above that is no rank itself; "" for the time without /proc.

    Ranks may be wrapped in shells of their own, so the parent alone is not common to them.
    """
    pid = os.getppid()
    while pid > 1:
        process = proc.stat(pid)
        if process is None:
            return pid, ""
        environ = proc.environ(pid)
        if not any(name in environ for name in _RANK_NAMES):
            return pid, process.start
        pid = process.parent
    return pid, ""


class Siblings:
    """The ranks of this host, as the process that started them has them as children."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str]) -> None:
        self._expected = ranks.local_world_size
        family = None if is_supervised(environ) else family_of(ranks)
        expected = family.careless_starter if family else ""
        pid = starter()[0] if expected else 0
        # In a container a rank's starter may be another program, with one child for each rank.
        self._starter = pid if expected and proc.name(pid) == expected else 0

    def missing(self) -> int:
        """Return how many ranks of this host have ended; 0 where that is unknown."""
        if not self._starter:
            return 0
        living = sum(proc.start_time(pid) != "" for pid in proc.children(self._starter) or ())
        return max(0, self._expected - living) if living else 0
