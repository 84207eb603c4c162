"""The port where the ranks meet, held by the launcher, and the names under which shims reach it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ezpz.launch.plan import is_here

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

__all__ = ["addresses", "hold_port"]

# Below the ports that Linux hands out for outgoing connections (32768 on), above the well-known ones.
_REMOTE_PORTS = range(20_000, 32_000)


def hold_port(placement: Placement) -> tuple[int, socket.socket | None]:
    """Return a port for the rendezvous, and the socket that keeps it ours.

    On this host the socket is bound but does not listen: with ``SO_REUSEADDR`` on both sides the kernel lets rank 0's
    store listen on it, while it gives the port to nobody else, neither to another launch nor to an outgoing connection.
    On another host the port cannot be held; a random one is named, and rank 0 says so when it is taken.
    """
    if not is_here(placement.hosts[0]):
        return _REMOTE_PORTS[int.from_bytes(os.urandom(4), "big") % len(_REMOTE_PORTS)], None
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held.getsockname()[1], held


def addresses(placement: Placement) -> list[str]:
    """Return names under which shims may reach this host: by loopback, by its address on the route, by its name."""
    if len(placement.hosts) == 1 and is_here(placement.hosts[0]):
        return ["127.0.0.1"]
    found = [socket.gethostname()]
    remote = next((host for host in placement.hosts if not is_here(host)), placement.hosts[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))  # no packet is sent: the kernel only tells which interface it would use
            found.insert(0, probe.getsockname()[0])
    except OSError:
        pass  # the name must do
    return found
