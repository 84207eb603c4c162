"""Draw an epoch's order from a sampler or batch sampler, the same on every rank and in a resumed run: `Draws`.

The samplers of torch that take each sample once are not asked: `prepare` knows their orders. Any other one is read once
per epoch. What it draws from the generators of Python, numpy and torch, or from a `generator` of its own, follows from
the seed and the epoch, and its `set_epoch` is called. So all ranks come to one order, which is cut over them, at any
number of ranks. A batch sampler's batches stay whole: each is one rank's.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from ezpz.errors import UsageError
from ezpz.train.data.place import epoch_seed
from ezpz.train.data.stream_numbers import numbers_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_EPOCHS = 64  # as many times the data set: a sampler that yields more, and has no length, has no end
_INSIDE = ("sampler", "batch_sampler", "base_sampler")  # where samplers keep the one that they are made of
_DEEPEST = 4


class Order(NamedTuple):
    """Which samples come in an epoch.

    Attributes:
        indices: A tensor of int64, or a list of whatever else the data set is asked by.
        ends: Where each batch of a batch sampler ends in it; None where batches are cut from it.
    """

    indices: Any
    ends: tuple[int, ...] | None

    def digest(self) -> int:
        """Return a number by which two orders can be told apart, however they are cut into batches; never 0."""
        indices = self.indices
        found = indices.numpy().tobytes() if hasattr(indices, "numpy") else repr(indices).encode()
        return crc32(found) or 1


class Draws:
    """The orders that a sampler draws."""

    def __init__(self, sampler: Any, *, makes_batches: bool, samples: int) -> None:
        """Take a sampler.

        Args:
            sampler: It yields indices, or lists of them.
            makes_batches: Whether those are batches.
            samples: Of the data set.
        """
        self.sampler, self.makes_batches, self._samples = sampler, makes_batches, samples
        self._last: tuple[tuple[int, int], Order] | None = None

    @property
    def is_steady(self) -> bool:
        """Whether each epoch has equally many samples, in equal batches: torch's own samplers promise it."""
        return not self.makes_batches and type(self.sampler).__module__.startswith("torch.utils.data")

    def order(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch; the last one is kept.

        Raises:
            UsageError: It has no end.
        """
        key = (epoch, seed)
        if self._last is None or self._last[0] != key:
            self._last = key, self._draw(epoch, seed)
        return self._last[1]

    def _draw(self, epoch: int, seed: int) -> Order:
        drawn_from = epoch_seed(seed, epoch)
        with numbers_from(drawn_from):
            for each in _all_inside(self.sampler):
                if hasattr(each, "set_epoch"):
                    each.set_epoch(epoch)
                if hasattr(getattr(each, "generator", None), "manual_seed"):
                    each.generator.manual_seed(drawn_from)
            found = self._read()
        if not self.makes_batches:
            return Order(_as_tensor(found), None)
        ends, flat = [], []
        for batch in found:
            flat.extend(batch)
            ends.append(len(flat))
        return Order(_as_tensor(flat), tuple(ends))

    def _read(self) -> list[Any]:
        try:
            most = len(self.sampler)
        except (TypeError, NotImplementedError):
            most = max(1, self._samples) * _MOST_EPOCHS
        found: Iterable[Any] = islice(iter(self.sampler), most + 1)
        listed = [list(each) for each in found] if self.makes_batches else list(found)
        if len(listed) > most:
            raise UsageError(
                f"{type(self.sampler).__name__} has not ended after {most:,} indices or batches, its length or "
                f"{_MOST_EPOCHS} times the data set (from prepare); expected the order of one epoch. Let it end, and "
                "read more epochs."
            )
        return listed


def _all_inside(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, and those that it is made of."""
    for _ in range(_DEEPEST):
        if sampler is None:
            return
        yield sampler
        sampler = next((value for name in _INSIDE if (value := getattr(sampler, name, None)) is not None), None)


def _as_tensor(found: list[Any]) -> Any:
    """Return indices as a tensor, or as they are where they are no whole numbers, such as keys or pairs."""
    import torch

    numbers = [int(each) if _is_whole(each) else None for each in found]
    return found if None in numbers else torch.tensor(numbers, dtype=torch.int64)


def _is_whole(index: Any) -> bool:
    """Tell whether an index is a whole number of Python, numpy or torch."""
    return type(index) is not bool and hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0
