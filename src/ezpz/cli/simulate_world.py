"""The world that `ezpz simulate` makes up: its hosts, who the one rank is, and the environment that tells it so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ezpz.dist.simulate.rank import RUN_ID
from ezpz.launch.contract import rank_variables, started_here
from ezpz.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["World", "imagine", "rank_environ"]

_PER_HOST = 8  # devices of most accelerator hosts: DGX, HGX, MI300X; MI250X counted by half cards
_NO_PORT = "99999"  # no port: torch refuses it at once where a script meets by itself, and waits for nobody


class World(NamedTuple):
    """A world of ranks, the one of them that runs, and where the numbers come from."""

    ranks: Ranks
    per_host: int
    hosts: int
    origin: str
    device: str
    device_origin: str

    @property
    def shape(self) -> str:
        """Return ``512 hosts x 8``, or with an uneven end ``2 hosts, 12 ranks each, 3 on the last``."""
        host = f"{self.hosts} host{'s'[: self.hosts > 1]}"
        last = self.ranks.world_size - (self.hosts - 1) * self.per_host
        if last == self.per_host or self.hosts == 1:
            return f"{host} x {last}"
        return f"{host} x {self.per_host}, {last} on the last"


def imagine(ranks: int, rank: int, per_host: int | None, environ: Mapping[str, str]) -> World:
    """Return a world of hosts that are filled in order.

    Args:
        ranks: Its size.
        rank: The rank that runs; less than ``ranks``.
        per_host: Ranks per host, or None to take the devices of the site's or the job's hosts.
        environ: The environment to read.

    Raises:
        EzpzError: A job is told of, but cannot be understood, or TORCH_DEVICE cannot.
    """
    number, origin = (per_host, "from --ppn") if per_host else _devices(environ)
    index = rank // number
    local = min(number, ranks - index * number)
    me = Ranks(rank, ranks, rank % number, local, index, "contract")
    wish = environ.get("TORCH_DEVICE", "")
    # The only real device is the first one, whichever rank is played.
    device = wish if wish in {"", "cpu", "mps"} or ":" in wish else f"{wish}:0"
    return World(
        me,
        number,
        -(-ranks // number),
        origin,
        device or "cpu",
        "from TORCH_DEVICE" if wish else "unless TORCH_DEVICE says otherwise",
    )


def rank_environ(world: World, report: str, environ: Mapping[str, str], *, data: bool = True) -> dict[str, str]:
    """Return the environment of the rank, without what a launcher or job around left in it.

    Args:
        world: The world.
        report: Where the rank shall say what it needed.
        environ: The environment to begin with.
        data: Whether tensors shall have memory and values.
    """
    return {
        **started_here(environ),
        **rank_variables(world.ranks, world.hosts),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _NO_PORT,
        "TORCHELASTIC_RUN_ID": RUN_ID,
        "TORCH_DEVICE": world.device,
        "EZPZ_SIMULATE": str(world.ranks.world_size),
        "EZPZ_SIMULATE_REPORT": report,
        "EZPZ_SIMULATE_DATA": "yes" if data else "no",
        "EZPZ_LAUNCH_ID": f"simulate-{os.urandom(8).hex()}",  # by which all that the script starts is found
    }


def _devices(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the devices of one host of the job, else of the site, else of this host if it has several, else a usual number."""
    from ezpz.cluster import count_devices, detect, probe, recognise

    told = {name: value for name, value in environ.items() if name != "TORCH_DEVICE"}  # the script's, not the world's
    allocation = detect(told)
    site = recognise(told, probe.read, allocation.job_id).site
    found = count_devices(told, probe.read, probe.run, allocation, site)
    if allocation.job_id and found.count:
        return found.count, f"ranks per host from {found.origin}"
    if site and site.devices_per_host:
        return site.devices_per_host, f"ranks per host from site {site.name}"
    if found.count > 1:  # one is a desktop's, which is no model of a host with thousands of ranks
        return found.count, f"ranks per host from {found.origin}"
    return _PER_HOST, f"{_PER_HOST} ranks per host assumed; --ppn tells another number"
