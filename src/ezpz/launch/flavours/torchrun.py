"""Use torchrun's agent as the launcher of one host: for scripts that need elastic's error files.

    python3 -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29500
    --no-python CMD…

Its agent holds the store at the port and sets the whole contract itself (torch 2.13, torch.distributed.run).
"""

from __future__ import annotations

import sys

from ezpz.errors import LaunchError, UsageError
from ezpz.interpreter import module_line
from ezpz.launch.contract import threads
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag, Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.launch.flavours.request import Order


class Torchrun(Flavour):
    """The agent of torchrun, on this host alone."""

    name = "torchrun"
    title = "torchrun"
    gives_mpi = False

    def command(self, order: Order) -> list[Flag]:
        """Return the agent's line.

        Raises:
            LaunchError: The ranks are not all on this host.
            UsageError: The user asks for restarts.
        """
        if not order.is_here:
            raise LaunchError(
                f"torchrun cannot start ranks on {', '.join(order.placement.hosts[:3])} (from --flavour): its agent "
                "serves the host that it runs on. Use the job's own launcher or `--flavour ssh`, whose ranks have the "
                "same environment."
            )
        restarts = next((word for word in order.user_args if word.replace("_", "-").startswith("--max-restarts")), "")
        if restarts:
            raise UsageError(
                f"unusable {restarts} (from --launcher-args): `launch` ends a run at the first failure; expected no "
                "restarts. Run `python3 -m torch.distributed.run` itself."
            )
        address, port = order.master
        return [
            Flag(tuple(module_line("torch.distributed.run", order.exe)), "launcher"),
            Flag(("--nnodes=1", f"--nproc-per-node={order.placement.world_size}"), order.placement.origin),
            Flag((f"--master-addr={address}", f"--master-port={port}"), "where the ranks meet"),
            Flag(("--no-python",), "the program is given whole"),
            *order.tail(),
        ]

    def program(self, environ: Mapping[str, str]) -> str:
        """Return this Python, whose module it is."""
        del environ
        return sys.executable

    def misreads(self, command: Sequence[str]) -> bool:
        """Tell whether words hold ``$``, with which its macros begin."""
        return super().misreads(command) or any("$" in word for word in command)

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the threads of a rank, unless the user chose: torchrun takes one each, with a warning of four
        lines.
        """
        if "OMP_NUM_THREADS" in order.environ:
            return {}
        return {
            "OMP_NUM_THREADS": Setting(threads(order.placement.world_size), "cores of this host shared by its ranks")
        }


FLAVOUR = Torchrun()
