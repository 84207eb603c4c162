"""Say what the lines of ``metrics.jsonl`` hold.

Readers of whole journals check them faster: `ezpz.track.journal_reader`.
"""

from __future__ import annotations

from ezpz.fields import (
    EMPTY,
    Number,
    Part,
    Record,
    json_field,
    list_field,
    map_field,
    number_field,
    real_field,
    text_field,
)
from ezpz.records.stored_files import LONGEST, Stored, text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["JournalRow", "OverRanks", "RanksOfMetric", "SeenBySteps"]

_FIRST_STEP, _LAST_STEP = -(1 << 63), (1 << 63) - 1
_LATEST = 253402300800.0  # epoch seconds: the year 10000


def _step(default: Any = None) -> Any:
    return number_field(_FIRST_STEP, _LAST_STEP, default=default)


class JournalRow(Record):
    """A line of a journal.

    Attributes:
        v: 1, the version of this format.
        t: When it was recorded, in epoch seconds.
        step: The step: an integer of 64 bits.
        m: The metrics by name, or what the kind holds. NaN and infinities are texts.
        a: The attempt, in a run that was started again.
        k: The kind: empty for a row of metrics; ``late``, values of an earlier row of that step; ``ranks``;
            ``sections``, the seconds of sections by name; ``seen``.
    """

    v: int = number_field(1, 1)
    t: float = real_field(-_LATEST, _LATEST)
    step: int = number_field(_FIRST_STEP, _LAST_STEP)
    m: dict[str, Any] = json_field(dict)
    a: int = number_field(1, _LAST_STEP, default=1)
    k: str = text_field(LONGEST, default="")


class RanksOfMetric(Record):
    """A metric over all ranks, in a line of the kind ``ranks``.

    Attributes:
        mean: The mean over the ranks, at each step.
        min: The least.
        max: The most.
        std: The standard deviation.
        argmin: The rank of the least.
        argmax: The rank of the most.
        ranks: Of each rank its value at each step, or in large worlds its mean; null where it recorded none.
    """

    mean: Sequence[Any] = json_field(list, default=())
    min: Sequence[Any] = json_field(list, default=())
    max: Sequence[Any] = json_field(list, default=())
    std: Sequence[Any] = json_field(list, default=())
    argmin: Sequence[Any] = json_field(list, default=())
    argmax: Sequence[Any] = json_field(list, default=())
    ranks: Sequence[Any] = json_field(list, default=())


class OverRanks(Record):
    """What a line of the kind ``ranks`` holds: some steps of all ranks.

    Attributes:
        world: How many ranks there are.
        every: 1: there are values of each step; 0: there is one mean of all steps.
        steps: The steps.
        keys: Each metric.
        held: Of each step, how many ranks' rows are in the record.
        batches: Of some steps, 13 hexadecimal digits for each rank: its place and the sum of its batch.
        weights: Likewise of looks at weights: 20 bits of what was looked at, and a sum of the weights.
        where: The same of another sum, which tells where they differ.
        gradients: The same of their gradients.
        inputs: Place and sum of what the model was given.
    """

    world: int = number_field(1)
    every: int = number_field(0, 1)
    steps: Sequence[int] = list_field(Number(_FIRST_STEP, _LAST_STEP))
    keys: dict[str, RanksOfMetric] = map_field(Part(RanksOfMetric))
    held: Sequence[int] = list_field(Number(0, 1 << 53), default=())
    batches: dict[str, str] = map_field(text(), default=EMPTY)
    weights: dict[str, str] = map_field(text(), default=EMPTY)
    where: dict[str, str] = map_field(text(), default=EMPTY)
    gradients: dict[str, str] = map_field(text(), default=EMPTY)
    inputs: dict[str, str] = map_field(text(), default=EMPTY)


class SeenBySteps(Stored):
    """What a line of the kind ``seen`` holds, and ``set NAME``: a step and a setting's value from that on, and so on.

    Attributes:
        first: The first step.
        every: How many steps lie between two.
        batches: Of each of these steps 8 hexadecimal digits: the sum of rank 0's batch, or ``--------``.
        form: Types and sizes of the first batch.
        place: Rank 0's place among data-parallel ranks.
        places: How many there are.
        at: The step after which random generators were looked at.
        python: The sum of the state of Python's.
        numpy: That of numpy's.
        torch: That of torch's.
        cuda: That of the device's.
        looked: The row before which the weights of ``first`` were looked at.
        part: What was looked at: number of the optimizer, a point, and number of the part of its weights.
        parts: How many parts there are.
        names: The names of its weights, where it is looked at for the first time.
    """

    first: int | None = _step()
    every: int = _step(1)
    batches: str = text_field(LONGEST, default="")
    form: str = text_field(LONGEST, default="")
    place: int | None = number_field(default=None)
    places: int | None = number_field(default=None)
    at: int | None = _step()
    python: int | None = number_field(default=None)
    numpy: int | None = number_field(default=None)
    torch: int | None = number_field(default=None)
    cuda: int | None = number_field(default=None)
    looked: int | None = _step()
    part: str = text_field(LONGEST, default="")
    parts: int | None = number_field(default=None)
    names: Sequence[str] = list_field(text(), default=())

    @property
    def generators(self) -> Mapping[str, int]:
        """The sums of the states of generators, by name."""
        sums = {"python": self.python, "numpy": self.numpy, "torch": self.torch, "cuda": self.cuda}
        return {name: total for name, total in sums.items() if total is not None}

    @property
    def settings(self) -> Mapping[str, list[Any]]:
        """Steps and values of settings that changed, by name."""
        return {
            name.removeprefix("set "): values
            for name, values in self.raw.items()
            if name.startswith("set ") and isinstance(values, list)
        }
