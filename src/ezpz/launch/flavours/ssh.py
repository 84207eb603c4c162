"""Use ssh for hosts that have neither an MPI nor a scheduler: it starts an agent on each host, which starts the ranks
there.

    ssh -o BatchMode=yes -o ConnectTimeout=10 -x -T n01 'exec /usr/bin/python3 -I -S …/start_agent.py 0'

Options are those of OpenSSH (ssh(1), 9.2), where the first of two settings counts. ``EZPZ_SSH`` names another program
with its options, in shell words; it is called in the same way. On the launcher's own host no ssh is needed: the agent
is started directly.
"""

from __future__ import annotations

import os
import shlex
import sys

from ezpz.cluster.probe import is_here
from ezpz.interpreter import module_line
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order

_LAUNCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AGENT = os.path.join(_LAUNCH, "host", "start_agent.py")

# No password can be typed by hundreds of hosts at once; no display and no terminal is needed.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-x", "-T")


class Ssh(Flavour):
    """An agent of ours on each host, started by ssh."""

    name = "ssh"
    title = "ssh"
    gives_mpi = False
    starts_agents = True

    def program(self, environ: Mapping[str, str]) -> str:
        """Return ``EZPZ_SSH``, a program with its options, else the ssh on PATH."""
        return environ.get("EZPZ_SSH") or super().program(environ)

    def command(self, order: Order) -> list[Flag]:
        """Return ``python3 -m ezpz.launch --flavour ssh -n 3 --hostfile FILE --``: no program but ours starts ranks
        with ssh.
        """
        flags = [
            Flag((*module_line("ezpz.launch"), "--flavour", "ssh"), "ezpz starts an agent per host with ssh"),
            Flag(("-n", str(order.placement.world_size)), order.placement.origin),
        ]
        if order.hostfile:
            flags.append(Flag(("--hostfile", order.hostfile), "hosts, and ranks on each"))
        if order.user_args:
            flags.append(Flag((f"--launcher-args={shlex.join(order.user_args)}",), "--launcher-args"))
        return [*flags, Flag(("--",), "the program follows")]

    def hostfile_line(self, host: str, count: int) -> str:
        """Return ``n01:2``."""
        return f"{host}:{count}"

    def agent_line(self, order: Order, index: int, log: str = "") -> list[str]:
        """Return the command line that starts the agent of one host.

        Args:
            order: Hosts, program and the user's options.
            index: Which host.
            log: File for ssh's own messages, apart from those of the ranks; only OpenSSH can part them.
        """
        agent = [sys.executable, "-I", "-S", AGENT, str(index)]
        host = order.placement.hosts[index]
        if is_here(host):
            return agent
        program = shlex.split(order.environ.get("EZPZ_SSH", "")) or [order.exe]
        apart = ("-E", log) if log and os.path.basename(program[0]) == "ssh" else ()
        return [*program, *order.user_args, *_OPTIONS, *apart, host, f"exec {shlex.join(agent)}"]


FLAVOUR = Ssh()
