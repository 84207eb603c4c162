"""Define the messages between the two sides: figures of devices, and who asks for them."""

from __future__ import annotations

from ezpz.fields import (
    Seconds,
    Text,
    flag_field,
    list_field,
    number_field,
    part_field,
    rows_field,
    seconds_field,
    text_field,
)
from ezpz.launch.shim_messages import Message


class DeviceFigures(Message):
    """What one device did: whether a rank has it as its own; name, mean, least and most of each figure; and why it was
    slowed down, in which share of the samples.
    """

    id: str = text_field(64)
    name: str = text_field(128)
    given: bool = flag_field()
    figures: list[tuple[str, float, float, float]] = rows_field(
        Text(24), Seconds(False), Seconds(False), Seconds(False), most=24
    )
    throttled: list[tuple[str, float]] = rows_field(Text(40), Seconds(False), most=16)


class Hardware(Message):
    """What a host's devices, and this launch's processes there, did in the last ``span`` seconds up to ``at``; what
    cannot be read there, each reported once; and whether a rank there has made two steps, so that the run trains.
    """

    kind = "hardware"
    at: float = seconds_field()
    span: float = seconds_field()
    devices: list[DeviceFigures] = list_field(part_field(DeviceFigures), most=256)
    host: list[tuple[str, float, float, float]] = rows_field(
        Text(24), Seconds(False), Seconds(False), Seconds(False), most=24
    )
    problems: list[str] = list_field(Text(400), most=16)
    trains: bool = flag_field()


class RecordDue(Message):
    """Rank 0 is about to draw its record: what the other hosts' hardware did should be there by then."""

    kind = "due"


class TellHardware(Message):
    """Report what the hardware did since the last report; the answer to `RecordDue`, for all agents."""

    kind = "hardware?"


class ReportSeldom(Message):
    """Sum up so many times as many samples in each report from now on."""

    kind = "seldom"
    times: int = number_field(1, 1 << 20)


REPORTS, ORDERS = (Hardware, RecordDue), (TellHardware, ReportSeldom)
