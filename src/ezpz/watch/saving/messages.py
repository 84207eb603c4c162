"""Define what ranks say of saving, what a host reports of all its ranks, and what these are asked for."""

from __future__ import annotations

from ezpz.fields import RANKS, flag_field, number_field, seconds_field
from ezpz.launch.shim_messages import Message


class Saver(Message):
    """That rank can save when asked: 1, at a step that it is given; 2, at one that all ranks agree on; 0 no longer."""

    kind = "saver"
    how: int = number_field(0, 2)


class Saved(Message):
    """That rank has saved, which took so many seconds, after this step; -1 if it is not known."""

    kind = "saved"
    seconds: float = seconds_field()
    step: int = number_field(-1)


class Leaves(Message):
    """That rank has saved after this step, -1 if it is not known, and ends, because it was asked to."""

    kind = "leaves"
    step: int = number_field(-1)


class SaveAnswer(Message):
    """That rank has read the request of this number at this step, -1 without one; it waits for its turn (1) or it is
    too late (0); and the seconds of a step, 0 where it does not know.
    """

    kind = "answer"
    number: int = number_field(0)
    step: int = number_field(-1)
    armed: int = number_field(0, 1)
    pace: float = seconds_field()


class Savers(Message):
    """What ranks of the host have reported of saving: how many can save when asked, how many of these agree among
    themselves at which step; the longest save in seconds and the steps in the newest one, each -1 if none; the number
    of the last request, and whether all ranks that got it have saved since, and have left because of it; and how long a
    step takes, where that is long.
    """

    kind = "savers"
    ranks: int = number_field(0, RANKS)
    agree: int = number_field(0, RANKS)
    longest: float = seconds_field()
    step: int = number_field(-1)
    number: int = number_field(0)
    saved: bool = flag_field()
    left: bool = flag_field()
    pace: float = seconds_field()


class SaveAnswered(Message):
    """All ranks of the host that can save have read the request of this number: the furthest step among them, -1 if
    they tell none, whether none of them has passed the step at which it is due, and the shortest time of a step.
    """

    kind = "answered"
    number: int = number_field(0)
    step: int = number_field(-1)
    armed: bool = flag_field()
    pace: float = seconds_field()


class AskToSave(Message):
    """Ask ranks to save, and then to go on (``ends`` 0), to end (1), or to wait for a signal (2): at once those that
    agree among themselves, the others after ``step``, which is -1 to be asked where they are. They wait for `SaveNow`
    there. Hosts pass it on to their ranks as it is.
    """

    kind = "ask"
    number: int = number_field(0)
    ends: int = number_field(0, 2)
    step: int = number_field(-1)


class SaveNow(Message):
    """All ranks have answered the request of this number in time: it counts. Hosts pass it on as well."""

    kind = "save"
    number: int = number_field(0)


WORDS, REPORTS, ORDERS = (Saver, Saved, Leaves, SaveAnswer), (Savers, SaveAnswered), (AskToSave, SaveNow)
