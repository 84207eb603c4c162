"""Train: accumulate, clip, schedule, evaluate, record metrics, save checkpoints, and end without losing anything.

    loop = Loop(model, optimizer, compute_loss, batches, steps=1000, batch_size=8, max_norm=1.0, schedule=schedule)
    with ezpz.History("mine") as history:
        loop.run(history)

Every rank runs the same loop. It adds no collective and no wait for the device to a step: loss and accuracy are those
of this rank's part of the batch (the history has mean, minimum and maximum over ranks), they are copied to the host
behind the step, and a row is recorded once its numbers have come, of fast steps some rows at a time.
"""

from __future__ import annotations

import gc
import math
import signal
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ezpz.dist import (
    accumulating,
    all_reduce,
    clip_grad_norm_,
    degree,
    get_mesh,
    get_torch_device,
    get_torch_device_type,
    get_world_size,
    max_memory_allocated,
    peak_flops,
)
from ezpz.dist.precision import resolve_dtype
from ezpz.errors import UsageError
from ezpz.log import LaterLines, get_logger
from ezpz.progress import heartbeat
from ezpz.track.values import line
from ezpz.train.clock import make_clock
from ezpz.train.flops import rates
from ezpz.train.stopping import NOTHING, STOP, StopRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    import torch

    from ezpz.dist.peaks import Peak
    from ezpz.track import History
    from ezpz.train.clock import Clock, Times
    from ezpz.train.flops import Cost

__all__ = ["Loop", "Measured", "Outcome", "Scale", "Steps"]

_MOST_WAITING = 64  # steps whose numbers may be on their way; then the oldest is waited for
# Rows of fast steps are recorded some at a time: alone, behind a step that has used the caches, each takes several
# times as long.
_RECORD_EVERY = 0.02  # seconds
_MEMORY_EVERY = 100  # steps between two looks at the memory
# Recorded and drawn, but not on the line that people read.
_NOT_PRINTED = {"dtd", "dto", "lr", "grad_norm", "memory_gib", "dt_eval", "dt_save"}
_NOT_PRINTED_OF_EPOCHS = _NOT_PRINTED | {"sps", "sps_per_gpu", "tps", "tps_per_gpu", "mfu"}
_FIXED = {bool, int, float, str}  # types of values that cannot change
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
        return self.compute is not None and (done % self.every == 0 or done == steps)


class _Saving(NamedTuple):
    checkpoints: Any
    every: int
    seconds: float

    def is_due(self, done: int, steps: int) -> bool:
        """Tell whether to save when ``done`` of all ``steps`` are done, without a request."""
        return bool(self.every) and (done % self.every == 0 or done == steps)


class _Reporting(NamedTuple):
    log: Callable[[str], object]
    own: bool
    log_every: int
    window: int
    epoch_steps: int
    row: Callable[[dict[str, Any]], dict[str, Any]] | None


