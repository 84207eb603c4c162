"""Place a run in its data: the epoch, and the samples of it that all ranks together have consumed.

A place says nothing of ranks, meshes and batch sizes, so that any of them may continue from it. What lies ahead is cut
anew: a step takes the next samples of the epoch's order, and its slots (one per batch and rank) share them out.

    order of an epoch   7 2 9 | 0 4 1 | 8 3 6 | 5      10 samples, 2 ranks, 3 samples per rank: steps of 6 and 4
    rank 0              7 2 9           8 3
    rank 1                      0 4 1       6 5        the last step is shared as evenly as possible

A batch of one sample would end a training with BatchNorm, which needs two for its statistics. So where batches have
three or more, a slot of the last step gets two or more, or none, and the step before leaves one for a last step that
would have one. No batch is larger than asked for: of an odd rest in batches of two, one slot has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ezpz.train.data.checksum import Sum

_SEEDS = 2**63
_PAIR = 2  # samples that BatchNorm needs


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
        start: The first of its places in the epoch's order; where there is none for this slot, one to repeat.
        stop: One after the last; equal to ``start`` where there is no sample for this slot.
        total: Samples of the whole step, on all ranks.
        share: Part of this batch's mean loss in the step's, as an average over ranks: samples x ranks / total.
        is_even: Whether all batches of its step have equally many samples, on all ranks.
    """

    start: int
    stop: int
    total: int
    share: float
    is_even: bool = True

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
        parts = self.ranks * self.accumulate
        if total == self.batch_size * parts:
            return True
        return total % parts == 0 and self._taken(total) == parts

    @property
    def least(self) -> int:
        """Samples of a batch that is only there so that all ranks do the same."""
        return min(self.batch_size, _PAIR)

    def slot_of(self, index: int) -> int:
        """Return the slot that takes a sample of a step as it comes, before the end of the step is known.

        Where the last one has one sample alone at the end, that goes to the slot before: `is_left_alone`.
        """
        parts = self.ranks * self.accumulate
        return index // self.least if index < self.least * parts else index % parts

    def is_left_alone(self, total: int) -> bool:
        """Tell whether the last of so many samples is alone in its slot, and may go to the slot before."""
        return self.avoids_one and total % _PAIR == 1 and 1 < total < _PAIR * self.ranks * self.accumulate

    def leaves_one(self, left: int) -> bool:
        """Tell whether a step leaves one of its samples to the last step, which would have only one."""
        return self.avoids_one and left == self.step + 1

    @property
    def avoids_one(self) -> bool:
        """Whether no batch need have one sample: what is odd has three somewhere."""
        return self.batch_size > _PAIR

    def _taken(self, total: int) -> int:
        """Return how many slots of a step with so many samples get some."""
        parts = self.ranks * self.accumulate
        if self.batch_size < _PAIR:
            return parts
        return max(1, min(parts, total // _PAIR if self.avoids_one else -(-total // _PAIR)))

    def steps(self, samples: int, *, drop_last: bool = False) -> int:
        """Return how many steps so many samples are."""
        return samples // self.step if drop_last else -(-samples // self.step)

    def slots(self, begin: int, samples: int, *, drop_last: bool = False) -> Iterator[Slot]:
        """Yield this rank's slots, ``accumulate`` per step, for the samples from ``begin`` to the end of an epoch."""
        parts, step = self.ranks * self.accumulate, self.step
        while begin < samples:
            total, taken = step, parts  # of all steps but the last ones
            if samples - begin <= step + 1:
                total = min(step, samples - begin)
                if drop_last and total < step:
                    return
                if not drop_last and self.leaves_one(samples - begin):
                    total -= 1
                taken = self._taken(total)
            is_even = self.is_even(total)
            for index in range(self.rank, parts, self.ranks):
                first, end = (index, index + 1) if index < taken else (0, 0)
                start, stop = (begin + total * k // taken for k in (first, end))
                yield Slot(start, stop, total, (stop - start) * self.ranks / total, is_even)
            begin += total

    def whole_batches(self, begin: int, ends: Sequence[int]) -> Iterator[Slot]:
        """Yield this rank's slots, ``accumulate`` per step, for batches that are made already and stay whole.

        Args:
            begin: Samples of the epoch that are consumed.
            ends: Where each batch of the epoch ends in its order. Of one that ``begin`` lies in, the rest comes.
        """
        starts = (0, *ends)
        left = [(max(begin, start), end) for start, end in zip(starts, ends, strict=False) if end > max(begin, start)]
        parts = self.ranks * self.accumulate
        for first in range(0, len(left), parts):
            step = left[first : first + parts]
            total = step[-1][1] - step[0][0]
            is_even = len(step) == parts and len({end - start for start, end in step}) == 1
            for index in range(self.rank, parts, self.ranks):
                start, stop = step[index] if index < len(step) else (step[0][0], step[0][0])
                yield Slot(start, stop, total, (stop - start) * self.ranks / total, is_even)


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
        order: Number of the epoch's order, where a sampler has drawn it; else 0.
    """

    kind: str
    epoch: int
    consumed: int
    samples: int
    seed: int
    shuffle: bool
    stream: Any = None
    order: int = 0

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
        if self.order != other.order:
            return (
                "the sampler draws another order for this epoch than it did then. Let it draw from the generators of "
                "random, numpy and torch, or from a seed and the epoch that set_epoch(epoch) tells"
            )
        return ""
