"""Read data that lie in parts, one or more per rank and worker, and share out what they yield: `PartReader`, `in_step`.

A stream that shares itself out over workers (``get_worker_info()``, as those of Hugging Face and webdataset do) is
asked for as many parts as there are ranks and workers. How many there are is kept with the place, so that other ranks
and workers read the same parts to their ends. What the user has cut by rank is a part per rank and worker. Ranks tell
each other how many samples they have in a step, and one that has none left repeats a batch, which does not count.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager, nullcontext
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from ezpz.train.data.checksum import digest_of
from ezpz.train.data.copying import moved
from ezpz.train.data.place import Batch
from ezpz.train.data.streams import begun_at, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ezpz.train.data.place import Cut

_ENDED = ("ended", None)  # in place of a state: nothing is left of a part
_END = object()
_BOTH = {"id", "num_workers"}  # what a stream asks for that shares itself out over workers
_DEEPEST = 4  # streams in streams, and functions that call functions


class PartPlace(NamedTuple):
    """Where a part is.

    Attributes:
        consumed: Samples of it.
        state: Of its stream there, which makes reading them again unnecessary; None where it has none.
    """

    consumed: int = 0
    state: Any = None


class Piece(NamedTuple):
    """A batch out of one or more parts.

    Attributes:
        batch: As the loader's collate function returned it.
        samples: Of it.
        places: By number of a part: where it is after the batch.
    """

    batch: Any
    samples: int
    places: dict[int, PartPlace]


class Part(NamedTuple):
    """A part to be read.

    Attributes:
        number: Among all.
        of: How many workers the stream is told that there are; 0 leaves to it what torch says.
        told: Which of them it is told that it is.
        place: Where it begins.
    """

    number: int
    of: int
    told: int
    place: PartPlace


class AsWorker:
    """What ``get_worker_info()`` returns to a stream, and whether the stream shares itself out by it."""

    def __init__(self, number: int, count: int, stream: Any, seed: int) -> None:
        """Say that there are so many workers."""
        self._told = {"id": number, "num_workers": count, "dataset": stream, "seed": seed}
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        """Return what a worker is told, and remember that it was asked for."""
        if name not in self._told:
            raise AttributeError(name)
        self.asked.add(name)
        return self._told[name]

    @property
    def is_shared_out(self) -> bool:
        """Whether the stream has asked which worker it is, and of how many."""
        return self.asked >= _BOTH

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let ``get_worker_info()`` return this meanwhile."""
        from torch.utils.data._utils import worker

        before = worker._worker_info  # noqa: SLF001  # torch has no other way to say it
        worker._worker_info = self  # noqa: SLF001
        try:
            yield
        finally:
            worker._worker_info = before  # noqa: SLF001


class InitOfStream:
    """A ``worker_init_fn`` that is told of the user's stream, which it may share out by changing it in each worker."""

    def __init__(self, init: Callable[[int], Any], stream: Any) -> None:
        """Take both."""
        self._init, self._stream = init, stream

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        view = AsWorker(info.id, info.num_workers, getattr(info.dataset, "stream", self._stream), info.seed)
        with view.in_place():
            self._init(worker)
        if view.is_shared_out:
            info.dataset.is_shared_out = True