class Loop:
    """Trains a model for a number of steps.

    Args:
        model: As `ezpz.wrap_model` returned it.
        optimizer: Its optimizer, as `ezpz.make_optimizer` returned it.
        compute_loss: Called with model and batch; returns this rank's mean loss, a 0-d tensor, or a pair of it and a
            mapping of further 0-d tensors to record.
        batches: Called with a position, returns this rank's batch: tensors, or tuples, lists and dicts of them, on
            any device. A pure function, so that a resumed run sees what the unbroken one would have seen.
        steps: Optimizer steps in all.
        batch_size: Samples of this rank in one batch.
        accumulate: Batches per step; step ``s`` takes the positions from ``s * accumulate`` on.
        max_norm: Largest norm of the gradients; 0 leaves them as they are.
        schedule: A scheduler of torch, stepped once per step.
        dtype: Format of the forward pass, as given to `ezpz.wrap_model`.
        cost: What a sample costs, for tokens per second and MFU.
        evaluate: Returns metrics to be recorded with the step before; every rank calls it.
        eval_every: Steps between two evaluations; 0 means only after the last step.
        epoch_steps: Record one row per so many steps, evaluated each time, instead of one per step.
        log_every: Print every n-th step; all are recorded.
        window: Instead, print one line per so many steps, with losses of all ranks: see `Windows`.
        checkpoints: A `ezpz.checkpoint.Checkpoints`. With it SIGUSR2 saves, and SIGTERM saves and ends.
        save_every: Steps between two checkpoints, and one at the end; 0 means only at signals. Needs ``checkpoints``.
        save_seconds: Time between two checkpoints, also where no number of steps is set.
        start: Steps done already.
        resume: A checkpoint to load from ``checkpoints`` first, such as `ezpz.checkpoint.choose` returned; it holds
            the number of steps done.
        sync_timing: Wait for the device after each part of each step: exact times per step, slower steps.
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
        batches: Callable[[int], Any],
        *,
        steps: int,
        batch_size: int,
        accumulate: int = 1,
        max_norm: float = 0.0,
        schedule: Any = None,
        dtype: str = "fp32",
        cost: Cost | None = None,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        eval_every: int = 0,
        epoch_steps: int = 0,
        log_every: int = 1,
        window: int = 0,
        checkpoints: Any = None,
        save_every: int = 0,
        save_seconds: float = 0.0,
        start: int = 0,
        resume: Path | None = None,
        sync_timing: bool = False,
        gc_every: int = 0,
        ended: Callable[[], object] | None = None,
        row: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log: Callable[[str], object] | None = None,
    ) -> None:
        _require_at_least(0, steps=steps)
        _require_at_least(1, batch_size=batch_size, accumulate=accumulate, log_every=log_every)
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._compute_loss, self._batches = compute_loss, batches
        self._steps, self._accumulate = steps, accumulate
        self._evaluation = _Evaluation(evaluate, eval_every or epoch_steps or steps)
        self._saving = _Saving(checkpoints, save_every if checkpoints is not None else 0, save_seconds)
        to_log = log or get_logger("ezpz.train").info
        self._reporting = _Reporting(to_log, log is not None, log_every, window, epoch_steps, row)
        self._exact_times, self._gc_every, self._ended = sync_timing, gc_every, ended
        self._device = get_torch_device()
        self._update = make_update(model, optimizer, max_norm=max_norm, dtype=dtype)
        if checkpoints is not None and self._update.scaler is not None:
            checkpoints.include("loss scaler", self._update.scaler)
        self._start = checkpoints.load(resume) if resume is not None else start
        samples = batch_size * accumulate * degree(get_mesh(), "dp")
        self._scale = Scale(samples, get_world_size(), cost, peak_flops(cost.dtype) if cost is not None else None)

    def run(self, history: History) -> Outcome:
        """Train to the end, or until all ranks have agreed to stop.

        After a SIGTERM that was answered by a checkpoint the signal takes its course: the history completes its files
        and the process ends by it.

        Args:
            history: Where the rows go.
        """
        outcome = Outcome(self._start)
        begin = perf_counter()
        requests = StopRequests(self._saving.seconds)
        with (
            LaterLines(get_logger("ezpz.train")) as lines,
            requests if self._saving.checkpoints is not None else nullcontext(),
        ):
            rows = self._rows(history, lines)
            self._model.train()
            try:
                stopped = self._train(rows, history, requests, outcome)
            finally:  # whatever ends the training, what was measured before it is recorded
                rows.record()
        outcome.seconds = perf_counter() - begin
        outcome.times = rows.times
        if stopped or requests.signal == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        return outcome

    def _rows(self, history: History, lines: LaterLines) -> Steps | Epochs:
        how = self._reporting
        if how.epoch_steps:
            return Epochs(history, self._scale, every=how.epoch_steps, log=how.log)
        ends = {"first": self._start, "last": self._steps - 1}
        log_every = how.log_every if not how.window else 0
        log = how.log if how.own else lines
        return Steps(history, self._scale, **ends, log_every=log_every, log=log, row=how.row)

    def _windows(self) -> Windows | None:
        every = self._reporting.window
        return Windows(every, self._scale, first=self._start, last=self._steps - 1) if every else None

    def _train(self, rows: Steps | Epochs, history: History, requests: StopRequests, outcome: Outcome) -> bool:
        """Do the steps; return whether they were stopped."""
        checkpoints, windows = self._saving.checkpoints, self._windows()
        clock = make_clock(exact=self._exact_times)
        with GarbageCollection(self._gc_every) as garbage:
            for step in range(self._start, self._steps):
                measured = self._step(step, clock)
                outcome.steps = step + 1
                heartbeat(step)
                request = requests.after(step) if checkpoints is not None else NOTHING
                between = self._between(step, request, rows, history)
                paused = bool(between)
                if windows is not None and windows.add(measured):
                    between |= self._print_window(windows, between)
                rows.add(measured, between)
                if paused:  # a window's line is no pause: what it costs belongs to the time of the training
                    clock.skip()
                if self._ended is not None:
                    self._ended()
                if request == STOP:
                    break
                garbage.step(step + 1)
        rows.record(wait=True)
        if checkpoints is not None:
            checkpoints.wait()
        return outcome.steps < self._steps

    def _step(self, step: int, clock: Clock) -> Measured:
        sums: dict[str, Any] = {}
        share = 1.0 / self._accumulate
        for micro in range(self._accumulate):
            batch = _to(self._device, self._batches(step * self._accumulate + micro))
            clock.mark("dtd")
            with self._update.within(last=micro == self._accumulate - 1):
                computed = self._compute_loss(self._model, batch)
                loss, more = computed if isinstance(computed, tuple) else (computed, {})
                clock.mark("dtf")
                self._update.backward(loss, share)
                clock.mark("dtb")
            for name, value in {"loss": loss, **more}.items():
                part = _as_now(value, share)
                sums[name] = sums[name] + part if name in sums else part
        lr = float(self._optimizer.param_groups[0]["lr"])
        norm = self._update.step()
        if self._schedule is not None:
            self._schedule.step()
        names, values = to_host(sums if norm is None else {**sums, "grad_norm": norm})
        clock.mark("dto")
        return Measured(step, names, values, clock.stop(), lr)

    def _print_window(self, windows: Windows, evaluated: Mapping[str, float]) -> dict[str, float]:
        """Print a window's line with what was evaluated at its end, and return what of it no row has."""
        values = windows.close()
        shown = {name: value for name, value in evaluated.items() if not name.startswith("dt_")}
        self._reporting.log(line({**values, **shown}))
        return {name: values[name] for name in ("global_avg_loss", "global_max_loss")}

    def _between(self, step: int, request: int, rows: Steps | Epochs, history: History) -> dict[str, float]:
        """Evaluate and save where it is time; return what to record of it."""
        done = step + 1
        values: dict[str, float] = {}
        evaluation, saving = self._evaluation, self._saving
        if evaluation.compute is not None and evaluation.is_due(done, self._steps) and request != STOP:
            rows.record(wait=True)
            begin = perf_counter()
            values.update(evaluation.compute())
            self._model.train()
            values["dt_eval"] = perf_counter() - begin
        if request != NOTHING or saving.is_due(done, self._steps):
            rows.record(wait=True)
            begin = perf_counter()
            history.sync()
            saving.checkpoints.save(done, wait=request == STOP)
            values["dt_save"] = perf_counter() - begin
        return values


