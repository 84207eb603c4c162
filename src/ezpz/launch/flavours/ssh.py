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

from ezpz.cluster.probe import is_here
from ezpz.launch.flavours.base import AgentFlavour

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.launch.flavours.request import Order

# No password can be typed by hundreds of hosts at once; no display and no terminal is needed.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-x", "-T")


class Ssh(AgentFlavour):
    """An agent of ours on each host, started by ssh."""

    name = way = "ssh"
    title = "ssh"

    def program(self, environ: Mapping[str, str]) -> str:
        """Return ``EZPZ_SSH``, a program with its options, else the ssh on PATH."""
        return environ.get("EZPZ_SSH") or super().program(environ)

    def agent_line(self, order: Order, index: int, *, log: str = "", payload: str = "") -> list[str]:
        """Return the command line that starts the agent of one host.

        Args:
            order: Hosts, program and the user's options.
            index: Which host.
            log: File for ssh's own messages, apart from those of the ranks; only OpenSSH can part them.
            payload: Unused: it comes through ssh.
        """
        del payload
        host = order.placement.hosts[index]
        if is_here(host):
            return self.agent(index)
        program = words_of(order.environ) or [order.exe]
        apart = ("-E", log) if log and os.path.basename(program[0]) == "ssh" else ()
        return line_to([*program, *order.user_args], host, self.agent(index), apart)


def words_of(environ: Mapping[str, str]) -> list[str]:
    """Return ``EZPZ_SSH`` in words; none where it is not set."""
    return shlex.split(environ.get("EZPZ_SSH", ""))


def line_to(program: Sequence[str], host: str, command: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return the line that runs a command on another host by ssh.

    Args:
        program: ssh, with the user's options: of two settings the first one counts.
        host: The host.
        command: Words, which the shell there gets quoted.
        more: Options behind ours.
    """
    return [*program, *_OPTIONS, *more, host, f"exec {shlex.join(command)}"]


FLAVOUR = Ssh()