class PartReader(IterableDataset[Piece]):  # type: ignore[misc]  # torch is not type-checked
    """Yields batches of this rank's parts, each worker of its own; or the process itself, where it has none."""

    def __init__(
        self,
        stream: Any,
        parts: Sequence[Sequence[Part]],
        collate: Callable[[list[Any]], Any],
        *,
        size: int,
        seed: int,
        drop_last: bool,
    ) -> None:
        """Describe the rest of an epoch.

        Args:
            stream: The data set.
            parts: Those of each worker.
            collate: Makes a batch of a list of samples.
            size: Samples of a batch.
            seed: From which all parts draw their order.
            drop_last: Leave out a worker's last batch where that is not full.
        """
        self.stream, self._parts, self._collate = stream, parts, collate
        self.is_shared_out = False  # by a `worker_init_fn`
        self._size, self._seed, self._drop_last = size, seed, drop_last

    def __iter__(self) -> Iterator[Piece]:
        """Read."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        mine = self._parts[info.id if info is not None else 0]
        places = {part.number: part.place for part in mine}
        chain = _Chain(self.stream, mine, self._seed, is_shared_out=self.is_shared_out)
        samples = iter(chain)
        ahead: list[Any] = []
        while True:
            taken = [*ahead, *islice(samples, self._size - len(ahead))]
            if not taken or (self._drop_last and len(taken) < self._size):
                return
            number, state = chain.state()
            avoids_one = self._size > 2 and not self._drop_last
            ahead = [*islice(samples, 2)] if avoids_one else []
            if avoids_one and len(taken) == self._size and len(ahead) == 1:  # two, and not one, for batch norms
                ahead, state = [taken.pop(), *ahead], None
            for each, _ in taken:
                places[each] = PartPlace(places[each].consumed + 1)
            for each, found in places.items():
                if each in chain.ended and chain.ended[each] == found.consumed:
                    places[each] = PartPlace(found.consumed, _ENDED)
                elif each == number and state is not None and taken[-1][0] == each:
                    places[each] = PartPlace(found.consumed, state)
            yield Piece(self._collate([sample for _, sample in taken]), len(taken), dict(places))


class _Chain:
    """The samples of some parts, one part after the other."""

    def __init__(self, stream: Any, parts: Sequence[Part], seed: int, *, is_shared_out: bool) -> None:
        self._stream, self._parts, self._seed, self._is_shared_out = stream, parts, seed, is_shared_out
        self._now: tuple[int, Any, Any] | None = None  # the part that is read, its stream, and the iterator of that
        self.ended: dict[int, int] = {}  # parts that are, and how many samples they had

    def state(self) -> tuple[int, Any]:
        """Return which part is being read, and the state of its stream."""
        return (-1, None) if self._now is None else (self._now[0], state_of(self._now[1], self._now[2]))

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield samples with the numbers of their parts."""
        for part in self._parts:
            if part.place.state != _ENDED:
                yield from self._samples(part)

    def _samples(self, part: Part) -> Iterator[tuple[int, Any]]:
        place, view = part.place, None
        stream = copy(self._stream) if len(self._parts) > 1 else self._stream
        if part.of:
            view = AsWorker(part.told, part.of, stream, self._seed + part.number)
        _seed_process(self._seed)  # one order of all, where a stream shuffles before it shares itself out
        with _told(view):
            samples = begun_at(stream, place.state)
        self._now = part.number, stream, samples
        consumed, skip = place.consumed, 0 if place.state is not None else place.consumed
        is_first = True
        while True:
            with _told(view):
                found = next(samples, _END)
            if is_first:
                is_first = False
                if part.told and view is not None and not (view.is_shared_out or self._is_shared_out):
                    break  # all of it again, which the first worker reads
                _seed_process(self._seed + 1 + part.number)  # what follows, such as crops, is each part's own
            if found is _END:
                break
            if skip:
                skip -= 1
                continue
            consumed += 1
            yield part.number, found
        self.ended[part.number], self._now = consumed, None


def _told(view: AsWorker | None) -> AbstractContextManager[None]:
    return nullcontext() if view is None else view.in_place()


def _seed_process(seed: int) -> None:
    """Let what is drawn from now on follow from a seed, but for what a device draws."""
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


# Which parts there are.


def parts_of_rank(places: Sequence[PartPlace], cut: Cut, workers: int, *, by_user: bool) -> list[list[Part]]:
    """Return the parts of each worker of this rank, of all that there are.

    Args:
        places: Of each part.
        cut: Which rank this is.
        workers: Of this rank; 0 where the process reads itself.
        by_user: Whether a part is what the user's own data set yields on a rank, to one of its workers.
    """
    count = max(1, workers)
    if by_user:
        told = count if count > 1 else 0
        numbers = [cut.rank + cut.ranks * worker for worker in range(count)]
        return [[Part(number, told, worker, places[number])] for worker, number in enumerate(numbers)]
    units = cut.ranks * count
    return [
        [
            Part(number, len(places), number, places[number])
            for number in range(cut.rank + cut.ranks * worker, len(places), units)
        ]
        for worker in range(count)
    ]


