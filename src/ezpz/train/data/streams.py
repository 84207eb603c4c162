"""Cut a stream, whose samples come one after the other, over ranks.

Every rank reads the whole stream and keeps its own samples, whose slots follow from their place in the step
(`Cut.slot_of`). So no sample is lost or seen twice, whatever the number of ranks, and the end is known to all ranks at
the same step.
"""

from __future__ import annotations

import pickle
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch.utils.data import IterableDataset

from ezpz.train.data.checksum import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ezpz.train.data.place import Cut


class StepBatch(NamedTuple):
    """A batch of this rank out of a step, and what the step was.

    Attributes:
        batch: As the loader's collate function returned it.
        samples: How many of it count.
        total: Samples of the whole step, on all ranks.
        state: Of the stream after the step, with its last batch; None where it has none.
        digest: Of the step's first sample, with its first batch; 0 where it has none, or nobody compares.
    """

    batch: Any
    samples: int
    total: int
    state: Any
    digest: int


class StreamParts(IterableDataset[StepBatch]):  # type: ignore[misc]  # torch is not type-checked
    """Yields the batches of this rank from a place on; read by one worker, or by the process itself."""

    def __init__(
        self,
        stream: Any,
        cut: Cut,
        collate: Callable[[list[Any]], Any],
        *,
        skip: int,
        state: Any,
        drop_last: bool,
        compares: bool = False,
    ) -> None:
        """Describe the rest of an epoch.

        Args:
            stream: The data set.
            cut: How its samples are shared out.
            collate: Makes a batch of a list of samples.
            skip: Samples consumed before.
            state: Of the stream after them, which makes the skip unnecessary; None reads and drops them.
            drop_last: Leave out a last step that is not full.
            compares: Whether to take digests.
        """
        self.stream, self._cut, self._collate = stream, cut, collate
        self._skip, self._state, self._drop_last = skip, state, drop_last
        self._compares = compares

    def __iter__(self) -> Iterator[StepBatch]:
        """Read."""
        if hasattr(self.stream, "_ex_iterable"):
            _forget_the_worker()
        samples = begun_at(self.stream, self._state)
        if self._state is None:
            for _ in zip(range(self._skip), samples, strict=False):
                pass
        ahead: list[Any] = []  # read already, for the step that comes
        while True:
            step = self._read_step(chain(ahead, samples))
            if not step.total or (self._drop_last and step.total < self._cut.step):
                return
            state = state_of(self.stream, samples)
            ahead = list(islice(samples, 2)) if self._cut.avoids_one and not self._drop_last else []
            if self._cut.leaves_one(step.total + len(ahead)):
                ahead, state = [step.leave_one(self._cut), *ahead], None
            digest = digest_of(step.few[0]) if self._compares else 0
            last = self._cut.accumulate - 1
            for micro, mine in enumerate(step.mine):
                batch = self._collate(mine or step.few)
                yield StepBatch(batch, len(mine), step.total, state if micro == last else None, digest)
                digest = 0

    def _read_step(self, samples: Iterator[Any]) -> _Step:
        cut = self._cut
        step = _Step(cut.accumulate)
        for index, sample in zip(range(cut.step), samples, strict=False):
            if index < cut.least:
                step.few.append(sample)
            step.total, step.last = index + 1, sample
            step.give(cut, cut.slot_of(index))
        if cut.is_left_alone(step.total):
            alone = cut.slot_of(step.total - 1)
            step.take_back(cut, alone)
            step.give(cut, alone - 1)
        return step


class _Step:
    """Samples of one step: those of this rank, per batch, and the first ones of all and the last."""

    def __init__(self, batches: int) -> None:
        self.mine: list[list[Any]] = [[] for _ in range(batches)]
        self.few: list[Any] = []
        self.last: Any = None
        self.total = 0

    def give(self, cut: Cut, slot: int) -> None:
        """Give the last sample to a slot."""
        micro, rank = divmod(slot, cut.ranks)
        if rank == cut.rank:
            self.mine[micro].append(self.last)

    def take_back(self, cut: Cut, slot: int) -> None:
        """Take the last sample from a slot."""
        micro, rank = divmod(slot, cut.ranks)
        if rank == cut.rank:
            self.mine[micro].pop()

    def leave_one(self, cut: Cut) -> Any:
        """Take the last sample out of the step, and return it."""
        self.take_back(cut, cut.slot_of(self.total - 1))
        self.total -= 1
        return self.last


def has_state(stream: Any) -> bool:
    """Tell whether a stream's own state leads back to a place without reading what lies before.

    Of Hugging Face's streams that are shuffled the state leaves out the samples in the buffer: they would be lost.
    """
    return all(hasattr(stream, name) for name in ("state_dict", "load_state_dict")) and not has_buffer(stream)


def has_buffer(stream: Any) -> bool:
    """Tell whether a stream of Hugging Face shuffles in a buffer, itself or one of those that it is made of."""
    return any("Buffer" in name for name in made_of(stream))


def made_of(stream: Any) -> Iterator[str]:
    """Yield the names of the classes that a stream of Hugging Face is made of (`_ex_iterable`, as in datasets 5.2)."""
    parts: list[Any] = [getattr(stream, "_ex_iterable", None)]
    for part in parts:
        yield type(part).__name__
        parts += [part.ex_iterable] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])


def _forget_the_worker() -> None:
    """Let a stream of Hugging Face be read as in a process without workers, which is what the only worker is.

    Otherwise it shares out what it is made of even over one worker, and its state there fits no other number of
    workers, and where data sets are joined not even the same one.
    """
    from torch.utils.data._utils import worker

    worker._worker_info = None  # noqa: SLF001  # torch has no other way to say it


def begun_at(stream: Any, state: Any) -> Iterator[Any]:
    """Return the samples from a state on."""
    if state is not None and state[0] == "stream":
        stream.load_state_dict(state[1])
    samples: Any = iter(stream)
    if state is not None and state[0] == "iterator":
        samples.load_state_dict(state[1])
    return cast("Iterator[Any]", samples)


def state_of(stream: Any, samples: Any) -> Any:
    """Return the state of the stream, or of its iterator, whichever has one; copied, because it may be a live one."""
    for kind, each in (("iterator", samples), ("stream", stream)):
        if has_state(each):
            return pickle.loads(pickle.dumps((kind, each.state_dict())))  # noqa: S301  # what was pickled right here
    return None
