"""The training loop: accumulation, clipping, schedules, evaluation, metrics, checkpoints, and an end that loses nothing.

    loop = Loop(model, optimizer, compute_loss, batches, steps=1000, batch_size=8, max_norm=1.0, schedule=schedule)
    with ezpz.History("mine") as history:
        loop.run(history)

Every rank runs the same loop. It adds no collective and no wait for the device to a step: loss and accuracy are those of this
rank's part of the batch (the history has mean, minimum and maximum over ranks), they are copied to the host behind the step, and
a row is recorded once its numbers have come, of fast steps some rows at a time.
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
from ezpz.log import get_logger
from ezpz.progress import heartbeat
from ezpz.track.values import line
from ezpz.train.clock import make_clock
from ezpz.train.cost import rates
from ezpz.train.stopping import NOTHING, STOP, Wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    import torch

    from ezpz.dist.peaks import Peak
    from ezpz.track import History
    from ezpz.train.clock import Times
    from ezpz.train.cost import Cost


# From steps to rows of the history: one per step, or one per epoch, recorded as soon as a step's numbers have come.

_MOST = 64  # steps whose numbers may be on their way; then the oldest is waited for
# Rows of fast steps are recorded some at a time: alone, behind a step that has used the caches, each takes several times as long.
_PAUSE = 0.02  # seconds between two times
_MEMORY_EVERY = 100  # steps between two looks at the memory
# Recorded and drawn, but not on the line that people read.
_QUIET = {"dtd", "dto", "lr", "grad_norm", "memory_gib", "dt_eval", "dt_save"}
_QUIET_OF_EPOCHS = _QUIET | {"sps", "sps_per_gpu", "tps", "tps_per_gpu", "mfu"}


class Measured(NamedTuple):
    """One step, of which the device may still know more than the host.

    Attributes:
        step: Its number, from 0.
        names: What ``values`` are.
        values: One number each: a list, or a tensor that is being copied to the host and has come when ``times`` are ready.
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
    """Return names and numbers, read at once on a CPU, and elsewhere as a copy that nobody has waited for.

    Args:
        values: Name to 0-d tensor or number; tensors of any placement are read as this rank's.
    """
    import torch

    flat = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values.values()]
    tensors = [value.detach() if isinstance(value, torch.Tensor) else torch.tensor(float(value)) for value in flat]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tuple(values), [float(tensor) for tensor in tensors]
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    stacked = torch.stack([tensor.to(device, torch.float32) for tensor in tensors])
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
        log: Callable[[str], object],
        row: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
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
        """Take a step, and what was found between it and the next one; now and then, record what has come."""
        self._waiting.append((measured, between))
        if perf_counter() >= self._due or len(self._waiting) > _MOST:
            self.record()
            self._due = perf_counter() + _PAUSE

    def record(self, *, wait: bool = False) -> None:
        """Record the rows whose numbers have come; all of them with ``wait``."""
        while self._waiting:
            measured, between = self._waiting[0]
            if not (wait or measured.times.ready() or len(self._waiting) > _MOST):
                return
            self._waiting.popleft()
            self._record(measured, between)

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
        self._look_at(step, row)
        self._history.update(row, step=row.get("step", step), summarize=False)  # a trainer may count from 1
        if step % self._log_every == 0 or step == self._last or between:
            self._log(line({name: value for name, value in row.items() if name not in _QUIET}))
        for name, values in self.times.items():
            values.append(row[name])

    def _look_at(self, step: int, row: Mapping[str, Any]) -> None:
        if not self._warned and not math.isfinite(row.get("loss", 0.0)):
            self._warned = True
            get_logger(__name__).warning(f"loss={row['loss']} at step {step}: the training goes on, and is lost.")


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
        self._log(line({name: value for name, value in row.items() if name not in _QUIET_OF_EPOCHS}))


# One line per window of steps, with losses of all ranks: two reductions of one number, once per window, and no collective in between.
#
# step=10 global_avg_loss=6.886052 global_max_loss=8.090250 throughput(tps)=268.175160 mfu(%)=4.711792
# end_to_end(s)=30.547199 data_loading(s)=0.007497 data_loading(%)=0.024541
#
# A window is the steps since the line before: the first one has one step, and each time is that of one of its steps, in seconds.


