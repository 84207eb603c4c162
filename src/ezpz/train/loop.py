"""Train: accumulate, clip, schedule, evaluate, record metrics, save checkpoints, and end without losing anything.

    loop = Loop(model, optimizer, compute_loss, batches, steps=1000, batch_size=8, max_norm=1.0, schedule=schedule)
    with ezpz.History("mine") as history:
        loop.run(history)

    loop = Loop(model, optimizer, compute_loss, DataLoader(…), epochs=3)    # any data: see `ezpz.prepare`

Every rank runs the same loop, and no step waits for the device. Of a loss function that returns a mean, loss and
accuracy are those of this rank's part of the batch (the history has mean, minimum and maximum over ranks), and the loop
adds no collective. Of one that returns a sum and its count, they are those of all ranks, each token counted once: one
all-reduce of a few numbers runs beside the last backward. So it is for a mean in a step that ranks cannot share evenly,
such as the last one of an epoch. Numbers are copied to the host after the step, and a row is
recorded once they have come, of fast steps some rows at a time.
"""

from __future__ import annotations

import gc
import math
import random
import signal
import sys
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ezpz.dist import (
    accumulating,
    all_reduce,
    broadcast,
    degree,
    get_torch_device_type,
    get_world_size,
    max_memory_allocated,
    peak_flops,
)
from ezpz.dist.clip import clip_on, scale_gradients_
from ezpz.dist.device import device as own_device
from ezpz.dist.precision import resolve_dtype
from ezpz.dist.weighting import scale_loss
from ezpz.dist.wrapped_models import mesh_of
from ezpz.errors import UsageError
from ezpz.log import LaterLines, get_logger
from ezpz.progress import counted, end_pace, heartbeat, pace, patience, stage
from ezpz.save_requests import call_savers, say_leaves
from ezpz.track.step_states import Seen
from ezpz.train.clock import make_clock
from ezpz.train.counting import (
    IGNORED,
    Tally,
    Weighed,
    as_sum,
    ignored_targets,
    nominal_count,
    on_device,
    read_computed,
)
from ezpz.train.data.copying import moved
from ezpz.train.data.prepare import prepare
from ezpz.train.evaluation import EVALUATION
from ezpz.train.feeds import DataFeed, PositionFeed
from ezpz.train.flops import rates
from ezpz.train.lost_loss import GO_ON, LossWatch
from ezpz.train.model_modes import begin_training, kept_modes
from ezpz.train.preparing import number_format
from ezpz.train.silent_faults import check
from ezpz.train.step_lines import step_lines
from ezpz.train.step_record import Seeing, together_seen
from ezpz.train.stopping import LEAVE, LOST, NOTHING, STOP, StopRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    import torch

    from ezpz.dist.peaks import Peak
    from ezpz.track import History
    from ezpz.train.clock import Clock, Times
    from ezpz.train.counting import Computed
    from ezpz.train.data.place import Batch
    from ezpz.train.feeds import Feed
    from ezpz.train.flops import Cost

__all__ = ["Loop", "Measured", "Outcome", "Reporting", "Rows", "Scale"]

_FIRST_STEP = 3600.0  # seconds without a heartbeat: it holds compilation
_MOST_WAITING = 64  # steps whose numbers may be on their way; then the oldest is waited for
# Rows of fast steps are recorded some at a time: alone, after a step that has used the caches, each takes several
# times as long.
_RECORD_EVERY = 0.02  # seconds
_MEMORY_EVERY = 100  # steps between two looks at the memory
# Of a loss that all ranks add up: what they counted, and this rank's mean. No row has them.
_COUNT, _MINE = "count ", "mine "
_STEP = counted("")  # what a step takes is in its row, with the sections in it
_FIXED = {bool, int, float, str}  # types of values that cannot change
_ENDLESS = sys.maxsize  # steps of data whose end is not known yet
_YOUNG = 1  # generation: what has lived through a collection of new objects is left for the whole collection at the end


@dataclass
class Outcome:
    """How a loop ended.

    Attributes:
        steps: Steps done, those before a resume included.
        seconds: Wall time of this run of the loop.
        times: ``dt``, ``dtf`` and ``dtb`` of each step of this run, in seconds.
    """

    steps: int
    seconds: float = 0.0
    times: dict[str, list[float]] = field(default_factory=dict)


class _Evaluation(NamedTuple):
    compute: Callable[[], Mapping[str, float]] | None
    every: int

    def is_due(self, done: int, steps: int) -> bool:
        """Tell whether to evaluate when ``done`` of all ``steps`` are done."""
        return self.compute is not None and (done == steps or (bool(self.every) and done % self.every == 0))


class _Saving(NamedTuple):
    checkpoints: Any
    every: int
    seconds: float

    def is_due(self, done: int, steps: int) -> bool:
        """Tell whether to save when ``done`` of all ``steps`` are done, without a request."""
        return bool(self.every) and (done % self.every == 0 or done == steps)


