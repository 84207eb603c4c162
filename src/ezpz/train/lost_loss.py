"""End a training whose loss is no number any more: at the same step on all ranks, with what the first rank had.

    python3 -m ezpz.examples.fsdp --on_nan dump
    ezpz.examples.fsdp: loss=nan on rank 1 at step 120; all ranks ended after step 126 (on_nan=dump), …
    outputs/fsdp/…/nan/rank-1-step-120.pt    step, rank, loss, batches, model, model_after_step

The loss is looked at when a row is recorded, which reads it anyway: nothing waits for the device. What a rank has seen
travels with the question that ranks ask each other about once per second (`ezpz.train.stopping`); before a checkpoint
or an evaluation, and at the end, they ask at once, so that no checkpoint is written of weights that are lost.

A float16 loss that overflows costs one step, which the gradient scaler leaves out with half the scale next time. There
the loss is lost when it is no number for 17 steps in a row: the scaler begins at 65,536, which 16 halvings bring to 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from ezpz.errors import EzpzError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["GO_ON", "ON_NAN", "LossWatch", "LostLossError"]

GO_ON = "go-on"
ON_NAN = (GO_ON, "stop", "dump")
_SKIPPED = 16  # steps that a gradient scaler may leave out in a row
_MOST_KEPT = 64  # steps whose batches are kept at most: as many as can wait for their row
_NOBODY = 2**62


class Measured(Protocol):
    """What is looked at of a step: its number, what its row will have, and this rank's own loss."""

    @property
    def step(self) -> int: ...

    def numbers(self) -> dict[str, float]: ...

    def own_loss(self) -> float: ...


class LostLossError(EzpzError):
    """The loss of a training is NaN or infinite, and it was asked to end then; the first such rank says it for all."""


