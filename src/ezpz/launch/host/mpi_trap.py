r"""Catch a rank that starts an MPI where no MPI has started the ranks: it would find itself alone, and train alone.

Under ``--mpi no`` an agent forks the ranks of its host. An MPI that is started in one of them looks for its launcher in
variables. Left without any it takes itself for a world of 1, so each of them gets variables that lead to a port of this
agent. Whoever calls there has called MPI_Init: C programs, mpi4py, and what a rank starts, before MPI says a word. The
agent ends that rank with the reason. A call without an answer ends the MPI with words and a code of its own.

    PMI_PORT=127.0.0.1:4711 PMI_ID=3          MPICH 5.0.2, Intel MPI 2021.18: "cmd=initack pmiid=3\n"
    MPIR_CVAR_PMI_VERSION=1                   else MPICH refuses because both PMI's and PMIx's variables are there
    PMIX_NAMESPACE=ezpz-rank-3 PMIX_RANK=3    Open MPI 5.0.11 (PMIx 5) and, with the third line, 4.1.8 (PMIx 3.2):
    PMIX_SERVER_URI41=ezpz-rank-3.0;tcp4://127.0.0.1:4711    "…native…ezpz-rank-3\0…v41\0…"
    OMPI_MCA_orte_local_daemon_uri=0.0;tcp://127.0.0.1:4711

Anybody on the host can call a port. The kernel's table of connections tells whose the caller is, and other users' calls
mean nothing:

    $ cat /proc/net/tcp      sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
       5: 0100007F:BE12 0100007F:1267 01 00000000:00000000 00:00000000 00000000  1000 0 4242 1 …
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys

from ezpz.errors import LaunchError
from ezpz.launch.event_loop import NO_ROOM
from ezpz.ranks import LAUNCHERS_OWN

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ezpz.launch.event_loop import Loop

__all__ = ["MpiTrap", "cleared"]

_PMIX_SERVERS = tuple(f"PMIX_SERVER_URI{version}" for version in ("2", "21", "3", "4", "41"))
_CALLED = re.compile(rb"\bpmiid=(\d{1,8})\n|\0ezpz-rank-(\d{1,8})\0")
_LONGEST = 4096  # bytes of a call; those of today have less than 200
_MOST_RANKS = 1024  # of a host, which may all call at once
_MOST_CALLERS = 64  # that have sent nothing yet; more push out the oldest, whose MPI then fails by itself
# What an mpiexec, a PMI server or srun tells the process that it has started; settings of the user's stay.
_TOLD = re.compile(
    r"(PMI|PMI2|PMIX|HYDI|OMPI|PRTE|ORTE|PALS)_(?!MCA_|ALLOW_)|OMPI_MCA_(orte|ess|pmix)|MPIR_CVAR_PMI_VERSION\Z"
)


class MpiTrap:
    """The port where each MPI that is started in a rank of this host calls.

    Args:
        loop: Where it is watched.
        caught: Takes the rank that has started an MPI.

    Raises:
        LaunchError: There is no port, so that an MPI would not be noticed.
    """

    def __init__(self, loop: Loop, caught: Callable[[int], None]) -> None:
        self._loop, self._caught = loop, caught
        self._callers: dict[socket.socket, bytes] = {}  # the oldest first
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.bind(("127.0.0.1", 0))
            if sys.platform == "linux":  # elsewhere nothing tells whose a caller is: MPI's own refusal is the answer
                self._listener.listen(_MOST_RANKS)
        except OSError as error:
            raise LaunchError(
                f"cannot watch for an MPI on {os.uname().nodename}: {error.strerror} (127.0.0.1); expected a free "
                "port, so that no rank runs as a world of 1 under --mpi no. Start with `launch --mpi yes`."
            ) from None
        self._port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        if sys.platform == "linux":
            loop.read(self._listener, lambda _: self._accept())

    def variables(self, rank: int) -> dict[str, str]:
        """Return what leads an MPI that is started in a rank to this port."""
        where, space = f"127.0.0.1:{self._port}", f"ezpz-rank-{rank}"
        return {
            "PMI_PORT": where,
            "PMI_ID": str(rank),
            "MPIR_CVAR_PMI_VERSION": "1",
            "PMIX_NAMESPACE": space,
            "PMIX_RANK": str(rank),
            **dict.fromkeys(_PMIX_SERVERS, f"{space}.0;tcp4://{where}"),
            "OMPI_MCA_orte_local_daemon_uri": f"0.0;tcp://{where}",
        }

    def close(self) -> None:
        """Give the port back, and hang up."""
        for caller in tuple(self._callers):
            self._hang_up(caller)
        self._loop.forget(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        """Let one in; the others wait for the next turn."""
        try:
            caller, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM and self._callers:
                self._hang_up(next(iter(self._callers)))
            elif error.errno in NO_ROOM:
                self._loop.rest(self._listener)
            return  # or it went away again
        caller.setblocking(False)
        if len(self._callers) >= _MOST_CALLERS:
            self._hang_up(next(iter(self._callers)))
        self._callers[caller] = b""
        self._loop.read(caller, self._read)

    def _read(self, caller: socket.socket) -> None:
        try:
            data = caller.recv(_LONGEST)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EINTR}:
                return
            data = b""
        self._callers[caller] += data
        called = _CALLED.search(self._callers[caller])
        if called and _is_own(caller):
            self._caught(int(called[1] or called[2]))
        if called or not data or len(self._callers[caller]) > _LONGEST:
            self._hang_up(caller)

    def _hang_up(self, caller: socket.socket) -> None:
        self._loop.forget(caller)
        caller.close()
        del self._callers[caller]


def cleared(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what tells one process of an MPI or of srun who it is: agents pass it on to no
    rank.
    """
    return {name: value for name, value in environ.items() if name not in LAUNCHERS_OWN and not _TOLD.match(name)}


def _is_own(caller: socket.socket) -> bool:
    """Tell whether a connection over the loopback comes from a process of this user, which still holds it."""
    ours, its = _written(caller.getsockname()), _written(caller.getpeername())
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # a program may call an IPv4 address by a socket of IPv6
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[1].endswith(its) and row[2].endswith(ours):
                return row[9] != "0" and int(row[7]) == os.getuid()  # without an inode the user is shown as 0
    return False


def _written(end: tuple[str, int]) -> str:
    """Return an address and port as the kernel's table writes them."""
    address, port = end
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