class Reporting(NamedTuple):
    """What is recorded and printed; see `Loop`."""

    log: Callable[[str], object] | None = None
    log_every: int = 10
    window: int = 0
    epoch_steps: int = 0
    row: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class Loop:
    """Trains a model for a number of steps.

    Args:
        model: As `ezpz.wrap_model` returned it. One that is in evaluation as a whole is set to training; otherwise each
            part keeps its mode, such as a frozen batch norm in ``eval()``, also behind an evaluation.
        optimizer: Its optimizer, as `ezpz.make_optimizer` returned it.
        compute_loss: Called with model and batch; returns this rank's mean loss, a 0-d tensor; or ``(sum, count)``, the
            sum of its losses and how many tokens or samples that is, where batches differ in it: then gradients are
            those of the mean over all that counts, however it lies over ranks and micro-batches. A mapping of further
            means to record, 0-d tensors, may follow: ``(mean, more)`` or ``(sum, count, more)``. DeepSpeed's engine
            updates by itself: under it micro-batches weigh the same, ranks by their count.
        batches: Called with a position, returns this rank's batch: tensors, or tuples, lists and dicts of them, on
            any device. A pure function, so that a resumed run sees what the unbroken one would have seen. Or what
            ``data`` takes, such as a DataLoader.
        data: In place of it: what `ezpz.prepare` takes or returned, such as a DataLoader. Each sample is trained with
            once per epoch, also by a run that is resumed with other ranks, another mesh or another batch size.
        epochs: How often to go through ``data``; None: until ``steps`` are done.
        steps: Optimizer steps in all; None: as many as ``epochs`` take.
        batch_size: Samples of this rank in one batch; of a DataLoader its own.
        accumulate: Batches per step; step ``s`` takes the positions from ``s * accumulate`` on.
        max_norm: Largest norm of the gradients; 0 leaves them as they are.
        schedule: A scheduler of torch, stepped once per step; a ``ReduceLROnPlateau`` after each evaluation, with its
            ``loss`` or only metric, rank 0's on all ranks.
        schedule_every: ``epoch`` steps it at the end of each epoch of ``data`` instead.
        ema: An `ezpz.train.EMA` of the model: it follows every step, is evaluated in place of the weights, and is saved
            by ``checkpoints``.
        dtype: Format of the forward pass, of a model that `ezpz.wrap_model` was not asked to compute in one.
        cost: What a sample costs, for tokens per second and MFU.
        evaluate: Returns metrics to be recorded with the step before; every rank calls it.
        eval_every: Steps between two evaluations; 0 means only after the last step.
        epoch_steps: Record one row per so many steps, evaluated each time, instead of one per step; the last one may be
            of fewer, which its ``steps`` tell.
        log_every: Print every n-th step, the first, the last, and those with an evaluation; all are recorded.
        window: Instead, print one line per so many steps, with losses of all ranks: see `Rows`.
        checkpoints: A `ezpz.checkpoint.Checkpoints`. With it SIGUSR2 saves, SIGTERM saves and ends, and
            ``ezpz launch`` has it saved before the job ends.
        save_every: Steps between two checkpoints, and one at the end; 0 means only at signals. Needs ``checkpoints``.
        save_seconds: Time between two checkpoints, also where no number of steps is set.
        start: Steps done already.
        resume: A checkpoint to load from ``checkpoints`` first, such as `ezpz.checkpoint.choose` returned; it holds
            the number of steps done, and the samples consumed.
        sync_timing: Wait for the device after each part of each step: exact times per step, slower steps.
        on_nan: What to do when the loss is NaN or infinite: ``go-on``; ``stop``: end on all ranks at the same step,
            with no checkpoint from after it; ``dump``: the same, and the rank that was first writes its batch and its
            part of the model into ``nan/`` in the run's folder. See `ezpz.train.lost_loss`.
        gc_every: Collect Python's garbage every n steps on all ranks at once; 0 leaves it to Python.
        ended: Called after every step, such as a profiler's ``step``.
        row: Called with a step's row; returns what is to be recorded instead.
        log: Prints a line on rank 0; by default through the log.

    Raises:
        UsageError: A number is out of range, or the checkpoint is one of another model; on all ranks.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        compute_loss: Callable[[Any, Any], Any],
        batches: Any = None,
        *,
        data: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int = 0,
        accumulate: int = 1,
        max_norm: float = 0.0,
        schedule: Any = None,
        schedule_every: str = "step",
        ema: Any = None,
        dtype: str | torch.dtype = "fp32",
        cost: Cost | None = None,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        eval_every: int = 0,
        epoch_steps: int = 0,
        log_every: int = 10,
        window: int = 0,
        checkpoints: Any = None,
        save_every: int = 0,
        save_seconds: float = 0.0,
        start: int = 0,
        resume: Path | None = None,
        sync_timing: bool = False,
        on_nan: str = GO_ON,
        gc_every: int = 0,
        ended: Callable[[], object] | None = None,
        row: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log: Callable[[str], object] | None = None,
        **elsewhere: Any,
    ) -> None:
        _refuse_words_of_others(elsewhere, compute_loss)
        if batches is not None and data is None and not callable(batches):
            batches, data = None, batches
        _require_at_least(1, accumulate=accumulate, log_every=log_every)
        if checkpoints is None:
            _refuse_without_checkpoints(save_every=save_every, save_seconds=save_seconds, resume=resume)
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._steps_schedule = _when_to_step(schedule, schedule_every, has_data=data is not None, evaluates=evaluate)
        self._compute_loss, self._accumulate = compute_loss, accumulate
        dtype = str(number_format(model, dtype))
        self._feed = _make_feed(model, batches, data, epochs, steps, batch_size, accumulate)
        check(model, optimizer, None, schedule)
        self._ema = ema
        if ema is not None and ema.model is not model:
            raise UsageError("ema= averages another model than the Loop's (from Loop); expected EMA(model).")
        self._evaluation = _Evaluation(evaluate, eval_every or epoch_steps)
        self._saving = _Saving(checkpoints, save_every, save_seconds)
        self._reporting = Reporting(log, log_every, window, epoch_steps, row)
        self._exact_times, self._gc_every, self._ended = sync_timing, gc_every, ended
        self._device = own_device()
        skips = dtype == "torch.float16"
        self._watch = LossWatch(on_nan, skips=skips) if on_nan != GO_ON else None
        self._update = make_update(model, optimizer, max_norm=max_norm, dtype=dtype)
        by_engine = isinstance(self._update, _ByEngine)
        self._averages = by_engine or hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync")
        self._seeing = Seeing(None, None)  # `run` looks at optimizer and model as they are then
        self._nominal = 0.0  # what sums are divided by before the counts of all ranks are known; 0: not chosen yet
        self._looked = False
        if checkpoints is not None and self._update.scaler is not None:
            checkpoints.include("loss scaler", self._update.scaler)
        if checkpoints is not None:
            checkpoints.claim()
            checkpoints.complete(optimizer=optimizer, schedule=schedule, ema=ema)
            checkpoints.include("samples consumed", self._feed, optional=True)
        self._start = checkpoints.load(resume) if resume is not None else start
        self._orders_buckets = resume is not None and has_buckets_to_order(model)
        self._feed.begin_after(self._start)
        left = self._feed.steps_left()
        self._steps = min(
            _ENDLESS if steps is None else steps,
            _ENDLESS if left is None else self._start + left,
        )
        self._end_is_open = data is not None and epochs is not None and left is None
        self._scale = Scale(get_world_size(), cost, peak_flops(cost.dtype) if cost is not None else None)

    def run(self, history: History) -> Outcome:
        """Train to the end, or until all ranks have agreed to stop.

        After a SIGTERM that was answered by a checkpoint the signal takes its course: the history completes its files
        and the process ends by it.

        Args:
            history: Where the rows go.

        Raises:
            AskedToEnd: The launcher has asked to save and to end before the end of the job, and that is done; a
                SystemExit of code 0.
            LostLossError: The loss is no number any more, and ``on_nan`` is not ``go-on``; on all ranks.
        """
        outcome = Outcome(self._start)
        if hasattr(history, "rates_count"):  # what records rows in its place needs no card
            history.rates_count(self._scale.world_size)
        begin = perf_counter()
        requests = StopRequests(self._saving.seconds, can_save=self._saving.checkpoints is not None)
        if self._watch is not None:
            self._watch.noticed = requests.end_as_lost
        with (
            LaterLines(get_logger("ezpz.train"), brief=True) as lines,
            requests if self._are_ranks_asked() else nullcontext(),
        ):
            rows = Rows(
                *(history, self._scale, self._reporting),
                first=self._start,
                last=self._steps - 1,
                report=Report(self._reporting.log or lines),
                watch=self._watch,
            )
            begin_training(self._model)
            self._seeing = Seeing(self._optimizer, self._model)
            try:
                stopped = self._train(rows, history, requests, outcome)
            finally:  # whatever ends the training, what was measured before it is recorded
                self._feed.close()
                end_pace()
                rows.record()
        outcome.seconds = perf_counter() - begin
        outcome.times = rows.times
        if self._start and self._steps <= self._start:
            self._say_nothing_was_left(getattr(history, "outdir", None))
        if stopped == LOST and self._watch is not None:
            raise self._watch.error(getattr(history, "outdir", None), self._model, outcome.steps)
        end = say_leaves(outcome.steps) if stopped == LEAVE else None
        if stopped == STOP or requests.signal == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        if end is not None:
            raise end
        return outcome

    def _say_nothing_was_left(self, folder: Path | None) -> None:
        from ezpz.view.card import near

        where = f" in {near(folder)}" if folder else ""
        done, steps = f"{self._start} are done", f"{self._steps} step{'s' * (self._steps != 1)}"
        why = f"all {steps} are done" if self._steps == self._start else f"{steps} are asked for and {done}"
        get_logger("ezpz.train").info(
            f"nothing was left to train: {why}{where}. Ask for more steps to continue, or "
            "name another folder (such as --outdir D) to begin anew."
        )

    def _are_ranks_asked(self) -> bool:
        """Tell whether ranks ask each other now and then whether to save or to end."""
        return self._saving.checkpoints is not None or self._watch is not None

    def _train(self, rows: Rows, history: History, requests: StopRequests, outcome: Outcome) -> int:
        """Do the steps; return `STOP`, `LEAVE` or `LOST` where they were stopped by that, else `NOTHING`."""
        checkpoints = self._saving.checkpoints
        clock = make_clock(exact=self._exact_times)
        step, request = self._start - 1, NOTHING
        self._look_for_end(self._start, rows)
        with GarbageCollection(self._gc_every) as garbage:
            while step + 1 < self._steps:
                step += 1
                with patience("first step", _FIRST_STEP) if step == self._start else nullcontext(), _STEP:
                    measured = self._step(step, clock)
                outcome.steps = step + 1
                self._look_for_end(step + 1, rows)
                if self._steps < _ENDLESS:
                    pace(step + 1, self._start, self._steps)
                heartbeat(step)
                request = requests.after(step) if self._are_ranks_asked() else NOTHING
                if self._is_lost_before(step, request, rows, measured):
                    request = LOST
                between = self._between(step, request, rows, history)
                rows.add(measured, between)
                if between:  # a window's line is no pause: what it costs belongs to the time of the training
                    clock.skip()
                if self._ended is not None:
                    self._ended()
                if request >= LEAVE:
                    break
                garbage.step(step + 1)
        rows.record(wait=True)
        if checkpoints is not None:
            checkpoints.wait()
        if self._watch is not None and request < LOST and self._watch.is_lost_anywhere():
            request = LOST
        return request if outcome.steps < self._steps or request == LOST else NOTHING

    def _is_lost_before(self, step: int, request: int, rows: Rows, measured: Measured) -> bool:
        """Ask all ranks whether the loss is lost, where they are about to evaluate or to save after this step."""
        if self._watch is None or request == LOST:
            return False
        if request == NOTHING and not any(
            each.is_due(step + 1, self._steps) for each in (self._evaluation, self._saving)
        ):
            return False
        rows.record(wait=True)
        measured.times.read()
        self._watch.look(measured)
        return self._watch.is_lost_anywhere()

    def _look_for_end(self, done: int, rows: Rows) -> None:
        """End after ``done`` steps if the data do whose length was not known."""
        if not self._end_is_open or self._feed.has_next():
            return
        self._steps, rows.last = done, done - 1

    def _step(self, step: int, clock: Clock) -> Measured:
        sums: dict[str, Any] = {}
        tally: Tally | None = None
        total, is_mean = 0, False
        for number, each in enumerate(self._feed.step(more=step + 1 < self._steps)):
            batch, samples = self._on_device(each.batch)
            self._seeing.add(each.seen)
            total = each.total
            if self._watch is not None:
                self._watch.keep(step, batch)
            clock.mark("dtd")
            with self._update.within(last=each.ends_step):
                computed = read_computed(self._compute_loss(self._model, batch), samples)
                if computed.count is not None and not each.samples:  # it counts for nothing
                    computed = computed._replace(loss=computed.loss * 0, count=0)
                clock.mark("dtf")
                if self._orders_buckets and each.ends_step:
                    self._orders_buckets = False
                    order_buckets(self._model, computed.loss)
                if number and is_mean != (computed.count is None):
                    raise UsageError(
                        f"compute_loss returned a mean and (sum, count) in step {step}; expected one of the two "
                        "throughout."
                    )
                is_mean = computed.count is None
                if not is_mean:
                    tally = tally or Tally(averages=self._averages)
                    self._backward_sum(computed, tally, last=each.ends_step)
                else:
                    self._look_for_ignored(batch)
                    tally = self._backward_mean(computed, each, tally)
                clock.mark("dtb")
            if tally is None:
                for name, value in {"loss": computed.loss, **computed.more}.items():
                    part = _as_now(value, each.share)
                    sums[name] = sums[name] + part if name in sums else part
        clock.mark("dtd")  # where batches are copied ahead, the next one has been made
        lr = float(self._optimizer.param_groups[0]["lr"])
        seen = self._seeing.end(step)  # before the schedule goes on: what this step's update takes
        totals = None if tally is None else tally.read()
        if totals is not None:
            sums = {**totals.means, _MINE: totals.mine} | ({} if is_mean else {_COUNT: totals.count})
        scale = totals.factor * self._nominal if totals is not None and not is_mean and self._nominal else 1.0
        norm = self._update.step(scale)
        if self._ema is not None:
            self._ema.update()
        if self._steps_schedule == "step" or (self._steps_schedule == "epoch" and self._feed.ended_epoch()):
            self._schedule.step()
        names, values = to_host(sums if norm is None else {**sums, "grad_norm": norm})
        clock.mark("dto")
        return Measured(step, names, values, clock.stop(), lr, total, seen)

    def _on_device(self, batch: Any) -> tuple[Any, float | None]:
        """Return a batch on the device, and what a function of the position says of how many of its samples count."""
        stage("data")
        samples = batch.samples if isinstance(batch, Weighed) else None
        return moved(batch.batch if isinstance(batch, Weighed) else batch, self._device), samples

    def _backward_mean(self, computed: Computed, each: Batch, tally: Tally | None) -> Tally | None:
        """Add the gradients of a mean. In a step that ranks share unevenly, add it to what all of them record, too."""
        if not each.is_even:
            tally = tally or Tally(averages=True)
            tally.add(as_sum(computed, each.samples))
            if each.ends_step:
                tally.exchange()
        self._update.backward(computed.loss, each.share)
        return tally

    def _backward_sum(self, computed: Computed, tally: Tally, *, last: bool) -> None:
        """Add the gradients of a sum, and begin to add up what all ranks counted beside the last of them."""
        tally.add(computed)
        if last:
            tally.exchange()
        if isinstance(self._update, _ByEngine):  # it has its own order of averaging, clipping and updating
            self._update.backward(
                scale_loss(computed.loss, computed.count, mesh_of(self._model)), 1.0 / self._accumulate
            )
        elif not self._averages and self._accumulate == 1 and tally.count() is not None:  # all is known already
            self._update.backward(computed.loss, 1.0 / (tally.count() or 1.0))
        else:
            if not self._nominal:
                scaled = self._update.scaler is not None
                self._nominal = nominal_count(computed.count, averages=self._averages) if scaled else 1.0
            self._update.backward(computed.loss, 1.0 / self._nominal)

    def _look_for_ignored(self, batch: Any) -> None:
        """Warn of a mean over targets that are partly ignored; of the first batch only: later it would cost a sync."""
        if self._looked:
            return
        self._looked = True
        parts = self._accumulate * (get_world_size() if self._averages else 1)
        if parts > 1 and ignored_targets(batch):
            get_logger(__name__).warning(
                f"compute_loss returned a mean, and the first batch has ignored targets ({IGNORED}): {parts} means "
                "over different numbers of tokens make one step, each with the same weight. Return (sum, count) to "
                "weigh every token alike."
            )

    def _between(self, step: int, request: int, rows: Rows, history: History) -> dict[str, float]:
        """Evaluate and save where it is time; return what to record of it."""
        done = step + 1
        values: dict[str, float] = {}
        evaluation, saving = self._evaluation, self._saving
        if evaluation.compute is not None and evaluation.is_due(done, self._steps) and request < LEAVE:
            rows.record(wait=True)
            begin = perf_counter()
            averaged = self._ema.swapped() if self._ema is not None else nullcontext()
            with patience("evaluation", EVALUATION), kept_modes(self._model), averaged:
                values.update(evaluation.compute())
            if self._steps_schedule == "evaluation":
                self._schedule.step(broadcast(_only_metric(values)))
            values["dt_eval"] = perf_counter() - begin
        if request != LOST and (request != NOTHING or saving.is_due(done, self._steps)):
            rows.record(wait=True)
            begin = perf_counter()
            with counted("checkpoint"):
                history.sync()
                if request != NOTHING:
                    call_savers()
                saving.checkpoints.save(done, wait=request >= LEAVE)
            values["dt_save"] = perf_counter() - begin
        return values


def _require_at_least(least: int, **numbers: int) -> None:
    for name, value in numbers.items():
        if value < least:
            raise UsageError(f"unusable {name}={value} (from Loop); expected a whole number of at least {least}.")


def _as_now(value: Any, share: float) -> Any:
    """Return a share of a number, or of a 0-d tensor as it is now, whatever is done in place to it in this step.

    On a CPU that is a number at once: a tensor more costs several times as much.
    """
    if not hasattr(value, "detach"):
        return float(value) * share
    if share == 1.0 and value.device.type == "cpu" and not hasattr(value, "full_tensor"):
        return value.item()
    return value.detach() * share


_ELSEWHERE = {  # what others call it: what to type here
    **dict.fromkeys(("scheduler", "lr_scheduler"), "schedule="),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps", "iterations", "max_iters"), "steps="),
    **dict.fromkeys(("max_epochs", "num_epochs", "num_train_epochs"), "epochs="),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "gradient_accumulation"),
        "accumulate=",
    ),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "clip_grad_norm", "grad_clip"), "max_norm="),
    **dict.fromkeys(("loader", "dataloader", "train_dataloader", "train_loader", "train_dataset", "dataset"), "data="),
    **dict.fromkeys(("loss", "loss_fn", "criterion"), "compute_loss=, a function of model and batch"),
    **dict.fromkeys(("precision", "mixed_precision"), 'dtype=, such as `dtype="bf16"`'),
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size"), "batch_size=, of each rank"),
    **dict.fromkeys(("save_steps", "checkpoint_every"), "save_every="),
    **dict.fromkeys(("eval_steps", "val_check_interval", "evaluation_strategy"), "eval_every="),
    **dict.fromkeys(("logging_steps", "log_every_n_steps"), "log_every="),
    **dict.fromkeys(("resume_from_checkpoint", "ckpt_path"), "checkpoints= and resume="),
    "callbacks": "ended=, row= or evaluate=",
    "seed": "`ezpz.setup_torch(seed=…)`",
}


def _refuse_words_of_others(words: Mapping[str, Any], compute_loss: Any) -> None:
    """Refuse what other trainers call an argument, with the word for it here, and a criterion without its model.

    Raises:
        UsageError: There is one.
        TypeError: An argument of no trainer.
    """
    for name in words:
        if name not in _ELSEWHERE:
            raise TypeError(f"Loop() got an unexpected keyword argument {name!r}")
        raise UsageError(f"no keyword {name!r} here (from Loop); expected {_ELSEWHERE[name]}.")
    if type(compute_loss).__module__ == "torch.nn.modules.loss":
        raise UsageError(
            f"{type(compute_loss).__name__} takes outputs and targets (from Loop); expected a function of model and "
            "batch. Type `lambda model, batch: criterion(model(batch[0]), batch[1])`."
        )


def _when_to_step(schedule: Any, every: str, *, has_data: bool, evaluates: Any) -> str:
    """Return when to step a schedule: at each step, epoch or evaluation; "" where there is none.

    Raises:
        UsageError: There are no such times.
    """
    if every not in {"step", "epoch"}:
        raise UsageError(f"unknown schedule_every={every!r} (from Loop); expected step or epoch.")
    if every == "epoch" and not has_data:
        raise UsageError(
            "schedule_every='epoch' with batches that are a function of the position (from Loop), which have no "
            "epochs; expected data=."
        )
    if schedule is None:
        return ""
    if type(schedule).__name__ != "ReduceLROnPlateau":
        return every
    if evaluates is None:
        raise UsageError(
            "a ReduceLROnPlateau is stepped with what an evaluation has found (from Loop); expected evaluate=, and "
            "eval_every= for more than one."
        )
    return "evaluation"


def _only_metric(values: Mapping[str, float]) -> float:
    """Return what a ReduceLROnPlateau looks at: the loss of an evaluation, or its only metric."""
    if "loss" in values or len(values) == 1:
        return float(values.get("loss", next(iter(values.values()))))
    raise UsageError(
        f"evaluate returned {', '.join(values) or 'nothing'}, of which a ReduceLROnPlateau looks at none (from Loop); "
        "expected a `loss`, or one metric alone."
    )


def _refuse_without_checkpoints(**asked: Any) -> None:
    for name, value in asked.items():
        if value:
            raise UsageError(
                f"{name}={value} saves and loads nothing without checkpoints (from Loop); expected checkpoints=. Type "
                "checkpoints=ezpz.checkpoint.Checkpoints(folder, model=model, optimizer=optimizer)."
            )


def _make_feed(  # noqa: PLR0917  # the arguments of `Loop`
    model: Any, batches: Any, data: Any, epochs: int | None, steps: int | None, batch_size: int, accumulate: int
) -> Feed:
    """Return what feeds the loop.

    Raises:
        UsageError: There are two sources or none, or no end.
    """
    if (batches is None) == (data is None):
        raise UsageError(
            f"{'neither batches nor data' if data is None else 'both batches and data'} (from Loop); expected one: a "
            "function of the position, or data= such as a DataLoader."
        )
    if steps is not None:
        _require_at_least(0, steps=steps)
    if data is None:
        if epochs is not None or steps is None:
            what = f"epochs={epochs} with" if epochs is not None else "no steps for"
            raise UsageError(
                f"{what} batches that are a function of the position (from Loop), which have no end; expected steps=. "
                "Epochs are for data=."
            )
        _require_at_least(1, batch_size=batch_size)
        ranks = degree(mesh_of(model), "dp")
        whole = getattr(batches, "global_batch_size", batch_size * ranks)
        if whole != batch_size * ranks:
            raise UsageError(
                f"batches of {whole} samples on all ranks (from {type(batches).__name__}), where {ranks} data-parallel "
                f"ranks of the model's mesh with batch_size={batch_size} make {batch_size * ranks}; expected the same. "
                "Make the batches behind wrap_model, which knows the mesh, and with the same batch size."
            )
        return PositionFeed(batches, own_device(), step=batch_size * ranks * accumulate, accumulate=accumulate)
    if epochs is None and steps is None:
        raise UsageError("no end for data= (from Loop); expected epochs=, or steps=.")
    if epochs is not None:
        _require_at_least(0, epochs=epochs)
    return DataFeed(prepare(data, batch_size=batch_size).bind(model), epochs=epochs, accumulate=accumulate)


# From steps to rows of the history: one per step, or one per epoch.


class Measured(NamedTuple):
    """One step, of which the device may still know more than the host.

    Attributes:
        step: Its number, from 0.
        names: What ``values`` are.
        values: One number each: a list, or a tensor that is being copied to the host and has come when ``times`` are
            ready.
        times: The times of its parts.
        lr: Learning rate of the first group.
        samples: Of this step on all ranks: fewer in the last one of an epoch.
        seen: The sum of its batch, and what else it saw.
    """

    step: int
    names: Sequence[str]
    values: Any
    times: Times
    lr: float
    samples: int
    seen: Seen = Seen()

    def numbers(self) -> dict[str, float]:
        """Return names and values of a row; call it when the times have been read."""
        return {name: value for name, value in self._all().items() if name not in {_COUNT, _MINE}}

    def weight(self) -> float:
        """Return how much a step weighs beside others: what its loss counted on all ranks; of a mean its samples."""
        return self._all().get(_COUNT, float(self.samples))

    def own_loss(self) -> float:
        """Return the loss of this rank's part of the batch."""
        every = self._all()
        return every.get(_MINE, every["loss"])

    def _all(self) -> dict[str, float]:
        values = self.values if isinstance(self.values, list) else self.values.tolist()
        return dict(zip(self.names, values, strict=True))


