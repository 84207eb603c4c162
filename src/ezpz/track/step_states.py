"""Keep what steps saw beside their metrics: sums of batches, states of random generators, settings that changed.

    {"v":1,"t":…,"step":49,"k":"seen","m":{"first":0,"form":"int64[8,128]","place":0,"places":2,
     "every":1,"batches":"5f3a…","at":0,"python":…,"numpy":…,"torch":…,"set lr":[0,0.001,30,0.0001]}}

A record has at most 50 steps, from ``first`` on every ``every``-th to its own ``step``. ``batches`` has 8 hexadecimal
digits for each, the sum of rank 0's batch (`ezpz.train.data.checksum`), or ``--------`` where it is not known;
``form`` is the form of the first of these batches, ``place`` and ``places`` are rank 0's place among the data-parallel
ranks and their number. The generators' sums are those after the step ``at``. ``set NAME`` has a step and the value
from that step on, one after the other.

Of every rank, the sums of every 50th step and of the first three travel to rank 0 with its metrics
(`ezpz.track.over_ranks`), as one number that also holds the place: see `packed`. So do sums of weights, their gradients
and what the model was given (`ezpz.track.over_ranks.replica_looks`); what these were made of stands in a record of its
own, ``names`` where a part is looked at for the first time:

    {"v":1,"t":…,"step":100,"k":"seen","m":{"first":100,"looked":50,"part":"0.3","parts":20,"names":["0.weight"]}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BATCH",
    "EVERY",
    "GRADIENTS",
    "INPUTS",
    "MOST_CHANGES",
    "NO_BATCH",
    "PRIME",
    "SUM_COLUMNS",
    "UNKNOWN",
    "WEIGHTS",
    "WHERE",
    "BatchSeen",
    "Noted",
    "Seen",
    "StepStates",
    "factor_of",
    "noted",
    "packed",
    "packed_number",
    "unpacked",
]

EVERY = 50  # steps between two that all ranks report, and steps in a record
_FIRST = 3  # steps of a start that all ranks report besides
MOST_CHANGES = 4  # of one setting in a record: a schedule changes it in every step
UNKNOWN = "--------"
BATCH = "\0batch"  # what stands for a step's batch travels with its row under this name, which no metric has
WEIGHTS, WHERE, GRADIENTS, INPUTS = "\0weights", "\0where", "\0gradients", "\0inputs"  # likewise, of a look
SUM_COLUMNS = {
    BATCH: "batches",
    WEIGHTS: "weights",
    WHERE: "where",
    GRADIENTS: "gradients",
    INPUTS: "inputs",
}  # in records
PRIME = (1 << 32) - 5  # sums of a look are modulo this
NO_BATCH = "-" * 13  # in a record over all ranks
_BITS = 32  # of a sum; a float has 20 more for the place


class BatchSeen(NamedTuple):
    """One batch, or all batches of a step.

    Attributes:
        total: Sum of 32 bits.
        form: Types and sizes of its tensors.
        place: This rank's place among data-parallel ranks: those of one place share their batches.
        places: How many places there are.
    """

    total: int
    form: str
    place: int
    places: int


class Seen(NamedTuple):
    """What one step saw.

    Attributes:
        batch: None where it is not known.
        generators: Sums of the states of random generators after the step, by name; empty in most steps.
        settings: Settings that have changed with this step, by name.
    """

    batch: BatchSeen | None = None
    generators: Mapping[str, int] = {}
    settings: Mapping[str, float] = {}


class Noted:
    """Batches that a loader has given to a loop that is not ours, until the next row is recorded.

    Attributes:
        waiting: Those since the last row.
    """

    def __init__(self) -> None:
        self.waiting: list[BatchSeen | None] = []

    def add(self, batch: BatchSeen | None) -> None:
        """Take one; of a program that records no rows, the newest ones are kept."""
        self.waiting.append(batch)
        if len(self.waiting) > 2 * EVERY:
            del self.waiting[:EVERY]

    def take(self) -> BatchSeen | None:
        """Return all batches since the last row as one, and forget them."""
        batches, self.waiting = self.waiting, []
        return together(batches)


noted = Noted()


def together(batches: list[BatchSeen | None]) -> BatchSeen | None:
    """Return several batches as one; None where one of them is not known."""
    known = [each for each in batches if each is not None]
    if not known or len(known) < len(batches):
        return None
    if len(known) == 1:
        return known[0]
    from zlib import crc32

    return known[-1]._replace(total=crc32(b"".join(each.total.to_bytes(4, "little") for each in known)))


def packed(batch: BatchSeen) -> float:
    """Return sum and place as one number of 52 bits, which a float holds exactly."""
    return packed_number(batch.place, batch.total)


def packed_number(place: int, total: int) -> float:
    """Return 20 bits of a place, or of a layout, and 32 of a sum as one number."""
    return float((place % (1 << 20)) << _BITS | total)


def factor_of(number: int) -> int:
    """Return what the sum of one weight is multiplied with, so that two sums over all of them tell which one differs.

    Args:
        number: Of the weight, from 0.
    """
    return pow(3, number + 1, PRIME)


def unpacked(number: float) -> tuple[int, int]:
    """Return place and sum of a number that `packed` made."""
    return divmod(int(number), 1 << _BITS)


class StepStates:
    """Puts what steps saw into records, and hands over what travels to rank 0.

    Args:
        write: Writes a record's step and content; None on other ranks than 0.
        send: Takes a step and a number for rank 0; None in a world of one.
    """

    def __init__(
        self,
        write: Callable[[int, Mapping[str, Any]], object] | None,
        send: Callable[[int, float], object] | None,
    ) -> None:
        self._write, self._send = write, send
        self._steps = 0
        self._first = self._last = 0
        self._every = 0  # steps between two of the record that is being made; 0: it has one step so far
        self._sums: list[str] = []
        self._batch: BatchSeen | None = None  # one like those of the record that is being made
        self._more: dict[str, Any] = {}
        self._changes: dict[str, list[tuple[int, float]]] = {}

    def add(self, step: int, seen: Seen) -> None:
        """Take what a step saw, in the order of steps."""
        batch = seen.batch
        if batch is not None and self._send is not None and (step % EVERY == 0 or self._steps < _FIRST):
            self._send(step, packed(batch))
        self._steps += 1
        if self._write is None:
            return
        if self._sums and not self._continues(step, batch):
            self.write()
        if not self._sums:
            self._first, self._every = step, 0
        elif not self._every:
            self._every = step - self._first
        self._last = step
        self._sums.append(UNKNOWN if batch is None else f"{batch.total:08x}")
        self._batch = batch or self._batch
        if seen.generators:
            self._more |= {"at": step, **seen.generators}
        for name, value in seen.settings.items():
            changes = self._changes.setdefault(name, [])
            if len(changes) > MOST_CHANGES:
                changes.pop()
            changes.append((step, value))

    def _continues(self, step: int, batch: BatchSeen | None) -> bool:
        """Tell whether a step belongs into the record that is being made."""
        if (batch is None) != (self._batch is None) or (batch and self._batch and batch[2:] != self._batch[2:]):
            return False
        if batch is None:  # what it has is given with its step
            return len(self._sums) < EVERY
        apart = step - self._last
        return len(self._sums) < EVERY and (apart == self._every or (not self._every and apart > 0))

    def write(self) -> None:
        """Write the record that is being made, if it says anything."""
        sums, batch, changes = self._sums, self._batch, self._changes
        content: dict[str, Any] = {"first": self._first}
        if batch is not None:
            content |= {"every": self._every or 1, "form": batch.form, "place": batch.place, "places": batch.places}
            content["batches"] = "".join(sums)
        content |= {f"set {name}": [part for each in values for part in each] for name, values in changes.items()}
        content |= self._more
        self._sums, self._batch, self._more, self._changes = [], None, {}, {}
        if self._write is not None and len(content) > 1:
            self._write(self._last, content)
