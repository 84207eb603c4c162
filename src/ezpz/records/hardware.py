"""Say what ``watch/hardware`` keeps: its part of ``run.json``, and the rows of ``hardware.jsonl``."""

from __future__ import annotations

from ezpz.fields import EMPTY, json_field, number_field, real_field
from ezpz.records.stored import Stored

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__all__ = ["HardwareSummary"]


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
    hosts: dict[str, Any] = json_field(dict, default=EMPTY)
    hosts_left_out: int = number_field(default=0)
    runs: int = number_field(default=1)