class Scale(NamedTuple):
    """What turns times into rates.

    Attributes:
        world_size: Ranks.
        cost: What a sample costs.
        peak: FLOP/s of one device.
    """

    world_size: int
    cost: Cost | None
    peak: Peak | None

    def rates(self, seconds: float, samples: int) -> dict[str, float]:
        """Return ``sps`` and so on for so many samples, of all ranks, that took so long together."""
        return rates(samples / seconds, self.world_size, self.cost, self.peak) if seconds > 0 else {}


def to_host(values: Mapping[str, Any]) -> tuple[Sequence[str], Any]:
    """Return names and numbers, read at once on a CPU, and elsewhere as a copy that is still on its way.

    Args:
        values: Name to 0-d tensor or number; tensors of any placement are read as this rank's.
    """
    import torch

    flat = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values.values()]
    tensors = [value.detach() if isinstance(value, torch.Tensor) else value for value in flat]
    device = next((one.device for one in tensors if isinstance(one, torch.Tensor) and one.device.type != "cpu"), None)
    if device is None:
        return tuple(values), [float(one) for one in tensors]
    stacked = torch.stack([on_device(one, device) for one in tensors])
    return tuple(values), stacked.to("cpu", non_blocking=True)


class Report:
    """Prints the lines of steps, of epochs and of windows (`ezpz.train.step_lines`).

    Args:
        log: Prints a line; or lines that a thread will write.
    """

    def __init__(self, log: Callable[[str], object] | LaterLines) -> None:
        self._log = log

    def __call__(self, row: Mapping[str, Any], between: Mapping[str, Any] | None = None) -> None:
        """Print a row: as it is now, where a value could change before a thread has formatted it."""
        log = self._log
        if isinstance(log, LaterLines) and not between and _FIXED.issuperset(map(type, row.values())):
            values = dict(row)
            log.put(lambda: step_lines(values)[0])
            return
        for text in step_lines(row, between):
            if isinstance(log, LaterLines):
                log.put(partial(str, text))
            else:
                log(text)

    def write(self) -> None:
        """Have all lines written when this returns."""
        if isinstance(self._log, LaterLines):
            self._log.write()