class PartProbe(IterableDataset[tuple[bool, int]]):  # type: ignore[misc]  # torch is not type-checked
    """Yields whether a stream shares itself out over workers, and the digest of its first sample."""

    def __init__(self, stream: Any) -> None:
        """Take a stream."""
        self.stream = stream

    def __iter__(self) -> Iterator[tuple[bool, int]]:
        """Read the first sample of all, and that of the second of two parts, which must be another one."""
        state = state_of(self.stream, None)
        views = [AsWorker(number, count, self.stream, 0) for number, count in ((0, 1), (1, 2))]
        digests = []
        for view in views:
            with view.in_place():
                samples = begun_at(copy(self.stream), None)
                digests.append(digest_of(next(samples, None)))
                del samples
        if state is not None:
            begun_at(self.stream, state)
        yield all(view.is_shared_out for view in views) and (not digests[0] or digests[0] != digests[1]), digests[0]


def may_share_itself_out(stream: Any, depth: int = _DEEPEST) -> bool:
    """Tell whether the code of a stream, or of one in it, asks for ``get_worker_info``; nothing is read for that."""
    kind = type(stream)
    own = [each for each in kind.__mro__ if each.__module__ != IterableDataset.__module__]
    if any(_asks(value, depth, set()) for each in own for value in vars(each).values()):
        return True
    inside = [*getattr(stream, "__dict__", {}).values()]
    inside += [each for value in inside if isinstance(value, (list, tuple)) for each in value[:_DEEPEST]]
    inside = [each for each in inside if isinstance(each, IterableDataset)]
    return depth > 0 and any(may_share_itself_out(each, depth - 1) for each in inside)


def _asks(function: Any, depth: int, seen: set[Any]) -> bool:
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or code in seen or not depth:
        return False
    seen.add(code)
    if "get_worker_info" in code.co_names:
        return True
    return any(_asks(names.get(name), depth - 1, seen) for name in code.co_names)


# What all ranks yield together.


def in_step(
    pieces: Iterator[Piece], cut: Cut, consumed: int, places: dict[int, PartPlace], *, drop_last: bool
) -> Iterator[Batch]:
    """Yield batches, ``accumulate`` per step, until no rank has any; collective.

    How many samples all ranks have in a step is asked while they train with the one before.

    Args:
        pieces: What this rank reads.
        cut: How many ranks there are, and batches per step.
        consumed: Samples of the epoch that all ranks have consumed.
        places: Where this rank's parts begin.
        drop_last: End with the first step in which a rank lacks a batch.
    """
    number, last, ahead = 0, None, _Step(pieces, cut)
    while True:
        step = ahead
        total, lacking, is_even = step.ended()
        if not total or (drop_last and lacking):
            return
        ahead = _Step(pieces, cut)
        if not number and lacking:
            last = _lent(step.pieces)
        number, consumed = number + 1, consumed + total
        for micro in range(cut.accumulate):
            piece = step.pieces[micro] if micro < len(step.pieces) else None
            if piece is not None:
                last, places = piece.batch, {**places, **piece.places}
            samples = piece.samples if piece is not None else 0
            share = samples * cut.ranks / total
            yield Batch(last, samples, total, share, consumed, micro == cut.accumulate - 1, places, is_even)


class _Step:
    """The batches of this rank in a step, and the question what all ranks have in it."""

    def __init__(self, pieces: Iterator[Piece], cut: Cut) -> None:
        import torch

        from ezpz.dist.collectives import begin_sum

        self.pieces = [*islice(pieces, cut.accumulate)]
        self._parts = cut.ranks * cut.accumulate
        self._ranks = cut.ranks
        sizes = [piece.samples for piece in self.pieces]
        numbers = [sum(sizes), sum(size * size for size in sizes), cut.accumulate - len(sizes)]
        self._finish = begin_sum(torch.tensor(numbers, dtype=torch.int64))

    def ended(self) -> tuple[int, int, bool]:
        """Return the samples of all ranks, how many batches are lacking, and whether all have equally many samples."""
        sums, ranks = self._finish()
        total, squares, lacking = (int(each) * self._ranks // ranks for each in sums.tolist())
        return total, lacking, not lacking and squares * self._parts == total * total


def _lent(pieces: list[Piece]) -> Any:
    """Return a batch for a rank without any, from the first rank that has one; collective."""
    import torch

    from ezpz.dist import broadcast, gather_objects

    have = gather_objects(bool(pieces))
    if all(have):
        return None
    return broadcast(moved(pieces[0].batch, torch.device("cpu")) if pieces else None, have.index(True))
