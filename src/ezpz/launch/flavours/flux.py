"""Flux's own launcher, from the manual page flux-run(1) of flux-core 0.66; replayed in tests, never run on a Flux
machine.

    flux run --nodes=2 --ntasks=8 -o cpu-affinity=per-task python3 …

It copies the whole environment, spreads tasks evenly over hosts in blocks and sets FLUX_TASK_RANK, FLUX_JOB_SIZE and
FLUX_TASK_LOCAL_ID. ``--requires=host:…`` chooses hosts. Of a job that asks for no GPUs it sets CUDA_VISIBLE_DEVICES to
-1, unless gpu-affinity is off (src/shell/gpubind.c).
"""

from __future__ import annotations

from ezpz.errors import LaunchError
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.flavours.request import Order


class FluxRun(Flavour):
    """``flux run`` inside a Flux job."""

    name = "flux"
    title = "flux"
    family = "flux"
    ends_ranks_itself = True

    def command(self, order: Order) -> list[Flag]:
        """Return ``flux run --nodes=2 --ntasks=8 --requires=host:n1,n2``.

        Raises:
            LaunchError: Hosts are to hold different numbers of ranks.
        """
        placement = order.placement
        if len(set(placement.counts)) > 1:
            raise LaunchError(
                f"flux cannot place {placement.encode()} ranks (from {placement.origin}): it spreads them evenly. Use "
                f"`--ppn N`, or `-n {max(placement.counts) * len(placement.hosts)}`."
            )
        flags = [
            Flag((order.exe, "run"), "launcher"),
            Flag((f"--nodes={len(placement.hosts)}",), "hosts"),
            Flag((f"--ntasks={placement.world_size}",), placement.origin),
            Flag((f"--requires=host:{','.join(placement.hosts)}",), "these hosts and no others"),
        ]
        flags.append(Flag(("-o", "gpu-affinity=off"), "it would hide all devices from ranks that ask it for none"))
        if placement.counts[0] > 1 and order.binding.text == "none" and order.binding.origin != "--cpu-bind":
            flags.append(Flag(("-o", "cpu-affinity=per-task"), "each rank on cores of its own"))
        return [*flags, *order.tail()]


FLAVOUR = FluxRun()
