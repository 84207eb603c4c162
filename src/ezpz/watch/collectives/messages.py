"""Define what hosts are asked when ranks hang or fail, and what they answer: stacks, and the last collectives."""

from __future__ import annotations

from ezpz.fields import (
    RANKS,
    Number,
    Seconds,
    Text,
    flag_field,
    list_field,
    number_field,
    part_field,
    rank_field,
    real_field,
    rows_field,
    seconds_field,
    text_field,
)
from ezpz.launch.shim_messages import Message

_PATH, _NAME, _FUNCTION = 4096, 80, 1024  # characters
_FRAMES = 1000
_SOURCE, _CHILD, _WORDS = 200, 400, 4096  # characters


class RankStack(Message):
    """What one rank is doing: the frames of its main thread, innermost first, else what the kernel says of it.

    ``source`` is the user's line in which that is, ``mpi`` whether its Python has loaded mpi4py, ``cpu`` the seconds
    that this has used and ``switches`` how often its main thread has gone to sleep (-1: not known), ``child`` the child
    that it waits for, ``worker`` where a worker of its loader or a thread is that it waits for, and ``words`` the last
    that it wrote on stderr, where that has a traceback. ``raised`` is the exception that ends it, where that is no wait
    for others, ``by`` who has told where it is, and ``beside`` what goes on beside the main thread.
    """

    rank: int = rank_field()
    pid: int = number_field(0)
    frames: list[tuple[str, str, int]] = rows_field(
        text_field(_FUNCTION), text_field(_PATH), number_field(), most=_FRAMES
    )
    where: str = text_field(_FUNCTION)
    by: str = text_field(_NAME, default="")
    source: str = text_field(_SOURCE, default="")
    mpi: bool = flag_field(default=False)
    cpu: float = real_field(default=-1.0)
    switches: int = number_field(default=-1)
    child: str = text_field(_CHILD, default="")
    worker: str = text_field(_FUNCTION, default="")
    words: str = text_field(_WORDS, default="")
    beside: list[str] = list_field(Text(_FUNCTION), most=8, default=[])  # nobody adds to it
    raised: str = text_field(500, default="")


class StacksTaken(Message):
    """The answer to `TakeStacks` of the same ``id``: also the ranks that had ended with 0 before, the files of torch's
    flight recorder, and whether py-spy is on that host.
    """

    kind = "stacks"
    id: int = number_field()
    host: str = text_field(255)
    ranks: list[RankStack] = list_field(part_field(RankStack), most=4096)
    dumps: list[str] = list_field(text_field(_PATH), most=4096)
    left: list[int] = list_field(Number(0, RANKS), most=4096)
    py_spy: bool = flag_field(default=True)


class RankCollectives(Message):
    """The last collectives of a rank, and what the kernel says of its process.

    ``answered``: what it wrote is there; ``silent``: it was asked, lives, and has not answered in time; ``ended``: it
    wrote that at its end, by itself; ``raised``: the exception that ends it; ``handled``: that in whose ``except`` or
    ``finally`` it is. ``state`` is a letter of proc(5), empty
    where it lives no more, ``where`` the kernel's function that it waits in and for which file, ``cpu`` the seconds
    that it used. ``frames`` are those of its main thread, innermost first. Of a group: its name, and the last
    collective that was enqueued, started and completed, -1 where that is not recorded. Of a collective: group,
    sequence, operation, sizes, state, line of the user's code, when it was enqueued, started and completed (seconds
    since 1970 by the launcher's clock, 0 where that is not recorded), and whether it is between two ranks.
    """

    rank: int = rank_field()
    pid: int = number_field(0)
    answered: bool = flag_field()
    silent: bool = flag_field()
    ended: bool = flag_field()
    raised: str = text_field(500)
    state: str = text_field(8)
    where: str = text_field(_FUNCTION)
    cpu: float = seconds_field()
    step: int = number_field()
    frames: list[tuple[str, str, int]] = rows_field(
        text_field(_FUNCTION), text_field(_PATH), number_field(), most=_FRAMES
    )
    groups: list[tuple[str, int, int, int]] = rows_field(
        Text(_NAME), number_field(), number_field(), number_field(), most=256
    )
    entries: list[tuple[str, int, str, str, str, str, float, float, float, bool]] = rows_field(
        *(Text(_NAME), number_field(), Text(_NAME), Text(255), Text(40), Text(255)),
        *(Seconds(False), Seconds(False), Seconds(False), flag_field()),
        most=256,
    )
    handled: str = text_field(600, default="")


class CollectivesTold(Message):
    """The answer to `TellCollectives` of the same ``id``; with 0 what ranks left that have failed, unasked."""

    kind = "collectives"
    id: int = number_field()
    host: str = text_field(255)
    ranks: list[RankCollectives] = list_field(part_field(RankCollectives), most=4096)


class TakeStacks(Message):
    """Find out what every rank is doing, with ``fatal`` also in ways that end it.

    With ``only`` these ranks of all hosts alone are asked, within half a second, and none that saves is ended by it:
    something has failed, and the launch waits for the answer before it ends the others.
    """

    kind = "stacks"
    fatal: bool = flag_field()
    id: int = number_field()
    only: list[int] = list_field(rank_field(), most=64, default=())


class TellCollectives(Message):
    """Ask ranks for the collectives that they started last; no rank is disturbed by that, nor waited for long."""

    kind = "collectives?"
    id: int = number_field()


REPORTS, ORDERS = (StacksTaken, CollectivesTold), (TakeStacks, TellCollectives)
