"""Look from outside whether the ranks of this host have ever been connected to others.

Every process group of several ranks needs TCP, also where its tensors go another way: for its store, gloo's pairs,
NCCL's bootstrap. So ranks are unconnected if no process of theirs holds a TCP socket when looked at, and this host has
opened no connection between the looks, which the kernel counts (proc(5), ``/proc/net/snmp``):

Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens …
Tcp: 1 200 120000 -1 17 4 …

Where others open some, only a long run that is looked at often tells: what was closed between two looks, the kernel
lists for a minute, though not whose it was. What cannot be known is taken for a connection.
"""

from __future__ import annotations

import os
import time

from ezpz import proc
from ezpz.launch.host import process_stacks
from ezpz.launch.host.process_tree import is_gone
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.unconnected import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Container

    from ezpz.launch.host.rank_process import RankProcess

_PAUSE, _LONGEST = 1.0, 45.0  # seconds between looks: they grow rarer, but see what was closed in between
_SHARE = 0.05  # of the time since the first look
_MANY = 20  # looks that tell without the kernel's count: after some 25 s
_CONNECTED = {"setup", "met", "group"}  # stages that a rank reports itself


class ConnectionsOfHost(HostSide):
    """Whether ranks of this host were connected, as far as it was looked at."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._began = time.monotonic()
        self._opened = opened()
        self._looks = 0
        self._is_connected = _was_connected()  # in the seconds before
        if not self._is_connected:
            handle.after(0.0, self._look)

    def finish(self) -> None:
        """Report ranks that have had no connection."""
        if self._is_connected or not self._looks:
            return
        if opened() != self._opened and (self._looks < _MANY or _was_connected()):
            return
        ranks = [rank for rank in self.handle.ranks.values() if rank.rank >= 0 and "torch" in rank.stages]
        if not any(_CONNECTED.intersection(rank.stages) for rank in ranks):
            self.handle.report(messages.Unconnected(ranks=len(ranks)))

    def _look(self) -> None:
        ranks = [rank for rank in self.handle.ranks.values() if rank.alive and rank.rank >= 0]
        if not ranks:
            return
        has_met = opened() != self._opened and _was_connected()
        self._is_connected = has_met or any(_may_be_connected(rank) for rank in ranks)
        if not self._is_connected:  # else there is nothing more to find out
            self._looks += 1
            pause = _SHARE * (time.monotonic() - self._began)
            self.handle.after(min(_LONGEST, max(_PAUSE, pause)), self._look)


def opened() -> tuple[bytes, ...]:
    """Return how many TCP connections this network has opened, to others and from others; empty where nobody knows."""
    rows = [row.split() for row in proc.read("self", "net/snmp").splitlines() if row.startswith(b"Tcp:")]
    return tuple(rows[1][5:7]) if len(rows) == 2 else ()


def _rows(pid: int | str) -> list[list[str]]:
    """Return the TCP sockets of a process's network (proc(5), ``/proc/net/tcp``): addresses, states (06: closed a
    moment ago, TIME_WAIT), inodes.

    sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
    0: 0100007F:C5C7 0100007F:8123 06 00000000:00000000 03:000003D2 00000000 0 0 0 …
    """
    tables = (proc.read(pid, table).decode().splitlines()[1:] for table in ("net/tcp", "net/tcp6"))
    return [row.split() for rows in tables for row in rows]


def _was_connected() -> bool:
    """Tell whether processes of this host were connected to each other in the last minute."""
    return any(row[3] == "06" and row[1].split(":")[0] == row[2].split(":")[0] for row in _rows("self"))


def _may_be_connected(rank: RankProcess) -> bool:
    """Tell whether a rank reports a group, holds a TCP socket or an MPI, or cannot be looked into."""
    process = proc.stat(rank.pid) if rank.pid else None
    if process is None or _CONNECTED.intersection(rank.stages):
        return rank.alive
    inherited = _files(process.parent)  # an mpiexec leaves its own sockets open in what it starts
    return any(_may_connect(pid, inherited) for pid in process_stacks.tree(rank.pid))


def _may_connect(pid: int, inherited: Container[str]) -> bool:
    if proc.link(pid, "ns/net") != proc.link("self", "ns/net") or not os.access(f"/proc/{pid}/fd", os.R_OK):
        return not is_gone(pid)
    sockets = {f"socket:[{row[9]}]" for row in _rows(pid)}
    return any(file in sockets and file not in inherited for file in _files(pid)) or b"/libmpi" in proc.read(
        pid, "maps"
    )


def _files(pid: int) -> set[str]:
    """Return what the open descriptors of a process lead to; empty where it has ended."""
    try:
        return {proc.link(pid, f"fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return set()
