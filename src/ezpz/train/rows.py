"""From steps to rows of the history: one per step, or one per epoch, recorded as soon as a step's numbers have come."""

from __future__ import annotations

import math
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist import all_reduce, max_memory_allocated
from ezpz.log import get_logger
from ezpz.track.values import line
from ezpz.train.cost import rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ezpz.dist.peaks import Peak
    from ezpz.track import History
    from ezpz.train.clock import Times
    from ezpz.train.cost import Cost

__all__ = ["Epochs", "Measured", "Scale", "Steps", "to_host"]

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
