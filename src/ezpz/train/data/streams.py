"""Cut a stream, whose samples come one after the other, over ranks.

Every rank reads the whole stream and keeps its own samples: sample i of a step belongs to slot i modulo their number.
So no sample is lost or seen twice, whatever the number of ranks, and the end is known to all ranks at the same step.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ezpz.train.data.place import Cut


class Part(NamedTuple):
    """A batch of this rank out of a step, and what the step was.

    Attributes:
        batch: As the loader's collate function returned it.
        samples: How many of it count.
        total: Samples of the whole step, on all ranks.
        state: Of the stream after the step, with its last batch; None where it has none.
        digest: Of the stream's first sample, with the first batch.
    """

    batch: Any
    samples: int
    total: int
    state: Any
    digest: str


class StreamParts(IterableDataset[Part]):  # type: ignore[misc]  # torch is not type-checked
    """Yields the batches of this rank from a place on; read by one worker, or by the process itself."""

    def __init__(
        self, stream: Any, cut: Cut, collate: Callable[[list[Any]], Any], *, skip: int, state: Any, drop_last: bool
    ) -> None:
        """Describe the rest of an epoch.

        Args:
            stream: The data set.
            cut: How its samples are shared out.
            collate: Makes a batch of a list of samples.
            skip: Samples consumed before.
            state: Of the stream after them, which makes the skip unnecessary; None reads and drops them.
            drop_last: Leave out a last step that is not full.
        """
        self._stream, self._cut, self._collate = stream, cut, collate
        self._skip, self._state, self._drop_last = skip, state, drop_last

    def __iter__(self) -> Iterator[Part]:
        """Read."""
        if hasattr(self._stream, "_ex_iterable"):
            _forget_the_worker()
        samples = _at(self._stream, self._state)
        if self._state is None:
            for _ in zip(range(self._skip), samples, strict=False):
                pass
        digest = "-"
        while True:
            step = self._read_step(samples)
            if not step.total or (self._drop_last and step.total < self._cut.step):
                return
            state = _state_of(self._stream, samples)
            digest = _digest(step.first) if digest else ""
            last = self._cut.accumulate - 1
            for micro, mine in enumerate(step.mine):
                batch = self._collate(mine or [step.first])
                yield Part(batch, len(mine), step.total, state if micro == last else None, digest)
                digest = ""

    def _read_step(self, samples: Iterator[Any]) -> _Step:
        cut = self._cut
        parts = cut.ranks * cut.accumulate
        step = _Step([[] for _ in range(cut.accumulate)])
        for index, sample in zip(range(cut.step), samples, strict=False):
            if not index:
                step.first = sample
            micro, rank = divmod(index % parts, cut.ranks)
            if rank == cut.rank:
                step.mine[micro].append(sample)
            step.total = index + 1
        return step


class _Step:
    def __init__(self, mine: list[list[Any]]) -> None:
        self.mine = mine
        self.first: Any = None
        self.total = 0


def has_state(stream: Any) -> bool:
    """Tell whether a stream's own state leads back to a place without reading what lies before.

    Of Hugging Face's streams that are shuffled the state leaves out the samples in the buffer: they would be lost.
    """
    return all(hasattr(stream, name) for name in ("state_dict", "load_state_dict")) and not has_buffer(stream)


def has_buffer(stream: Any) -> bool:
    """Tell whether a stream of Hugging Face shuffles in a buffer, itself or one of those that it is made of."""
    parts: list[Any] = [getattr(stream, "_ex_iterable", None)]
    for part in parts:
        if "Buffer" in type(part).__name__:
            return True
        parts += [part.ex_iterable] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])
    return False


def _forget_the_worker() -> None:
    """Let a stream of Hugging Face be read as in a process without workers, which is what the only worker is.

    Otherwise it shares out what it is made of even over one worker, and its state there fits no other number of
    workers, and where data sets are joined not even the same one.
    """
    from torch.utils.data._utils import worker

    worker._worker_info = None  # noqa: SLF001  # torch has no other way to say it


def _at(stream: Any, state: Any) -> Iterator[Any]:
    """Return the samples from a state on."""
    if state is not None and state[0] == "stream":
        stream.load_state_dict(state[1])
    samples: Any = iter(stream)
    if state is not None and state[0] == "iterator":
        samples.load_state_dict(state[1])
    return cast("Iterator[Any]", samples)


def _state_of(stream: Any, samples: Any) -> Any:
    """Return the state of the stream, or of its iterator, whichever has one; copied, because it may be a live one."""
    for kind, each in (("iterator", samples), ("stream", stream)):
        if has_state(each):
            return pickle.loads(pickle.dumps((kind, each.state_dict())))  # noqa: S301  # what was pickled right here
    return None


def _digest(sample: Any) -> str:
    """Return a digest of a sample; "" if it cannot be pickled."""
    try:
        return blake2b(pickle.dumps(sample), digest_size=8).hexdigest()
    except Exception:  # noqa: BLE001  # a sample may be anything, and this is only a comparison
        return ""
