"""Have PBS's task manager start an agent on each host of a job, where no MPI is installed: the agent starts the ranks.

    pbs_tmrsh n02 sh -c 'exec /usr/bin/python3 -I -S …/start_agent.py 1 ~/.local/state/ezpz/launches/…/agents-5f3a90c2'

``pbs_tmrsh`` runs a command on one host that the node file names, and ends with its code (source: pbs_tmrsh.c of
OpenPBS 23.06.06; tests/data/pbs_tmrsh.json holds its answers). The command gets no input, writes into the job's output,
and has the variables of the job and of no shell in it, so the agent reads what to do from a file that all hosts see.
On the launcher's own host the agent is started directly.
"""

from __future__ import annotations

import shlex

from ezpz.cluster.probe import is_here
from ezpz.launch.flavours.base import REMOTE_SHELL, AgentFlavour, remote_settings
from ezpz.launch.host.payload import UNSEEN

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order, Setting

_NOT_RUN = (126, 127, 254)  # sh: not executable, not found; 254: there is no sh


class PbsTmrsh(AgentFlavour):
    """An agent of ours on each host, started by PBS's task manager."""

    name = title = "pbs_tmrsh"
    way = "PBS's task manager (pbs_tmrsh)"
    by_scheduler = True
    carries_input = False

    def agent_line(self, order: Order, index: int, *, log: str = "", payload: str = "") -> list[str]:
        """Return the command line that starts the agent of one host.

        Args:
            order: Hosts, program and the user's options.
            index: Which host.
            log: Unused: nothing but messages of ``pbs_tmrsh`` comes from it.
            payload: File of the payload.
        """
        del log
        host = order.placement.hosts[index]
        if is_here(host):
            return self.agent(index)
        # A Python of a module may need this to start at all, and the job's own variables lack what a shell has loaded.
        libraries = order.environ.get("LD_LIBRARY_PATH")
        agent = [*(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []), *self.agent(index, payload)]
        command = f"exec {shlex.join(agent)}"
        if order.reach.process:
            return [REMOTE_SHELL, host, command]
        return [order.exe, *order.user_args, host, "sh", "-c", command]

    def agent_variables(self, order: Order) -> Mapping[str, Setting]:
        """Return what lets a shell that is none of the job act as a process of it."""
        return remote_settings(order, "PBS starts the agents", order.user_args) if order.reach.process else {}

    def meaning(self, code: int, payload: str) -> str:
        """Return what it means that ``pbs_tmrsh`` ended with a code before its agent reported."""
        if code == UNSEEN:
            return (
                f"it cannot read {payload}; expected a folder that all hosts of the job share. Choose one with "
                "`launch --log-dir DIR`, or set XDG_STATE_HOME"
            )
        return f"it cannot run {self.agent(0)[0]}; expected the same Python on all hosts" if code in _NOT_RUN else ""


FLAVOUR = PbsTmrsh()
