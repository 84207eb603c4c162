"""ssh for hosts that have neither an MPI nor a scheduler: one leader per host, which starts the ranks there.

    ssh -o BatchMode=yes -o ConnectTimeout=10 -x -T n01 'exec /usr/bin/python3 -I -S …/start_agent.py 0'

Options are those of OpenSSH (ssh(1), 9.2), where the first of two settings counts. ``EZPZ_SSH`` names another program with its options,
in shell words; it is called in the same way. On the launcher's own host no ssh is needed: the leader is started directly.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from ezpz.cluster.probe import is_here
from ezpz.launch.flavours.request import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order, Setting

__all__ = ["LEADER", "NAME", "PARCEL", "command", "environment", "hostfile_line", "leader_line", "recognises"]

NAME = "ssh"
BINDS = False

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEADER = os.path.join(_FOLDER, "host", "start_agent.py")
PARCEL = os.path.join(_FOLDER, "host", "payload.py")

# No password can be typed by hundreds of hosts at once; no display and no terminal is needed.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-x", "-T")


def recognises(said: str) -> bool:
    """Tell that ssh is chosen where nothing else is there, never by ``mpiexec --version``."""
    del said
    return False


def command(order: Order) -> list[Flag]:
    """Return ``python3 -m ezpz.launch --flavour ssh -n 3 --hostfile FILE --``: no program but ours starts ranks with ssh."""
    flags = [
        Flag((sys.executable, "-m", "ezpz.launch", "--flavour", "ssh"), "ezpz starts a leader per host with ssh"),
        Flag(("-n", str(order.placement.world_size)), order.placement.origin),
    ]
    if order.hostfile:
        flags.append(Flag(("--hostfile", order.hostfile), "hosts, and ranks on each"))
    if order.user_args:
        flags.append(Flag((f"--launcher-args={shlex.join(order.user_args)}",), "--launcher-args"))
    return [*flags, Flag(("--",), "the program follows")]


def environment(order: Order) -> Mapping[str, Setting]:
    """Return nothing: ssh needs no variables."""
    del order
    return {}


def hostfile_line(host: str, count: int) -> str:
    """Return ``n01:2``."""
    return f"{host}:{count}"


def leader_line(order: Order, index: int, log: str = "") -> list[str]:
    """Return the line that starts the leader of one host.

    Args:
        order: Hosts, program and the user's options.
        index: Which host.
        log: File for what ssh itself has to say, apart from what the ranks say; only OpenSSH can part them.
    """
    leader = [sys.executable, "-I", "-S", LEADER, str(index)]
    host = order.placement.hosts[index]
    if is_here(host):
        return leader
    program = shlex.split(order.environ.get("EZPZ_SSH", "")) or [order.exe]
    apart = ("-E", log) if log and os.path.basename(program[0]) == "ssh" else ()
    return [*program, *order.user_args, *_OPTIONS, *apart, host, f"exec {shlex.join(leader)}"]