class Windows:
    """Gathers steps until their line is due."""

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
            What the line tells: the losses are the mean and the largest of all steps and ranks; the throughput is in tokens per
            second and device; without a known peak there is no ``mfu(%)``, without tokens no throughput.
        """
        steps, self._steps = self._steps, []
        losses = [measured.numbers()["loss"] for measured in steps]
        times = [measured.times.read() for measured in steps]
        seconds, data = (sum(each[part] for each in times) for part in ("dt", "dtd"))
        told = {
            "step": steps[-1].step + 1,
            "global_avg_loss": all_reduce(sum(losses) / len(losses), "mean"),
            "global_max_loss": all_reduce(max(losses), "max"),
        }
        rates = self._scale.rates(seconds, len(steps))
        for name, key in (("throughput(tps)", "tps_per_gpu"), ("mfu(%)", "mfu")):
            if key in rates:
                told[name] = rates[key]
        share = {"data_loading(%)": 100.0 * data / seconds} if seconds > 0 else {}
        return {**told, "end_to_end(s)": seconds / len(steps), "data_loading(s)": data / len(steps), **share}


def text(told: Mapping[str, float], more: Mapping[str, float]) -> str:
    """Return the line of a window, and what was found by evaluating at its end."""
    return line({**told, **{name: value for name, value in more.items() if not name.startswith("dt_")}})


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
        from contextlib import nullcontext

        return nullcontext()

    def backward(self, loss: torch.Tensor, share: float) -> None:  # noqa: ARG002  # the engine divides by itself
        self._engine.backward(loss)
        self._engine.step()

    def step(self) -> Any:
        return None


# Python's garbage collection between steps instead of within them.
#
# It begins by itself after so many new objects, at another moment on every rank, and a rank that collects for 100 ms lets all
# others wait in the next collective. So it is switched off, and every rank collects at the same steps.

_YOUNG = 1  # generation: what has lived through a collection of new objects is left for the whole collection at the end


class Collecting:
    """A block in which garbage is collected every n steps; with 0 it is left to Python."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._was_on = False

    def __enter__(self) -> Collecting:  # noqa: PYI034  # `Self` needs Python 3.11
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


__all__ = ["Loop", "Measured", "Outcome", "Scale", "Steps"]


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


