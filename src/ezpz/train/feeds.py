"""Feed a loop: batches of a function of the position, or of prepared data, with the place that a checkpoint keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from ezpz.errors import UsageError
from ezpz.train.counting import Weighed
from ezpz.train.data.checksum import sum_of
from ezpz.train.data.copying import Copier
from ezpz.train.data.place import Batch, Consumed
from ezpz.train.data.prepare import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from ezpz.train.data.checksum import Sum
    from ezpz.train.data.prepare import Loader


class Feed(Protocol):
    """Gives a loop the batches of its steps, and knows its place in the data."""

    def step(self, *, more: bool) -> Iterator[Batch]:
        """Yield the batches of the next step; then the place is after it. ``more``: whether another step follows."""

    def steps_left(self) -> int | None:
        """Return the steps to the end of the data; None if they have none, or it is not known yet."""

    def has_next(self) -> bool:
        """Tell whether there is another step."""

    def ended_epoch(self) -> bool:
        """Tell whether the last step was the last one of an epoch."""

    def begin_after(self, steps: int) -> None:
        """Go to the place behind so many steps of this batch size, unless a state was loaded."""

    def close(self) -> None:
        """End workers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place, the same on every rank."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a place."""


class PositionFeed:
    """Calls a function of the position, or takes samples by what was consumed where it can (``at``)."""

    def __init__(self, batches: Callable[[int], Any], device: torch.device, *, step: int, accumulate: int) -> None:
        """Begin at the first sample.

        Args:
            batches: See `Loop`. With ``at(consumed)``, ``global_batch_size`` and ``order`` (samples of an epoch and
                seed) any place can be continued exactly.
            device: Where batches go. On CUDA the next one is made and copied, on a stream of its own, as soon as the
                backward pass of this one is queued: in the same thread and order as without.
            step: Samples of a step on all ranks.
            accumulate: Batches per step.
        """
        self._step, self._accumulate, self._share = step, accumulate, 1.0 / accumulate
        self._is_exact = all(hasattr(batches, name) for name in ("at", "global_batch_size", "order"))
        self._source = source = cast("Any", batches)
        self._each: int = source.global_batch_size if self._is_exact else step // accumulate
        self._take: Callable[[int], Any] = source.at if self._is_exact else batches
        order: tuple[int, int] = source.order if self._is_exact else (0, 0)
        self._samples, self._seed = order
        self._consumed = 0
        self._loaded = False
        self._copier = Copier(device)
        # The place of a batch on its way, what gives it, and its sum.
        self._coming: tuple[int, Callable[[], Any], Sum | None] | None = None

    def step(self, *, more: bool) -> Iterator[Batch]:
        """See `Feed`."""
        share, total, last, copier = self._share, self._step, self._accumulate - 1, self._copier
        for micro in range(self._accumulate):
            begin, coming = self._consumed, self._coming
            self._coming = None
            if coming is not None and coming[0] == begin:
                batch, seen = coming[1](), coming[2]
            else:
                batch, seen = self._batch(begin)
            self._consumed = begin + self._each
            yield Batch(batch, self._each, total, share, self._consumed, micro == last, seen=seen)
            if copier.is_ahead and (more or micro < last):
                following, seen = self._batch(self._consumed)
                self._coming = self._consumed, self._on_its_way(following), seen

    def _batch(self, begin: int) -> tuple[Any, Sum | None]:
        """Return the batch at a place, and its sum."""
        batch = self._take(begin if self._is_exact else begin // self._each)
        return batch, sum_of(
            batch.batch if isinstance(batch, Weighed) else batch, getattr(self._source, "picked", None)
        )

    def _on_its_way(self, batch: Any) -> Callable[[], Any]:
        """Begin to copy a batch, and return what gives it to the device's own stream."""
        if isinstance(batch, Weighed):
            inner, samples = self._copier.begin(batch.batch), batch.samples
            return lambda: Weighed(self._copier.arrived(inner), samples)
        coming = self._copier.begin(batch)
        return lambda: self._copier.arrived(coming)

    def steps_left(self) -> None:
        """See `Feed`."""
        return

    def has_next(self) -> bool:
        """See `Feed`."""
        return True

    def ended_epoch(self) -> bool:
        """See `Feed`."""
        return False

    def begin_after(self, steps: int) -> None:
        """See `Feed`."""
        if not self._loaded:
            self._consumed = steps * self._accumulate * self._each

    def close(self) -> None:
        """See `Feed`."""
        self._coming = None

    def state_dict(self) -> dict[str, Any]:
        """See `Feed`."""
        return self._place(self._consumed)._asdict()

    def _place(self, consumed: int) -> Consumed:
        if not self._samples:
            return Consumed("positions", 0, consumed, 0, 0, shuffle=False)
        epoch, rest = divmod(consumed, self._samples)
        return Consumed("samples", epoch, rest, self._samples, self._seed, shuffle=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Feed`."""
        saved = Consumed(**state)
        self._loaded = True
        self._consumed = saved.total
        doubts = saved.doubts(self._place(0))
        if doubts:
            warn_once(f"the data continue after {saved.total:,} samples, and not exactly: {doubts}.")
        again = saved.total % self._each
        if again and not self._is_exact:
            self._consumed -= again
            warn_once(
                f"the data continue after {saved.total:,} samples, and not exactly: batches are a function of the "
                f"position, which counts {self._each} samples at a time (from Loop), so that {again} of them come "
                "again. Give Loop data=, or TokenBatches or ImageBatches, which continue anywhere."
            )


class DataFeed:
    """Takes the batches of a prepared loader, epoch by epoch."""

    def __init__(self, loader: Loader, *, epochs: int | None, accumulate: int) -> None:
        """Begin where the loader is; without ``epochs`` there is no end.

        Raises:
            UsageError: An epoch has no step.
        """
        self._loader, self._epochs, self._accumulate = loader, epochs, accumulate
        if loader.epoch_steps(accumulate) == 0:
            raise self._no_step()
        self._batches: Iterator[Batch] | None = None
        self._next: Batch | None = None  # of a stream, whose end shows itself only there
        self._left: int | None = None  # steps of this epoch; None for a stream
        self._loaded = False

    def step(self, *, more: bool) -> Iterator[Batch]:  # noqa: ARG002  # the loader looks ahead by itself
        """See `Feed`."""
        if not self.has_next() or self._batches is None:
            raise AssertionError("there is no step left")
        for _ in range(self._accumulate):
            each = self._next if self._next is not None else next(self._batches)
            self._next = next(self._batches, None) if self._left is None else None
            self._loader.take(each)
            yield each
        if self._left is not None:
            self._left -= 1
        if not (self._left or self._next is not None):
            self._end_epoch()

    def steps_left(self) -> int | None:
        """See `Feed`."""
        return None if self._epochs is None else self._loader.steps_left(self._epochs, self._accumulate)

    def has_next(self) -> bool:
        """See `Feed`."""
        while self._epochs is None or self._loader.epoch < self._epochs:
            if self._batches is None:
                self._left = self._loader.steps_left(self._loader.epoch + 1, self._accumulate)
                self._batches = self._loader.epoch_batches(self._accumulate)
                if self._left is None:
                    self._next = next(self._batches, None)
            if self._left or self._next is not None:
                return True
            if not self._loader.consumed:
                raise self._no_step()
            self._end_epoch()
        return False

    def ended_epoch(self) -> bool:
        """See `Feed`."""
        return self._batches is None

    def _no_step(self) -> UsageError:
        return UsageError(
            "the data have no sample for a step (from Loop); expected at least one, and with drop_last=True "
            f"{self._loader.cut(self._accumulate).step}. Take drop_last off, or a smaller batch."
        )

    def _end_epoch(self) -> None:
        self._batches = self._next = None
        self._loader.end_epoch()

    def begin_after(self, steps: int) -> None:
        """See `Feed`."""
        if steps and not self._loaded:
            consumed = steps * self._loader.cut(self._accumulate).step
            warn_once(
                f"the data continue after {consumed:,} samples, and perhaps not exactly: {steps} steps are done, and "
                "nothing says how many samples they had (from Loop); a full step of this run is taken for each."
            )
            self._loader.load_state_dict(Consumed("positions", 0, consumed, 0, 0, shuffle=False)._asdict())

    def close(self) -> None:
        """See `Feed`."""
        self._batches = self._next = None

    def state_dict(self) -> dict[str, Any]:
        """See `Feed`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Feed`."""
        self._loaded = True
        self._loader.load_state_dict(state)
