"""Define what a host is to look at before its ranks begin, and what it reports."""

from __future__ import annotations

from ezpz.fields import Number, Record, Text, list_field, number_field, rows_field, text_field
from ezpz.launch.shim_messages import Message

_PATH, _TEXT = 4096, 1 << 14  # characters


class Look(Record):
    """What is looked at, besides what every launch needs.

    Attributes:
        own_devices: Whether each rank of a host has a device of its own.
        folder: The working folder of the launcher; empty where that was removed.
        program: What the ranks run.
        script: The file that Python runs among its words; empty where that is none.
    """

    own_devices: bool
    folder: str
    program: str
    script: str

    @classmethod
    def of(cls, config: str) -> Look:
        """Return it from the text in the settings of the launch (`ezpz.launch.planning`)."""
        own_devices, folder, program, script = config.split("\0")
        return cls(bool(own_devices), folder, program, script)


class Looked(Message):
    """What a host looks like before its ranks begin, as far as they will use it.

    ``place`` is the same for hosts that share one kernel and network. ``master`` is what MASTER_ADDR means here:
    ``own`` (an address of this host), ``other``, ``loopback`` or ``unknown``; ``reach`` is why it does not answer.
    ``missing`` are interfaces that a variable names, ``devices`` those that the ranks take, where each has its own,
    ``machine`` is the same for hosts that have the same devices, ``shared`` is a mask that gives one of them to two
    ranks, and ``room`` what is written where, with the bytes that are free. Times are seconds since 1970; a size of -1
    is none.
    """

    kind = "looked"
    host: str = text_field(255)
    place: str = text_field(255)
    python: str = text_field(_PATH)
    version: str = text_field(40)
    torch: str = text_field(255)
    ezpz: str = text_field(255)
    script_size: int = number_field(-1)
    script_time: int = number_field()
    script_problem: str = text_field(255)
    folder_problem: str = text_field(255)
    master: str = text_field(40)
    reach: str = text_field(255)
    interface: str = text_field(255)
    address: str = text_field(255)
    missing: list[str] = list_field(Text(255), most=16)
    interfaces: list[str] = list_field(Text(255), most=64)
    machine: str = text_field(255)
    devices: list[str] = list_field(Text(255), most=64)
    shared: str = text_field(_TEXT)
    room: list[tuple[str, str, int]] = rows_field(Text(40), Text(_PATH), Number(0, 1 << 53), most=16)


REPORTS = (Looked,)
