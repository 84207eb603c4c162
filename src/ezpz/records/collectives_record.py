"""Say what ``collectives.json`` of a launch holds: the last collectives of every rank, from ``watch/collectives``."""

from __future__ import annotations

from ezpz.fields import Json, Part, Record, flag_field, list_field, number_field, real_field, text_field
from ezpz.records.stored_files import LONGEST, Stored

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["COLLECTIVES", "CollectivesRecord", "Entry", "RankCollectives"]

COLLECTIVES = "collectives.json"


class Entry(Record):
    """A collective of a rank.

    Attributes:
        group: Its group, with the backend in front: ``gloo:0``.
        seq: Its number in the group.
        op: The operation.
        state: ``scheduled``, ``started`` or ``completed``.
        created: When it was enqueued, in epoch seconds by the launcher's clock.
        sizes: The sizes of its tensors.
        line: The line of the user's code that called it.
        started: When it started; 0 where that is not recorded.
        completed: When it was completed.
        peer: Whether it is between two ranks.
    """

    group: str = text_field(LONGEST)
    seq: int = number_field()
    op: str = text_field(LONGEST)
    state: str = text_field(LONGEST)
    created: float = real_field()
    sizes: str = text_field(LONGEST, default="")
    line: str = text_field(LONGEST, default="")
    started: float = real_field(default=0.0)
    completed: float = real_field(default=0.0)
    peer: bool = flag_field(default=False)


class RankCollectives(Record):
    """The last collectives of a rank, and what the kernel says of its process.

    Attributes:
        rank: The rank.
        host: Its host.
        pid: Its process.
        answered: Whether what it wrote is there.
        silent: Whether it was asked, lives, and has not answered in time.
        ended: Whether it wrote that at its end, by itself.
        raised: The exception that ends it.
        handled: The exception in whose ``except`` or ``finally`` it is, with its line.
        state: A letter of proc(5); empty where it lives no more.
        where: The kernel's function that it waits in, and for which file.
        cpu: Seconds that it used.
        step: The last step that it reported; -1 if none.
        at: What its main thread is in, as its user says it.
        groups: Of each of its groups: name, and the last collective that was enqueued, started and completed.
        entries: Its last collectives.
    """

    rank: int = number_field()
    host: str = text_field(LONGEST, default="")
    pid: int = number_field(default=0)
    answered: bool = flag_field(default=False)
    silent: bool = flag_field(default=False)
    ended: bool = flag_field(default=False)
    raised: str = text_field(LONGEST, default="")
    handled: str = text_field(LONGEST, default="")
    state: str = text_field(LONGEST, default="")
    where: str = text_field(LONGEST, default="")
    cpu: float = real_field(default=0.0)
    step: int = number_field(default=-1)
    at: str = text_field(LONGEST, default="")
    groups: Sequence[dict[str, Any]] = list_field(Json(dict), default=())
    entries: Sequence[Entry] = list_field(Part(Entry), default=())


class CollectivesRecord(Stored):
    """The last collectives of every rank, where a launch failed or hung.

    Attributes:
        schema: 1.
        launch_id: The launch.
        ranks: Each rank that told something.
    """

    schema: int = number_field(default=1)
    launch_id: str = text_field(LONGEST, default="")
    ranks: Sequence[RankCollectives] = list_field(Part(RankCollectives), default=())

    @property
    def by_rank(self) -> dict[int, RankCollectives]:
        """Each rank by its number."""
        return {each.rank: each for each in self.ranks}
