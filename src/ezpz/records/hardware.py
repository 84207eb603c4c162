"""Say what ``watch/hardware`` keeps of devices and hosts: a part of ``run.json``, and the rows of ``hardware.jsonl``."""

from __future__ import annotations

from ezpz.fields import EMPTY, Part, Record, json_field, list_field, map_field, number_field, real_field, text_field
from ezpz.records.stored import LONGEST, Stored, text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["HardwareOfHost", "HardwareSummary"]


class HardwareOfHost(Stored):
    """What a host did over a whole run; of each further figure, docs/hardware.md, the mean and the most.

    Attributes:
        joules: The energy of the whole host, where it counts that.
        missing: What could not be sampled, in sentences.
        devices: Of each device by its id: name, whether it was given to a rank, figures, joules.
    """

    joules: float | None = real_field(default=None)
    missing: Sequence[str] = list_field(text(), default=())
    devices: dict[str, Any] = map_field(Part(Stored), default=EMPTY)


class HardwareSummary(Stored):
    """What the devices and hosts of a run did.

    Attributes:
        seconds: How long they were sampled.
        devices: How many devices were.
        joules: The energy of all, where they count it.
        joules_of_hosts: That of whole hosts.
        hosts: Each host by its name, the first 64.
        hosts_left_out: How many more there were.
        runs: How many runs of the launch they did this for, where those are several.
    """

    seconds: float | None = real_field(default=None)
    devices: int = number_field(default=0)
    joules: float | None = real_field(default=None)
    joules_of_hosts: float | None = real_field(default=None)
    hosts: dict[str, HardwareOfHost] = map_field(Part(HardwareOfHost), default=EMPTY)
    hosts_left_out: int = number_field(default=0)
    runs: int = number_field(default=1)