def _require_at_least(least: int, **numbers: int) -> None:
    for name, value in numbers.items():
        if value < least:
            raise UsageError(f"unusable {name}={value} (from Loop); expected a whole number of at least {least}.")


def _as_now(value: Any, share: float) -> Any:
    """Return a share of a 0-d tensor as it is now, whatever is done in place to it before the end of the step.

    On a CPU that is a number at once: a tensor more costs several times as much.
    """
    if share == 1.0 and value.device.type == "cpu" and not hasattr(value, "full_tensor"):
        return value.item()
    return value.detach() * share


def _to(device: Any, batch: Any) -> Any:
    """Return a batch on the device; from pinned memory, where the copy can run beside the computation."""
    if hasattr(batch, "to") and hasattr(batch, "device"):
        if batch.device == device or (batch.device.type == device.type and device.index is None):
            return batch
        if device.type == "cuda" and batch.device.type == "cpu":
            batch = batch.pin_memory()
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _to(device, value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to(device, value) for value in batch)
    return batch


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
    """

    step: int
    names: Sequence[str]
    values: Any
    times: Times
    lr: float

    def numbers(self) -> dict[str, float]:
        """Return names and values; call it when the times have been read."""
        values = self.values if isinstance(self.values, list) else self.values.tolist()
        return dict(zip(self.names, values, strict=True))


class Scale(NamedTuple):
    """What turns times into rates.

    Attributes:
        samples: Samples of one step on all ranks.
        world_size: Ranks.
        cost: What a sample costs.
        peak: FLOP/s of one device.
    """

    samples: int
    world_size: int
    cost: Cost | None
    peak: Peak | None

    def rates(self, seconds: float, steps: int = 1) -> dict[str, float]:
        """Return ``sps`` and so on for steps that took so long together."""
        return rates(steps * self.samples / seconds, self.world_size, self.cost, self.peak) if seconds > 0 else {}


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
    stacked = torch.stack([torch.as_tensor(one).to(device, torch.float32) for one in tensors])
    return tuple(values), stacked.to("cpu", non_blocking=True)


class Steps:
    """One row per step."""

    def __init__(
        self,
        history: History,
        scale: Scale,
        *,
        first: int,
        last: int,
        log_every: int,
        log: Callable[[str], object] | LaterLines,
        row: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Begin with no steps; every ``log_every``-th is printed, with 0 none is."""
        self.times: dict[str, list[float]] = {"dt": [], "dtf": [], "dtb": []}
        self._history = history
        self._scale = scale
        self._first, self._last = first, last
        self._log_every = log_every
        self._log = log
        self._row = row
        self._waiting: deque[tuple[Measured, dict[str, float]]] = deque()
        self._due = 0.0  # when to record next, of perf_counter
        self._warned = False

    def add(self, measured: Measured, between: dict[str, float]) -> None:
        """Take a step, and what to record of the pause behind it; now and then, record what has come."""
        self._waiting.append((measured, between))
        if "dt_save" in between:  # the checkpoint counts from here on: a resumed run would not do this step again
            self.record(wait=True)
        elif perf_counter() >= self._due or len(self._waiting) > _MOST_WAITING:
            self.record()
            self._due = perf_counter() + _RECORD_EVERY

    def record(self, *, wait: bool = False) -> None:
        """Record the rows whose numbers have come; all of them with ``wait``."""
        while self._waiting:
            measured, between = self._waiting[0]
            if not (wait or measured.times.ready() or len(self._waiting) > _MOST_WAITING):
                return
            self._waiting.popleft()
            self._record(measured, between)
        if wait and isinstance(self._log, LaterLines):
            self._log.write()  # what comes now may print by itself

    def _record(self, measured: Measured, between: dict[str, float]) -> None:
        step = measured.step
        times = measured.times.read()
        numbers = measured.numbers()
        norm = {"grad_norm": numbers.pop("grad_norm")} if "grad_norm" in numbers else {}
        row: dict[str, Any] = {"iter": step, **numbers, **times, **self._scale.rates(times["dt"])}
        row |= {**norm, "lr": measured.lr, **between}
        if step % _MEMORY_EVERY == 0 or step in {self._first, self._first + 1, self._last}:
            row["memory_gib"] = max_memory_allocated() / 2**30
        if self._row is not None:
            row = self._row(row)
        self._warn_of_loss(step, row)
        self._history.update(row, step=row.get("step", step), summarize=False)  # a trainer may count from 1
        if self._log_every and (step % self._log_every == 0 or step == self._last or between):
            self._print({name: value for name, value in row.items() if name not in _NOT_PRINTED})
        for name, values in self.times.items():
            values.append(row[name])

    def _print(self, values: dict[str, Any]) -> None:
        """Print a step's line: as it is now, where a value could change before a thread has formatted it."""
        if not isinstance(self._log, LaterLines):
            self._log(line(values))
            return
        text = "" if _FIXED.issuperset(map(type, values.values())) else line(values)
        self._log.put(lambda: text or line(values))

    def _warn_of_loss(self, step: int, row: Mapping[str, Any]) -> None:
        if not self._warned and not math.isfinite(row.get("loss", 0.0)):
            self._warned = True
            get_logger(__name__).warning(f"loss={row['loss']} at step {step}: the training continues, and is lost.")


