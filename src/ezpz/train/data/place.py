"""Place a run in its data: the epoch, and the samples of it that all ranks together have consumed.

A place says nothing of ranks, meshes and batch sizes, so that any of them may continue from it. What lies ahead is cut
anew: a step takes the next samples of the epoch's order, and its slots (one per batch and rank) share them out.

    order of an epoch   7 2 9 0 | 4 1 8 3 | 6 5        10 samples, 2 ranks, 2 samples per rank
    rank 0              7 2       4 1       6          the last step is shared as evenly as possible
    rank 1                  9 0       8 3     5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ezpz.train.data.checksum import Sum

_SEEDS = 2**63


class Place(NamedTuple):
    """Where a run is in its data.

    Attributes:
        epoch: From 0.
        consumed: Samples of this epoch that all ranks together have trained with.
    """

    epoch: int = 0
    consumed: int = 0


class Slot(NamedTuple):
    """What one rank takes in one batch of a step.

    Attributes:
        start: The first of its places in the epoch's order.
        stop: One after the last; equal to ``start`` where there is no sample for this slot.
        total: Samples of the whole step, on all ranks.
        share: Part of this batch's mean loss in the step's, as an average over ranks: samples x ranks / total.
    """

    start: int
    stop: int
    total: int
    share: float

    @property
    def samples(self) -> int:
        """Samples that count."""
        return self.stop - self.start


class Cut(NamedTuple):
    """How a step is shared out.

    Attributes:
        batch_size: Samples of a full batch.
        rank: This rank's place among those that see different data.
        ranks: Their number.
        accumulate: Batches per step.
    """

    batch_size: int
    rank: int = 0
    ranks: int = 1
    accumulate: int = 1

    @property
    def step(self) -> int:
        """Samples of a full step on all ranks."""
        return self.batch_size * self.ranks * self.accumulate

    def is_even(self, total: int) -> bool:
        """Tell whether so many samples of a step come out even over its batches on all ranks."""
        return total % (self.ranks * self.accumulate) == 0

    def steps(self, samples: int, *, drop_last: bool = False) -> int:
        """Return how many steps so many samples are."""
        return samples // self.step if drop_last else -(-samples // self.step)

    def slots(self, begin: int, samples: int, *, drop_last: bool = False) -> Iterator[Slot]:
        """Yield this rank's slots, ``accumulate`` per step, for the samples from ``begin`` to the end of an epoch."""
        parts = self.ranks * self.accumulate
        while begin < samples:
            total = min(self.step, samples - begin)
            if drop_last and total < self.step:
                return
            for index in range(self.rank, parts, self.ranks):
                start, stop = (begin + total * k // parts for k in (index, index + 1))
                yield Slot(start, stop, total, (stop - start) * self.ranks / total)
            begin += total


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of an epoch, ``(samples,)`` int64: the same on every rank, another one in every epoch."""
    import torch

    return torch.randperm(samples, generator=torch.Generator().manual_seed(epoch_seed(seed, epoch)))


def epoch_seed(seed: int, epoch: int, part: int = 0) -> int:
    """Return a seed for an epoch, and for a part of it such as what a rank's workers draw."""
    return (seed * 1_000_003 + epoch + part * 7_368_787) % _SEEDS


class Batch(NamedTuple):
    """A batch, and what it counts for.

    Attributes:
        batch: Of this rank, on its device.
        samples: How many of it count: 0 for one that is only there so that all ranks do the same.
        total: Samples of its whole step, on all ranks.
        share: Part of its mean loss in that of the step, as an average over ranks.
        consumed: Samples of the epoch that all ranks have consumed once the step is over.
        ends_step: Whether it is the last batch of a step.
        stream: The stream's state after the step.
        is_even: Whether all batches of its step have equally many samples, on all ranks.
        seen: Its sum and form, of the host's copy; None where that is not known.
    """

    batch: Any
    samples: int
    total: int
    share: float
    consumed: int
    ends_step: bool
    stream: Any = None
    is_even: bool = True
    seen: Sum | None = None


class Consumed(NamedTuple):
    """A place, and what it was counted in: the state of data in a checkpoint.

    Attributes:
        kind: ``samples`` of a data set, of a ``stream``, or ``positions`` of a function.
        epoch: See `Place`.
        consumed: See `Place`.
        samples: Of an epoch; 0 where that is not known.
        seed: Of the order.
        shuffle: Whether there is one.
        stream: The stream's own state at this place, if it has one.
    """

    kind: str
    epoch: int
    consumed: int
    samples: int
    seed: int
    shuffle: bool
    stream: Any = None

    @property
    def total(self) -> int:
        """Samples consumed since the start of the run."""
        return self.epoch * self.samples + self.consumed

    def place_in(self, samples: int) -> Place:
        """Return the place in epochs of so many samples; 0 where that is not known."""
        if self.samples or not samples:
            return Place(self.epoch, self.consumed)
        return Place(*divmod(self.consumed, samples))

    def doubts(self, other: Consumed) -> str:
        """Return why the order from here on is not the one that this place was counted in; "" if it is."""
        if self.kind == "positions" or other.kind == "positions":
            return ""
        if self.samples != other.samples and self.samples and other.samples:
            return f"it was counted in {self.samples:,} samples, and here are {other.samples:,}"
        if self.shuffle != other.shuffle:
            return f"it was counted in {'a shuffled' if self.shuffle else 'the given'} order, and this is the other one"
        if self.shuffle and self.seed != other.seed:
            return f"its order was shuffled by seed {self.seed}, and this one by {other.seed}"
        return ""
