"""From wishes to a plan: what is there, how ranks are placed, and who starts them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster import count_devices, detect, probe
from ezpz.cluster.allocation import Allocation
from ezpz.errors import MachineError
from ezpz.launch.contract import cores
from ezpz.launch.hostfile import read_hostfile
from ezpz.launch.placement import place
from ezpz.launch.plan import LaunchPlan, choose

if TYPE_CHECKING:
    from ezpz.cluster.devices import Devices
    from ezpz.launch.options import Wishes
    from ezpz.launch.placement import Placement

__all__ = ["Survey", "draw_up", "survey"]


class Survey(NamedTuple):
    """What is there, and where the ranks that the user asked for would go."""

    allocation: Allocation
    devices: Devices
    placement: Placement


def survey(wishes: Wishes) -> Survey:
    """Return hosts, devices and placement; nothing is started or written.

    Raises:
        EzpzError: The job's hosts cannot be found, or the wishes do not fit on them.
    """
    allocation = _allocation(wishes)
    devices = count_devices(os.environ, probe.read, probe.run)
    placement = place(
        allocation, devices, cores(), ranks=wishes.ranks, per_host=wishes.per_host, origin=wishes.ranks_origin
    )
    return Survey(allocation, devices, placement)


def draw_up(found: Survey) -> LaunchPlan:
    """Return the plan that starts ranks where they were placed.

    Raises:
        LaunchError: Nothing could start ranks there.
    """
    flavour, exe, reason = choose(found.allocation, found.placement, os.environ, probe.run)
    extra = {"EZPZ_SCHEDULER": found.allocation.scheduler, "EZPZ_JOBID": found.allocation.job_id}
    return LaunchPlan(found.placement, flavour, exe, reason, extra=extra)


def _allocation(wishes: Wishes) -> Allocation:
    if not wishes.hostfile:
        return detect()
    named = read_hostfile(wishes.hostfile)
    try:
        around = detect()
    except MachineError:  # the host file is the way out of a job whose hosts cannot be found
        around = Allocation("none", "", named.hosts)
    origin = dict.fromkeys(("hosts", "slots", "tasks"), f"--hostfile {wishes.hostfile}")
    return Allocation(
        scheduler=around.scheduler,
        job_id=around.job_id,
        hosts=named.hosts,
        slots=named.slots,
        tasks=sum(named.slots) if named.slots else None,
        origin={**around.origin, **origin},
    )