class Epochs:
    """One row per ``every`` steps, with the mean loss of all of them on all ranks."""

    def __init__(self, history: History, scale: Scale, *, every: int, log: Callable[[str], object]) -> None:
        self.times: dict[str, list[float]] = {"dt": [], "dtf": [], "dtb": []}
        self._history = history
        self._scale = scale
        self._every = every
        self._log = log
        self._waiting: list[Measured] = []

    def add(self, measured: Measured, between: dict[str, float]) -> None:
        """Take a step; with the last one of an epoch, record its row."""
        self._waiting.append(measured)
        if (measured.step + 1) % self._every == 0:
            self._record(measured, between)

    def record(self, *, wait: bool = False) -> None:
        """Nothing: an epoch is recorded when it is over."""

    def _record(self, last: Measured, between: dict[str, float]) -> None:
        steps, self._waiting = self._waiting, []
        seconds = 0.0
        loss = 0.0
        for measured in steps:
            times = measured.times.read()
            seconds += times["dt"]
            loss += measured.numbers()["loss"]
            for name, values in self.times.items():
                values.append(times[name])
        epoch = (last.step + 1) // self._every
        row = {"epoch": epoch, "dt": seconds, "train_loss": all_reduce(loss / len(steps), "mean"), **between}
        row |= {**self._scale.rates(seconds, len(steps)), "lr": last.lr, "memory_gib": max_memory_allocated() / 2**30}
        self._history.update(row, step=epoch, summarize=False)
        self._log(line({name: value for name, value in row.items() if name not in _NOT_PRINTED_OF_EPOCHS}))


