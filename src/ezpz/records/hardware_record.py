"""Say what ``watch/hardware`` keeps: its part of ``run.json``, and the rows of ``hardware.jsonl``."""

from __future__ import annotations

from ezpz.fields import (
    EMPTY,
    Malformed,
    Part,
    Real,
    Record,
    as_far_as_it_fits,
    flag_field,
    list_field,
    map_field,
    number_field,
    part_field,
    real_field,
    row_field,
    text_field,
)
from ezpz.records.stored_files import LONGEST, Stored

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["DeviceFigures", "Figure", "HardwareRow", "HardwareSummary", "HostFigures"]

Figure = tuple[float, float, float]  # its mean, its lowest and its highest value
_FAR = 2.0**63


def _figure() -> Any:
    return row_field(Real(-_FAR, _FAR), Real(-_FAR, _FAR), Real(-_FAR, _FAR), default=None)


class DeviceSummary(Record):
    """What a device did in a whole run.

    Attributes:
        name: Its kind.
        given: Whether a rank had it as its own.
        clock: The clock of its cores in MHz: the mean, and the most.
    """

    name: str = text_field(LONGEST, default="")
    given: bool = flag_field(default=False)
    clock: Sequence[float] = list_field(Real(-_FAR, _FAR), default=())


class HostSummary(Record):
    """What a host did in a whole run.

    Attributes:
        devices: Its devices, by id: of further figures (docs/hardware.md), too, the mean and the most.
    """

    devices: Mapping[str, DeviceSummary] = map_field(Part(DeviceSummary), default=EMPTY)


class HardwareSummary(Stored):
    """What the devices and hosts of a run did.

    Attributes:
        seconds: How long they were sampled.
        devices: How many devices were.
        joules: The energy of all, where they count it.
        joules_of_hosts: That of whole hosts.
        hosts: The first 64 hosts by name: of each figure (docs/hardware.md) its mean and its most, ``joules``,
            ``devices`` by id, and ``missing``, what could not be sampled.
        hosts_left_out: How many more there were.
        runs: How many runs of the launch they did this for, where those are several.
    """

    seconds: float | None = real_field(default=None)
    devices: int = number_field(default=0)
    joules: float | None = real_field(default=None)
    joules_of_hosts: float | None = real_field(default=None)
    hosts: Mapping[str, HostSummary] = map_field(Part(HostSummary), default=EMPTY)
    hosts_left_out: int = number_field(default=0)
    runs: int = number_field(default=1)


class HostFigures(Record):
    """What a host did, and what the processes of the launch used there; docs/hardware.md has the units.

    Attributes:
        cpu: Cores that the processes keep busy.
        memory: Their memory.
        memory_of_job: That of the job's cgroup.
        memory_free: Memory of the host that is free.
        memory_total: All of it.
        faults: Major page faults per second.
        received: Bytes per second from the network.
        sent: Bytes per second to it.
        power: Of the whole host.
        joules: Of the whole host.
    """

    cpu: Figure | None = _figure()
    memory: Figure | None = _figure()
    memory_of_job: Figure | None = _figure()
    memory_free: Figure | None = _figure()
    memory_total: Figure | None = _figure()
    faults: Figure | None = _figure()
    received: Figure | None = _figure()
    sent: Figure | None = _figure()
    power: Figure | None = _figure()
    joules: float | None = real_field(default=None)


class DeviceFigures(Record):
    """What a device did; docs/hardware.md has the units.

    Attributes:
        id: Which one of its host it is.
        name: Its kind.
        given: Whether a rank has it as its own.
        power: Its power.
        joules: Its energy.
        memory: Its memory in use.
        memory_total: All of it.
        clock: The clock of its cores.
        memory_clock: That of its memory.
        used: The share of the time in which it computed.
        temperature: Its temperature.
        throttled: By why it was slowed down, the share of the samples.
        errors: Uncorrectable errors of its memory.
        xids: Errors that its driver has numbered.
    """

    id: str = text_field(LONGEST)
    name: str = text_field(LONGEST, default="")
    given: bool = flag_field(default=False)
    power: Figure | None = _figure()
    joules: float | None = real_field(default=None)
    memory: Figure | None = _figure()
    memory_total: Figure | None = _figure()
    clock: Figure | None = _figure()
    memory_clock: Figure | None = _figure()
    used: Figure | None = _figure()
    temperature: Figure | None = _figure()
    throttled: dict[str, float] = map_field(Real(-_FAR, _FAR), default=EMPTY)
    errors: float | None = real_field(default=None)
    xids: float | None = real_field(default=None)


class HardwareRow(Record):
    """A row of ``hardware.jsonl``: some seconds of a host.

    Attributes:
        v: 1, the version of this format.
        t: When the seconds ended, in epoch seconds.
        s: How many they are.
        host: The host.
        now: What the host did.
        devices: What its devices did.
    """

    v: int = number_field(1, 1)
    t: float = real_field()
    s: float = real_field()
    host: str = text_field(LONGEST)
    now: HostFigures = part_field(HostFigures)
    devices: Sequence[DeviceFigures] = list_field(Part(DeviceFigures))

    @classmethod
    def of(cls, values: object) -> HardwareRow | None:
        """Return the row that a line holds, as far as its figures fit; None where it holds none."""
        try:
            return as_far_as_it_fits(cls, values, []) if isinstance(values, dict) else None
        except Malformed:
            return None