class LossWatch:
    """Looks at this rank's losses, and agrees with the others about the first that is no number.

    Attributes:
        noticed: Called when a loss is found to be lost: asks all ranks to end.
        shown_from: What rows call step 0.
    """

    def __init__(self, on_nan: str, *, skips: bool) -> None:
        """Begin with no losses.

        Args:
            on_nan: ``stop`` or ``dump``.
            skips: A gradient scaler leaves out steps whose gradients are no numbers.

        Raises:
            UsageError: ``on_nan`` is none of the known words.
        """
        if on_nan not in ON_NAN:
            raise UsageError(f"unusable on_nan={on_nan!r} (from Loop); expected one of {', '.join(ON_NAN)}.")
        self.noticed: Callable[[], object] = lambda: None
        self.shown_from = 0
        self._on_nan = on_nan
        self._allowed = _SKIPPED if skips else 0
        self._in_a_row = 0
        self._looked_at = -1  # the last step
        self._first: Measured | None = None  # of the losses in a row that are no numbers
        self._is_lost = False
        self._batches: dict[int, list[Any]] = {}

    def keep(self, step: int, batch: Any) -> None:
        """Hold a batch of a step until its loss has been looked at; only ``dump`` needs it."""
        if self._on_nan == "dump" and not self._is_lost:
            self._batches.setdefault(step, []).append(batch)
            if len(self._batches) > _MOST_KEPT:
                self._drop(min(step for step in self._batches if self._first is None or step != self._first.step))

    def look(self, measured: Measured) -> None:
        """Look at the loss of a step, unless that was done; its times have been read, steps come in order."""
        if self._is_lost or measured.step <= self._looked_at:
            return
        self._looked_at = measured.step
        if math.isfinite(measured.numbers()["loss"]):
            if self._first is not None:
                self._drop(self._first.step)
            self._first, self._in_a_row = None, 0
            self._drop(measured.step)
            return
        self._in_a_row += 1
        if self._first is None:
            self._first = measured
        else:
            self._drop(measured.step)
        if self._in_a_row > self._allowed:
            self._is_lost = True
            self._batches = {step: kept for step, kept in self._batches.items() if step == self._first.step}
            self.noticed()

    def _drop(self, step: int) -> None:
        self._batches.pop(step, None)

    def is_lost_anywhere(self) -> bool:
        """Ask all ranks whether the loss is lost on one of them; all of them call it."""
        return self._agree()[0] < _NOBODY

    def error(self, folder: Path | None, model: Any, done: int) -> LostLossError:
        """Return what ends the run, and with ``dump`` write what the first rank had; all ranks call it.

        Args:
            folder: The run's folder; rank 0's counts.
            model: Whose state is written.
            done: Steps done.
        """
        from ezpz.dist import broadcast, get_rank, get_world_size

        first, world, rank = self._agree()[0], get_world_size(), get_rank()
        step, on_others, speaker = first // (2 * world), first // world % 2, first % world
        mine = self._first if self._first is not None and self._first.step == step else None
        shown = self.shown_from
        where = "in the sum over all ranks" if on_others else f"on rank {speaker}"
        value = mine.numbers()["loss"] if mine is not None else math.nan
        text = (
            f"loss={value} {where} at step {step + shown}; all ranks ended after step {done - 1 + shown} "
            f"(on_nan={self._on_nan}), and no checkpoint was written in between."
        )
        if self._on_nan == "dump":
            folder = broadcast(folder)
            is_first = mine is not None and (on_others or not math.isfinite(mine.own_loss()))
            path = folder / "nan" / f"rank-{rank}-step-{step + shown}.pt" if folder is not None and is_first else None
            if path is not None and mine is not None:
                text += f" {self._write(path, mine, model, done)}"
        advice = "the batch of that step, and the learning rate and grad_norm before it"
        more = "" if self._on_nan == "dump" else "; on_nan=dump writes the batch"
        error = LostLossError(f"{text} Look at {advice}{more}.")
        error.speaks = rank == speaker
        return error

    def _agree(self) -> list[int]:
        """Return, of the first loss that is lost: the step, whether no rank's own loss is, and the lowest rank, in one
        number.
        """
        import torch
        import torch.distributed as dist

        from ezpz.dist import get_rank, get_world_size
        from ezpz.train.stopping import device_of_questions

        world, mine = get_world_size(), _NOBODY
        if self._is_lost and self._first is not None:
            is_own = not math.isfinite(self._first.own_loss())
            mine = (2 * self._first.step + (not is_own)) * world + get_rank()
        if not dist.is_initialized() or world == 1:
            return [mine]
        numbers = torch.tensor([mine], device=device_of_questions())
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
        return [int(number) for number in numbers.tolist()]

    def _write(self, path: Path, mine: Measured, model: Any, done: int) -> str:
        """Write what this rank has; return in a sentence what was written, or why it could not be."""
        from ezpz.dist import get_rank

        after = done - 1 + self.shown_from
        content: dict[str, Any] = {"step": mine.step + self.shown_from, "rank": get_rank(), "loss": mine.own_loss()}
        content |= {"batches": None, "model_after_step": after}
        batches = self._batches.get(mine.step)
        what = "the batch of that step" if batches else "no batch (it was not at hand any more)"
        try:
            content["model"] = {name: _on_host(value) for name, value in model.state_dict().items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _save({**content, "batches": batches and [_on_host(batch) for batch in batches]}, path)
            except Exception as error:  # noqa: BLE001  # a batch may be anything
                what = f"no batch (it cannot be written: {type(error).__name__}: {error})"
                _save(content, path)
        except Exception as error:  # noqa: BLE001  # the disk may be full: the run ends all the same
            return f"Nothing could be written to {path}: {type(error).__name__}: {error}."
        return f"{path} has {what} and this rank's part of the model after step {after}."


def _save(content: dict[str, Any], path: Path) -> None:
    """Write a file whole or not at all."""
    import torch

    part = path.with_suffix(".part")
    try:
        torch.save(content, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _on_host(value: Any) -> Any:
    """Return tensors in tuples, lists and dicts as copies on the host, of a sharded one what this rank has."""
    if hasattr(value, "to_local"):
        value = value.to_local()
    if hasattr(value, "detach"):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: _on_host(each) for name, each in value.items()}
    if type(value) in {tuple, list}:
        return type(value)(_on_host(each) for each in value)
    return value
