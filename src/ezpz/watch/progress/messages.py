"""Define what ranks say of their progress, and what a host reports of those that show none."""

from __future__ import annotations

from ezpz.fields import flag_field, number_field, rank_field, seconds_field, text_field
from ezpz.launch.shim_messages import Message

_NAME = 80  # characters: of a section


class Beat(Message):
    """That rank makes progress."""

    kind = "beat"


class At(Message):
    """That rank has done this step."""

    kind = "at"
    step: int = number_field()


class Busy(Message):
    """That rank works on its record (1), or no longer (0)."""

    kind = "busy"
    busy: int = number_field(0, 1)


class Section(Message):
    """That rank is in this section, or with no name in none any more. Its timeout, 0 for none, takes the place of the
    idle limit; with ``at_least`` only where that is shorter.
    """

    kind = "section"
    timeout: float = seconds_field()
    at_least: int = number_field(0, 1)
    name: str = text_field(_NAME)


class Ending(Message):
    """The program of that rank has ended; what Python does after it may take so many seconds."""

    kind = "ending"
    seconds: float = seconds_field()


class Idle(Message):
    """A rank shows no progress for longer than its limit: of the section that is named, of what Python does when its
    program has ended, else that of all.
    """

    kind = "idle"
    rank: int = rank_field()
    pid: int = number_field(0)
    seconds: float = seconds_field()
    limit: float = seconds_field()
    section: str = text_field(_NAME)
    ending: bool = flag_field()


class Pace(Message):
    """Rank 0 has done so many steps; this run of it began after the first ones. A total of 0 ends its loop."""

    kind = "pace"
    done: int = number_field(0)
    first: int = number_field(0)
    total: int = number_field(0)


class RankBusy(Message):
    """A rank works on its record, or no longer: others may wait for it."""

    kind = "busy"
    rank: int = rank_field()
    busy: bool = flag_field()


class CountAnew(Message):
    """Ranks without progress may have waited for one that was busy: count the time of all others from now on."""

    kind = "anew"


WORDS = (Beat, At, Pace, Busy, Section, Ending)
REPORTS, ORDERS = (Idle, Pace, RankBusy), (CountAnew,)
