"""From wishes to a plan: what is there, how ranks are placed, and who starts them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster import detect, probe, recognise
from ezpz.cluster.allocation import Allocation
from ezpz.cluster.probe import is_here
from ezpz.errors import MachineError
from ezpz.launch.binding import choose_binding
from ezpz.launch.choice import choose
from ezpz.launch.contract import cores
from ezpz.launch.hostfile import read_hostfile
from ezpz.launch.order import Setting
from ezpz.launch.placement import place
from ezpz.launch.plan import LaunchPlan
from ezpz.launch.selection import select, wished_devices
from ezpz.launch.settings import communication

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.devices import Devices
    from ezpz.cluster.site import Recognised
    from ezpz.launch.options import Wishes
    from ezpz.launch.placement import Placement
    from ezpz.launch.selection import Selection

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
    allocation, wanted, wanted_origin = _allocation(wishes, environ, more=more)
    site = recognise(environ, probe.read, allocation.job_id)
    devices = wished_devices(wishes.devices_per_host, environ, allocation, site.site, read=probe.read, run=probe.run)
    placement = place(
        allocation,
        devices,
        cores(),
        ranks=wishes.ranks,
        per_host=wishes.per_host,
        origin=wishes.ranks_origin,
        wanted=wanted,
        wanted_origin=wanted_origin,
        oversubscribe=wishes.oversubscribe,
    )
    return Survey(allocation, devices, placement, site)


def draw_up(found: Survey, wishes: Wishes, environ: Mapping[str, str] | None = None) -> LaunchPlan:
    """Return the plan that starts ranks where they were placed.

    Raises:
        EzpzError: Nothing could start ranks there, or a wish does not fit.
    """
    environ = os.environ if environ is None else environ
    allocation, placement, site = found.allocation, found.placement, found.site.site
    here = len(placement.hosts) == 1 and is_here(placement.hosts[0])
    choice = choose(allocation, environ, probe.run, is_here=here, wish=wishes.flavour, site=site)
    return LaunchPlan(
        placement,
        choice,
        choose_binding(wishes.cpu_bind, site, max(placement.counts), found.devices.count),
        communication(environ, site, allocation, use_site=wishes.comm_env == "site", unset=wishes.unset),
        site,
        user_args=wishes.launcher_args,
        extra={
            **({"EZPZ_OVERSUBSCRIBE": Setting("1", "--oversubscribe")} if wishes.oversubscribe else {}),
            "EZPZ_SCHEDULER": Setting(allocation.scheduler, "where this launch is"),
            "EZPZ_JOBID": Setting(allocation.job_id, "where this launch is"),
        },
        job=untold_job(allocation),
        environ=environ,
    )


def untold_job(allocation: Allocation) -> dict[str, str]:
    """Return the variable of a job that was found by this host's name: the launcher must be told of it."""
    if not allocation.job_id:
        return {}
    module = import_module(f"ezpz.cluster.{allocation.scheduler}")
    told = any(os.environ.get(mark) for mark in module.MARKS)
    return {} if told else {module.JOB_VARIABLE: allocation.job_id}


def _allocation(wishes: Wishes, environ: Mapping[str, str], *, more: bool) -> Selection:
    named = read_hostfile(wishes.hostfile) if wishes.hostfile else None
    hosts = wishes.hosts or (named.hosts if named else ())
    try:
        around = detect(environ, more=more)
    except MachineError:
        if not hosts:
            raise
        around = Allocation("none", "", hosts)  # naming hosts is the way out of a job whose hosts cannot be found
    return select(around, wishes, named)
