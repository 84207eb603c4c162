"""torchrun's agent as the launcher of one host: for scripts that want elastic's error files, or whoever trusts it more.

    python3 -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29500 --no-python CMD…

Its agent holds the store at the port and sets the whole contract itself (torch 2.13, torch.distributed.run).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.errors import LaunchError, UsageError
from ezpz.launch.contract import threads
from ezpz.launch.flavours.request import Flag, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order

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
        UsageError: Restarts are wanted.
    """
    if not order.is_here:
        raise LaunchError(
            f"torchrun cannot start ranks on {', '.join(order.placement.hosts[:3])} (from --flavour): its agent serves the host "
            "that it runs on. Use the job's own launcher or `--flavour ssh`, whose ranks have the same environment."
        )
    restarts = next((word for word in order.user_args if word.replace("_", "-").startswith("--max-restarts")), "")
    if restarts:
        raise UsageError(
            f"unusable {restarts} (from --launcher-args): `launch` ends a run at the first failure; expected no restarts. Run "
            "`python3 -m torch.distributed.run` itself."
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
    """Return the threads of a rank, unless the user chose: torchrun takes one each, and says so in four lines."""
    if "OMP_NUM_THREADS" in order.environ:
        return {}
    return {"OMP_NUM_THREADS": Setting(threads(order.placement.world_size), "cores of this host shared by its ranks")}


def hostfile_line(host: str, count: int) -> str:
    """Return the host alone; torchrun reads no host file."""
    del count
    return host