class Windows:
    """Gathers steps until their line is due: one per window of steps, with losses of all ranks.

        step=10 global_avg_loss=6.886052 global_max_loss=8.090250 throughput(tps)=268.175160 mfu(%)=4.711792
        end_to_end(s)=30.547199 data_loading(s)=0.007497 data_loading(%)=0.024541

    That takes two reductions of one number per window, and no collective in between. A window is the steps since the
    line before: the first one has one step, and each time is that of one of its steps, in seconds.
    """

    def __init__(self, every: int, scale: Scale, *, first: int, last: int) -> None:
        """Begin the first window.

        Args:
            every: Steps of a window; it ends where the number of steps done is a multiple of it.
            scale: What turns times into rates.
            first: The first step, which is a window of its own: it pays for all that is done once.
            last: The last one.
        """
        self._every, self._scale = every, scale
        self._ends = {first + 1, last + 1}
        self._steps: list[Measured] = []

    def add(self, measured: Measured) -> bool:
        """Take a step, and tell whether the window ends with it; the same on every rank."""
        self._steps.append(measured)
        done = measured.step + 1
        return done % self._every == 0 or done in self._ends

    def close(self) -> dict[str, float]:
        """End the window; all ranks call it. It waits for the device.

        Returns:
            The numbers of the line: the losses are the mean and the largest of all steps and ranks; the throughput is
            in tokens per second and device; without a known peak there is no ``mfu(%)``, without tokens no throughput.
        """
        steps, self._steps = self._steps, []
        losses = [measured.numbers()["loss"] for measured in steps]
        times = [measured.times.read() for measured in steps]
        seconds, data = (sum(each[part] for each in times) for part in ("dt", "dtd"))
        values = {
            "step": steps[-1].step + 1,
            "global_avg_loss": all_reduce(sum(losses) / len(losses), "mean"),
            "global_max_loss": all_reduce(max(losses), "max"),
        }
        rates = self._scale.rates(seconds, len(steps))
        for name, key in (("throughput(tps)", "tps_per_gpu"), ("mfu(%)", "mfu")):
            if key in rates:
                values[name] = rates[key]
        share = {"data_loading(%)": 100.0 * data / seconds} if seconds > 0 else {}
        return {**values, "end_to_end(s)": seconds / len(steps), "data_loading(s)": data / len(steps), **share}


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

    def step(self) -> Any:
        """Change the weights, forget the gradients, and return the gradients' norm; None where it was not computed."""


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


class _ByOptimizer:
    def __init__(self, model: Any, optimizer: Any, *, max_norm: float, scale: bool) -> None:
        import torch

        self._model = model
        self._parameters: list[Any] = []  # to walk through the modules in every step would cost as much as to clip
        self._optimizer = optimizer
        self._max_norm = max_norm
        self.scaler = torch.amp.GradScaler(get_torch_device_type()) if scale else None

    def within(self, *, last: bool) -> AbstractContextManager[None]:
        return accumulating(self._model, last=last)

    def backward(self, loss: torch.Tensor, share: float) -> None:
        weighted = loss if share == 1.0 else loss * share
        (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()

    def step(self) -> Any:
        norm = None
        if self.scaler is not None and self._max_norm:
            self.scaler.unscale_(self._optimizer)
        if self._max_norm:
            self._parameters = self._parameters or list(self._model.parameters())
            norm = clip_grad_norm_(self._parameters, self._max_norm)
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

    def backward(self, loss: torch.Tensor, share: float) -> None:  # noqa: ARG002  # the engine divides by itself
        self._engine.backward(loss)
        self._engine.step()

    def step(self) -> Any:
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
