"""Say what a ``lease-<n>`` holds: who works on a chain of jobs, or saves into a folder of checkpoints."""

from __future__ import annotations

from ezpz.fields import flag_field, number_field, text_field
from ezpz.records.stored_files import LONGEST, Stored

__all__ = ["LeaseEntry"]


class LeaseEntry(Stored):
    """Who holds a lease.

    Attributes:
        token: What no other holder has.
        given_back: Whether it was given back.
        host: The host of the holder.
        job: Its job; empty without one.
        scheduler: The scheduler of that.
        restarts: Of a chain: how often the scheduler had started the job again.
        pid: Of checkpoints: the process.
        birth: Of checkpoints: the start of that, as the kernel counts it.
        machine: Of checkpoints: the boot of the host and the space of numbers in which that pid counts.
        inode: Of checkpoints: the folder, which a copy does not share.
        since: Of checkpoints: when it was taken, in ISO 8601.
        chain: Of checkpoints: the folder of the chain to which the job belongs.
        launch: Of checkpoints: the launch.
        attempt: Of checkpoints: the attempt of that.
    """

    token: str = text_field(LONGEST, default="")
    given_back: bool = flag_field(default=False)
    host: str = text_field(LONGEST, default="")
    job: str = text_field(LONGEST, default="")
    scheduler: str = text_field(LONGEST, default="")
    restarts: int = number_field(default=0)
    pid: int | None = number_field(default=None)
    birth: str | None = text_field(LONGEST, default=None)
    machine: str | None = text_field(LONGEST, default=None)
    inode: int | None = number_field(-(1 << 64), 1 << 64, default=None)
    since: str | None = text_field(LONGEST, default=None)
    chain: str = text_field(LONGEST, default="")
    launch: str = text_field(LONGEST, default="")
    attempt: str = text_field(LONGEST, default="")