class Rows:
    """Records and prints what is measured: a row per step or per epoch of steps, a line per n-th step or per window.

        step=10 loss=6.8861 max=8.09 dt=30.5 s tps=1073 tok/s mfu=4.71 %

    An epoch takes one reduction of one number, and a window, whose line that is, two; no step has any. Of a window the
    losses are those of all its steps and ranks, and the time is that of one step. The last epoch may be shorter.

    Attributes:
        times: ``dt``, ``dtf`` and ``dtb`` of each step so far.
        last: The last step, which changes when the end of the data shows itself.
    """

    def __init__(
        self,
        history: History,
        scale: Scale,
        how: Reporting,
        *,
        first: int,
        last: int,
        report: Report,
        watch: LossWatch | None = None,
    ) -> None:
        """Begin with no steps; the first one is a window of its own, because it pays for all that is done once."""
        self.times: dict[str, list[float]] = {"dt": [], "dtf": [], "dtb": []}
        self._history, self._scale, self._how = history, scale, how
        self._first, self.last = first, last
        self._report, self._watch = report, watch
        self._waiting: deque[tuple[Measured, dict[str, float]]] = deque()  # for their numbers, or the end of the epoch
        self._window: list[Measured] = []
        self._due = 0.0  # when to record next, of perf_counter
        self._warned = False

    def add(self, measured: Measured, between: dict[str, float]) -> None:
        """Take a step, and what to record of the pause after it; now and then, record what has come."""
        how, done, is_last = self._how, measured.step + 1, measured.step == self.last
        if how.window:
            self._window.append(measured)
            if done % how.window == 0 or is_last or measured.step == self._first:
                between = between | self._end_window(between)
        self._waiting.append((measured, between))
        if how.epoch_steps:
            if done % how.epoch_steps == 0 or is_last:
                self._record_epoch(measured, between)
        elif "dt_save" in between:  # the checkpoint counts from here on: a resumed run would not do this step again
            self.record(wait=True)
        elif perf_counter() >= self._due or len(self._waiting) > _MOST_WAITING:
            self.record()
            self._due = perf_counter() + _RECORD_EVERY

    def record(self, *, wait: bool = False) -> None:
        """Record the rows whose numbers have come; all of them with ``wait``, and look at the losses of an epoch."""
        if self._how.epoch_steps:
            if wait and self._watch is not None:
                for measured, _ in self._waiting:
                    measured.times.read()
                    self._watch.look(measured)
            return
        while self._waiting:
            measured, between = self._waiting[0]
            if not (wait or measured.times.ready() or len(self._waiting) > _MOST_WAITING):
                return
            self._waiting.popleft()
            self._record(measured, between)
        if wait:
            self._report.write()  # what comes now may print by itself

    def _record(self, measured: Measured, between: dict[str, float]) -> None:
        step, log_every = measured.step, self._how.log_every
        times = measured.times.read()
        numbers = measured.numbers()
        norm = {"grad_norm": numbers.pop("grad_norm")} if "grad_norm" in numbers else {}
        row: dict[str, Any] = {"iter": step, **numbers, **times, **self._scale.rates(times["dt"], measured.samples)}
        row |= {**norm, "lr": measured.lr, **between}
        if step % _MEMORY_EVERY == 0 or step in {self._first, self._first + 1, self.last}:
            row["memory_gib"] = max_memory_allocated() / 2**30
        if self._how.row is not None:
            row = self._how.row(row)
        if self._watch is not None:
            self._watch.shown_from = int(row.get("step", row.get("iter", step))) - step
            self._watch.look(measured)
        else:
            self._warn_of_loss(step, row)
        self._keep(row, row.get("step", step), measured.seen, row)  # a trainer may count from 1
        if not self._how.window and (step % log_every == 0 or step == self.last or between):
            self._report(row, between)

    def _record_epoch(self, last: Measured, between: dict[str, float]) -> None:
        self.record(wait=True)  # looks at the losses
        steps = [measured for measured, _ in self._waiting]
        self._waiting.clear()
        loss, seconds, rates_of_all = self._sum_up(steps)
        epoch = -(-(last.step + 1) // self._how.epoch_steps)
        row = {"epoch": epoch, "steps": len(steps), "dt": seconds, "train_loss": loss, **between, **rates_of_all}
        row |= {"lr": last.lr, "memory_gib": max_memory_allocated() / 2**30}
        self._keep(row, epoch, together_seen([measured.seen for measured in steps]), *(m.times.read() for m in steps))
        self._report(row)

    def _end_window(self, evaluated: Mapping[str, float]) -> dict[str, float]:
        """Print a window's line with what was evaluated at its end, and return what of it no row has; collective."""
        steps, self._window = self._window, []
        loss, seconds, rates_of_all = self._sum_up(steps)
        most = all_reduce(max(measured.own_loss() for measured in steps), "max")
        values = {"step": steps[-1].step + 1, "loss": loss, "max": most, "dt": seconds / len(steps), **rates_of_all}
        self._report({**values, **evaluated}, evaluated)
        return {"global_avg_loss": loss, "global_max_loss": most}

    def _sum_up(self, steps: Sequence[Measured]) -> tuple[float, float, dict[str, float]]:
        """Return the mean loss of steps over all ranks, their seconds and their rates; it waits for the device."""
        seconds = sum(measured.times.read()["dt"] for measured in steps)
        return all_reduce(_mean_loss(steps), "mean"), seconds, self._scale.rates(seconds, sum(m.samples for m in steps))

    def _keep(self, row: dict[str, Any], number: int, seen: Seen, *times: Mapping[str, float]) -> None:
        """Record a row, and the times of its steps."""
        if hasattr(self._history, "saw"):
            self._history.saw(number, seen)
        self._history.update(row, step=number, summarize=False)
        for each in times:
            for name, values in self.times.items():
                values.append(each[name])

    def _warn_of_loss(self, step: int, row: Mapping[str, Any]) -> None:
        if not self._warned and not math.isfinite(row.get("loss", 0.0)):
            self._warned = True
            get_logger(__name__).warning(f"loss={row['loss']} at step {step}: the training continues, and is lost.")


def _mean_loss(steps: Sequence[Measured]) -> float:
    """Return the mean loss of steps, each weighed by what it counted; their times have been read."""
    weights = [measured.weight() for measured in steps]
    total = sum(weights)
    losses = (measured.numbers()["loss"] for measured in steps)
    return sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / total if total else 0.0


# From a loss to new weights: backward, scaling of float16's gradients, clipping and the optimizer's step.


class Update(Protocol):
    """One optimizer step, made of one or several backwards.

    Attributes:
        scaler: What scales losses, whose state belongs into checkpoints; None where nothing is scaled.
    """

    scaler: Any

    def within(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the block for forward and backward of one micro-batch."""

    def backward(self, loss: torch.Tensor, share: float) -> None:
        """Add the gradients of ``share * loss``."""

    def step(self, scale: Any) -> Any:
        """Multiply the gradients by ``scale``, a number or a 0-d tensor, change the weights and forget the gradients.

        Returns:
            The gradients' norm behind ``scale``; None where it was not computed.
        """


def make_update(model: Any, optimizer: Any, *, max_norm: float, dtype: str) -> Update:
    """Return what updates this model.

    Args:
        model: As `ezpz.wrap_model` returned it.
        optimizer: Its optimizer.
        max_norm: Largest norm of the gradients; 0 leaves them alone and does not compute it.
        dtype: Format of the forward pass; float16 needs its losses scaled up, because small gradients vanish in it.
    """
    if all(hasattr(model, name) for name in ("backward", "step", "is_gradient_accumulation_boundary")):
        return _ByEngine(model)
    return _ByOptimizer(model, optimizer, max_norm=max_norm, scale=str(resolve_dtype(dtype)) == "torch.float16")


# DistributedDataParallel puts its buckets into the order in which gradients came, after the first backward of a
# process. The place of a gradient in them decides in which order gloo and NCCL add those of more than two ranks, and so
# their last bits. The first backward of a resumed run is therefore done twice: once for the order, and then for good.


def has_buckets_to_order(model: Any) -> bool:
    """Tell whether a resumed run of this model would add gradients in another order than an unbroken one."""
    reducer = getattr(model, "reducer", None)
    known = hasattr(reducer, "_rebuild_buckets") and hasattr(reducer, "prepare_for_backward")
    if not known or degree(mesh_of(model), "dp") <= 2:
        return False
    # A model with unused parameters keeps its buckets. One whose graph is static expects one backward for each forward,
    # and what torch has compiled gives its buffers away in its backward, so that it cannot be done twice.
    if getattr(model, "find_unused_parameters", False) or getattr(model, "static_graph", False):
        return False
    return not any(hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) for each in model.modules())


def order_buckets(model: Any, loss: torch.Tensor) -> None:
    """Do a backward that all ranks add up, forget its gradients, and let the model order its buckets by it.

    Args:
        model: Under DistributedDataParallel, in the last micro-batch of a step.
        loss: What the step's own backward begins with; its graph is kept.
    """
    before = [None if each.grad is None else each.grad.detach().clone() for each in model.parameters()]
    with _unchanged_by_recomputation(model):
        loss.backward(retain_graph=True)
    for parameter, grad in zip(model.parameters(), before, strict=True):
        parameter.grad = grad
    model.reducer._rebuild_buckets()  # noqa: SLF001  # what its next forward would do
    model.reducer.prepare_for_backward([])


@contextmanager
def _unchanged_by_recomputation(model: Any) -> Iterator[None]:
    """Give back random numbers and buffers as they were: a backward that computes activations again changes both."""
    import torch

    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    drawn = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn_by_numpy = numpy.random.get_state() if numpy else None
    kind = get_torch_device_type()
    own = {"devices": [own_device()], "device_type": kind} if kind not in {"cpu", "mps"} else {"devices": []}
    with torch.random.fork_rng(**own):
        yield
    random.setstate(drawn)
    if numpy:
        numpy.random.set_state(drawn_by_numpy)
    with torch.no_grad():
        for buffer, value in kept:
            if not torch.equal(buffer, value):  # else the graph would take it for changed
                buffer.copy_(value)


class _ByOptimizer:
    def __init__(self, model: Any, optimizer: Any, *, max_norm: float, scale: bool) -> None:
        import torch

        self._model = model
        self._parameters: list[Any] = []  # to walk through the modules in every step would cost as much as to clip
        self._optimizer = optimizer
        self._max_norm = max_norm
        self._mesh = mesh_of(model)
        self.scaler = torch.amp.GradScaler(get_torch_device_type()) if scale else None

    def within(self, *, last: bool) -> AbstractContextManager[None]:
        return accumulating(self._model, last=last)

    def backward(self, loss: torch.Tensor, share: float) -> None:
        weighted = loss if share == 1.0 else loss * share
        (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()

    def step(self, scale: Any) -> Any:
        norm = None
        scaled = not (isinstance(scale, float) and scale == 1.0)
        if self.scaler is not None and self._max_norm:
            self.scaler.unscale_(self._optimizer)
        if self._max_norm or scaled:
            self._parameters = self._parameters or list(self._model.parameters())
        if self._max_norm:
            norm = clip_on(self._mesh, self._parameters, self._max_norm, scale=scale)
        elif scaled:
            scale_gradients_(self._parameters, scale)
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.step(self._optimizer)
            self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return norm


class _ByEngine:
    """DeepSpeed's engine scales, accumulates, clips and updates as its configuration says."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.scaler = None

    def within(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002  # the engine counts by itself
        return nullcontext()

    def backward(self, loss: torch.Tensor, share: float) -> None:
        own = share * self._engine.gradient_accumulation_steps()  # the engine divides by that itself
        self._engine.backward(loss if own == 1.0 else loss * own)
        self._engine.step()

    def step(self, scale: Any) -> Any:  # noqa: ARG002  # each loss was scaled
        return None


class GarbageCollection:
    """A block in which Python's garbage is collected every n steps; with 0 that is left to Python.

    It begins by itself after so many new objects, at another moment on every rank, and a rank that collects for 100 ms
    lets all others wait in the next collective. So it is switched off, and every rank collects at the same steps.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._was_on = False

    def __enter__(self) -> GarbageCollection:  # noqa: PYI034  # `Self` needs Python 3.11
        self._was_on = gc.isenabled()
        if self._every:
            gc.collect()
            gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._every and self._was_on:
            gc.enable()

    def step(self, done: int) -> None:
        """Collect if it is time; ``done`` is the number of steps done."""
        if self._every and done % self._every == 0:
            gc.collect(_YOUNG)
