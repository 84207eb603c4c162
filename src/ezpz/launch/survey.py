"""Survey what there is for a launch: hosts, devices and site, and where the ranks that the user asked for would go."""

from __future__ import annotations

import os

from ezpz.cluster import count_devices, probe, recognise
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import UsageError
from ezpz.fields import Record, replace
from ezpz.launch.contract import cores
from ezpz.launch.device_choice import chosen_devices
from ezpz.launch.placement import place
from ezpz.launch.selection import selected

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster import Site
    from ezpz.cluster.allocation import Allocation, Read, Run
    from ezpz.cluster.devices import Devices
    from ezpz.cluster.scheduler import Scheduler
    from ezpz.cluster.site import Recognised
    from ezpz.launch.options import LaunchOptions
    from ezpz.launch.placement import Placement

__all__ = ["Survey", "survey", "wanted_devices"]

_DEVICES = "EZPZ_NGPU_PER_HOST"


class Survey(Record):
    """What is there, and where the ranks that the user asked for would go."""

    allocation: Allocation
    devices: Devices
    placement: Placement
    site: Recognised
    scheduler: Scheduler

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the answers."""
        return (*self.allocation.notes, *self.devices.notes)


def survey(
    options: LaunchOptions, environ: Mapping[str, str] | None = None, run: Run | None = None, *, more: bool = False
) -> Survey:
    """Return hosts, devices, site and placement; nothing is started or written.

    Args:
        options: What the user asked for.
        environ: The environment to read; this process's by default.
        run: Asks schedulers; by default as `detect` does.
        more: Ask the scheduler also for what only people want to know.

    Raises:
        EzpzError: The job's hosts cannot be found, or the options do not fit on them.
    """
    environ = os.environ if environ is None else environ
    allocation, wanted, wanted_origin = selected(options, environ, run, more=more)
    site = recognise(environ, probe.read, allocation.job_id)
    number = options.devices_per_host
    devices = wanted_devices(number, environ, allocation, site.site, read=probe.read, run=probe.tools())
    if options.devices:
        if not devices.count and number is None:  # of hosts that cannot be looked at
            number = 1 + max((int(entry) for entry in options.devices if entry.isdigit()), default=0)
            devices = wanted_devices(number, environ, allocation, site.site, read=probe.read, run=probe.tools())
        devices = chosen_devices(devices, options.devices)
    placement = place(
        allocation,
        devices,
        cores(),
        ranks=options.ranks,
        per_host=options.per_host,
        origin=options.ranks_origin,
        wanted=wanted,
        wanted_origin=wanted_origin,
        oversubscribe=options.oversubscribe,
    )
    return Survey(allocation, devices, placement, site, scheduler(allocation.scheduler))


def wanted_devices(
    number: int | None, environ: Mapping[str, str], allocation: Allocation, site: Site | None, *, read: Read, run: Run
) -> Devices:
    """Return the devices of each host: the number of --devices-per-host, else the counted ones.

    Raises:
        UsageError: A variable cannot be read, or TORCH_DEVICE contradicts the option.
    """
    if number is None:
        return count_devices(environ, read, run, allocation, site)
    devices = count_devices({**environ, _DEVICES: str(number)}, read, run, allocation, site)
    if devices.count != number:
        raise UsageError(
            f"--devices-per-host {number} contradicts TORCH_DEVICE={environ.get('TORCH_DEVICE')} "
            f"(from the environment), which leaves {devices.count}. Leave the option out, or `unset TORCH_DEVICE`."
        )
    # They were counted as if the variable were set: the notes shall name what the user typed.
    notes = [note.replace(f"{_DEVICES}={number}", f"--devices-per-host {number}") for note in devices.notes]
    notes = [note.replace(f"`unset {_DEVICES}`", "leave it out") for note in notes]
    return replace(devices, origin="--devices-per-host", notes=tuple(notes))
