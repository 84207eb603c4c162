"""torchrun's agent as the launcher of one host: for scripts that want elastic's error files, or whoever trusts it more.

    python3 -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29500 --no-python CMD…

Its agent holds the store at the port and sets the whole contract itself (torch 2.13, torch.distributed.run).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.errors import LaunchError
from ezpz.launch.order import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.order import Order, Setting

NAME = "torchrun"
BINDS = False


def recognises(said: str) -> bool:
    """Tell that torchrun is chosen by the user alone."""
    del said
    return False


def command(order: Order) -> list[Flag]:
    """Return the agent's line.

    Raises:
        LaunchError: The ranks are not all on this host.
    """
    if not order.is_here:
        raise LaunchError(
            f"torchrun cannot start ranks on {', '.join(order.placement.hosts[:3])} (from --flavour): its agent serves the host "
            "that it runs on. Use the job's own launcher or `--flavour ssh`, whose ranks have the same environment."
        )
    address, port = order.master
    return [
        Flag((order.exe, "-m", "torch.distributed.run"), "launcher"),
        Flag(("--nnodes=1", f"--nproc-per-node={order.placement.world_size}"), order.placement.origin),
        Flag((f"--master-addr={address}", f"--master-port={port}"), "where the ranks meet"),
        Flag(("--no-python",), "the program is given whole"),
        *order.tail(),
    ]


def environment(order: Order) -> Mapping[str, Setting]:
    """Return nothing: torchrun sets what it needs."""
    del order
    return {}


def hostfile_line(host: str, count: int) -> str:
    """Return the host alone; torchrun reads no host file."""
    del count
    return host
