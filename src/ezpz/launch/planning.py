"""From wishes to a plan: what is there, how ranks are placed, and who starts them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster import count_devices, detect, probe, recognise
from ezpz.cluster.allocation import Allocation
from ezpz.errors import MachineError
from ezpz.launch.contract import cores
from ezpz.launch.hostfile import read_hostfile
from ezpz.launch.placement import place
from ezpz.launch.plan import LaunchPlan, choose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.devices import Devices
    from ezpz.cluster.site import Recognised
    from ezpz.launch.options import Wishes
    from ezpz.launch.placement import Placement

__all__ = ["Survey", "draw_up", "survey", "untold_job"]


class Survey(NamedTuple):
    """What is there, and where the ranks that the user asked for would go."""

    allocation: Allocation
    devices: Devices
    placement: Placement
    site: Recognised

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the answers."""
        return (*self.allocation.notes, *self.devices.notes)


def survey(wishes: Wishes, environ: Mapping[str, str] | None = None, *, more: bool = False) -> Survey:
    """Return hosts, devices, site and placement; nothing is started or written.

    Args:
        wishes: What the user asked for.
        environ: The environment to read; this process's by default.
        more: Ask the scheduler also for what only people want to know.

    Raises:
        EzpzError: The job's hosts cannot be found, or the wishes do not fit on them.
    """
    environ = os.environ if environ is None else environ
    allocation = _allocation(wishes, environ, more=more)
    site = recognise(environ, probe.read, allocation.job_id)
    devices = count_devices(environ, probe.read, probe.run, allocation, site.site)
    placement = place(
        allocation, devices, cores(), ranks=wishes.ranks, per_host=wishes.per_host, origin=wishes.ranks_origin
    )
    return Survey(allocation, devices, placement, site)


def draw_up(found: Survey) -> LaunchPlan:
    """Return the plan that starts ranks where they were placed.

    Raises:
        LaunchError: Nothing could start ranks there.
    """
    flavour, exe, reason = choose(found.allocation, found.placement, os.environ, probe.run)
    allocation = found.allocation
    extra = {"EZPZ_SCHEDULER": allocation.scheduler, "EZPZ_JOBID": allocation.job_id}
    return LaunchPlan(found.placement, flavour, exe, reason, extra=extra, job=untold_job(allocation))


def untold_job(allocation: Allocation) -> dict[str, str]:
    """Return the variable of a job that was found by this host's name: the launcher must be told of it."""
    if not allocation.job_id:
        return {}
    module = import_module(f"ezpz.cluster.{allocation.scheduler}")
    told = any(os.environ.get(mark) for mark in module.MARKS)
    return {} if told else {module.JOB_VARIABLE: allocation.job_id}


def _allocation(wishes: Wishes, environ: Mapping[str, str], *, more: bool) -> Allocation:
    if not wishes.hostfile:
        return detect(environ, more=more)
    named = read_hostfile(wishes.hostfile)
    try:
        around = detect(environ, more=more)
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