class Loop:
    """Trains a model for a number of steps."""

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
        """Say what to train, and how.

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
            window: Instead, print one line per so many steps, with losses of all ranks: see `ezpz.train.loop`.
            checkpoints: A `ezpz.checkpoint.Checkpoints`. With it SIGUSR2 saves, and SIGTERM saves and ends.
            save_every: Steps between two checkpoints, and one at the end; 0 means only at signals. Needs ``checkpoints``.
            save_seconds: Time between two checkpoints, also where no number of steps is set.
            start: Steps done already.
            resume: A checkpoint to load from ``checkpoints`` first, such as `ezpz.checkpoint.choose` found; it tells ``start``.
            sync_timing: Wait for the device after each part of each step: exact times per step, slower steps.
            gc_every: Collect Python's garbage every n steps on all ranks at once; 0 leaves it to Python.
            ended: Called after every step, such as a profiler's ``step``.
            row: Called with a step's row; returns what is to be recorded instead.
            log: Prints a line on rank 0; by default through the log.

        Raises:
            UsageError: A number is out of range, or the checkpoint is one of another model; on all ranks.
        """
        for name, value, least in (
            ("steps", steps, 0),
            ("batch_size", batch_size, 1),
            ("accumulate", accumulate, 1),
            ("log_every", log_every, 1),
        ):
            if value < least:
                raise UsageError(f"unusable {name}={value} (from Loop); expected a whole number of at least {least}.")
        self._model = model
        self._optimizer = optimizer
        self._compute_loss = compute_loss
        self._batches = batches
        self._steps = steps
        self._accumulate = accumulate
        self._schedule = schedule
        self._evaluate = evaluate
        self._eval_every = eval_every or epoch_steps or steps
        self._epoch_steps = epoch_steps
        self._log_every = log_every
        self._window = window
        self._checkpoints = checkpoints
        self._save_every = save_every if checkpoints is not None else 0
        self._save_seconds = save_seconds
        self._gc_every = gc_every
        self._ended = ended
        self._row = row
        self._log = log or get_logger("ezpz.train").info
        self._device = get_torch_device()
        self._update = make_update(model, optimizer, max_norm=max_norm, dtype=dtype)
        if checkpoints is not None and self._update.scaler is not None:
            checkpoints.include("loss scaler", self._update.scaler)
        self._start = checkpoints.load(resume) if resume is not None else start
        self._exact = sync_timing
        samples = batch_size * accumulate * degree(get_mesh(), "dp")
        self._scale = Scale(samples, get_world_size(), cost, peak_flops(cost.dtype) if cost is not None else None)

    def run(self, history: History) -> Outcome:
        """Train to the end, or until all ranks have agreed to stop.

        After a SIGTERM that was answered by a checkpoint the signal goes its way: the history completes its files and the
        process ends by it.

        Args:
            history: Where the rows go.
        """
        outcome = Outcome(self._start)
        begin = perf_counter()
        rows = self._rows(history)
        wishes = Wishes(self._save_seconds)
        with wishes if self._checkpoints is not None else nullcontext():
            self._model.train()
            try:
                stopped = self._train(rows, history, wishes, outcome)
            finally:  # whatever ends the training, what was measured before it is recorded
                rows.record()
        outcome.seconds = perf_counter() - begin
        outcome.times = rows.times
        if stopped or wishes.signal == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        return outcome

    def _rows(self, history: History) -> Steps | Epochs:
        if self._epoch_steps:
            return Epochs(history, self._scale, every=self._epoch_steps, log=self._log)
        ends = {"first": self._start, "last": self._steps - 1}
        log = self._log if not self._window else lambda _: None
        return Steps(history, self._scale, **ends, log_every=self._log_every, log=log, row=self._row)

    def _train(self, rows: Steps | Epochs, history: History, wishes: Wishes, outcome: Outcome) -> bool:
        """Do the steps; return whether they were stopped."""
        windows = Windows(self._window, self._scale, first=self._start, last=self._steps - 1) if self._window else None
        clock = make_clock(exact=self._exact)
        with Collecting(self._gc_every) as collecting:
            for step in range(self._start, self._steps):
                measured = self._step(step, clock)
                outcome.steps = step + 1
                heartbeat()
                wish = wishes.heard(step) if self._checkpoints is not None else NOTHING
                between = self._between(step, wish, rows, history)
                paused = bool(between)
                if windows is not None and windows.add(measured):
                    between |= self._tell(windows, between)
                rows.add(measured, between)
                if paused:  # a window's line is no pause: what it costs belongs to the time of the training
                    clock.skip()
                if self._ended is not None:
                    self._ended()
                if wish == STOP:
                    break
                collecting.step(step + 1)
        rows.record(wait=True)
        if self._checkpoints is not None:
            self._checkpoints.wait()
        return outcome.steps < self._steps

    def _step(self, step: int, clock: Any) -> Measured:
        sums: dict[str, Any] = {}
        share = 1.0 / self._accumulate
        for micro in range(self._accumulate):
            batch = _to(self._device, self._batches(step * self._accumulate + micro))
            clock.mark("dtd")
            with self._update.within(last=micro == self._accumulate - 1):
                loss, more = _pair(self._compute_loss(self._model, batch))
                clock.mark("dtf")
                self._update.backward(loss, share)
                clock.mark("dtb")
            for name, value in {"loss": loss, **more}.items():
                part = value.detach() * share
                sums[name] = sums[name] + part if name in sums else part
        lr = float(self._optimizer.param_groups[0]["lr"])
        norm = self._update.step()
        if self._schedule is not None:
            self._schedule.step()
        names, values = to_host(sums if norm is None else {**sums, "grad_norm": norm})
        clock.mark("dto")
        return Measured(step, names, values, clock.stop(), lr)

    def _tell(self, windows: Windows, found: Mapping[str, float]) -> dict[str, float]:
        """Print a window's line, and return what of it no row has."""
        told = windows.close()
        self._log(text(told, found))
        return {name: told[name] for name in ("global_avg_loss", "global_max_loss")}

    def _between(self, step: int, wish: int, rows: Steps | Epochs, history: History) -> dict[str, float]:
        """Evaluate and save where it is time; return what is to be told of it."""
        done = step + 1
        found: dict[str, float] = {}
        if self._evaluate is not None and (done % self._eval_every == 0 or done == self._steps) and wish != STOP:
            rows.record(wait=True)
            begin = perf_counter()
            found.update(self._evaluate())
            self._model.train()
            found["dt_eval"] = perf_counter() - begin
        if wish != NOTHING or (self._save_every and (done % self._save_every == 0 or done == self._steps)):
            rows.record(wait=True)
            begin = perf_counter()
            history.sync()
            self._checkpoints.save(done, wait=wish == STOP)
            found["dt_save"] = perf_counter() - begin
        return found


def _pair(told: Any) -> tuple[Any, Mapping[str, Any]]:
    return told if isinstance(told, tuple) else (told, {})


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
