"""Weigh losses by what they count, so that padding, ranks and micro-batches change no gradient.

A loss function returns a mean, or a sum and how many tokens or samples it is over. Of sums, one all-reduce beside the
last backward of a step tells every rank what all ranks counted; gradients are then divided by that, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

IGNORED = -100  # the target that torch's cross entropy leaves out


@dataclass(frozen=True)
class Weighed:
    """A batch, and how many of its samples count: 0 for one that counts for nothing.

    Where one batch of a step is weighed, all of that step are, on every rank.
    """

    batch: Any
    samples: float


class Computed(NamedTuple):
    """What a loss function returned.

    Attributes:
        loss: A 0-d tensor: a mean, or with ``count`` a sum.
        count: How many tokens or samples the sum is over, an int or a 0-d integer tensor; None for a mean.
        more: Further means to record, numbers or 0-d tensors.
    """

    loss: Any
    count: Any
    more: Mapping[str, Any]


def read_computed(computed: Any, samples: float | None = None) -> Computed:
    """Return what a loss function returned, in one form.

    Args:
        computed: A mean, ``(mean, more)``, ``(sum, count)`` or ``(sum, count, more)``.
        samples: How many samples of the batch count, where that is known: a mean becomes a sum over them, and a sum
            over a batch that does not count becomes 0.

    Raises:
        UsageError: It is something else.
    """
    parts = list(computed) if isinstance(computed, tuple) else [computed]
    more: Any = parts.pop() if len(parts) > 1 and isinstance(parts[-1], Mapping) else {}
    if not 1 <= len(parts) <= 2 or not hasattr(parts[0], "backward") or (len(parts) == 2 and not _is_count(parts[1])):
        raise _unusable(parts, more)
    loss, count = parts[0], parts[1] if len(parts) == 2 else None
    if hasattr(loss, "full_tensor"):  # under loss_parallel
        loss = loss.full_tensor()
    if samples is None:
        return Computed(loss, count, more)
    if count is None:
        return Computed(loss * samples, samples, more)
    return Computed(loss if samples else loss * 0, count if samples else 0, more)


def as_sum(computed: Computed, samples: int) -> Computed:
    """Return a mean as the sum over so many samples, to be recorded; it takes no part in the backward."""
    return Computed(_now(computed.loss) * samples, samples, computed.more)


def _is_count(value: Any) -> bool:
    """Tell whether a value is a whole number, or an integer tensor of one: an accuracy of 1.0 is no count."""
    kind = type(value)
    if kind is int:
        return True
    if not hasattr(value, "dtype"):  # True is an int to Python
        return isinstance(value, int) and kind is not bool
    return getattr(value, "size", None) is not None and _numbers_in(value) == 1 and _is_whole(value.dtype)


def _numbers_in(value: Any) -> int:
    return int(value.numel() if hasattr(value, "numel") else value.size)


def _is_whole(dtype: Any) -> bool:
    """Tell whether a type of torch or numpy holds whole numbers."""
    return "int" in str(dtype)


def _unusable(parts: list[Any], more: Any) -> UsageError:
    shown = ", ".join(map(_described, parts)) + (", and a mapping" if more else "")
    inside = [hasattr(each, "loss") for each in parts if hasattr(_loss_in(each), "backward")]
    if inside:  # an output of transformers, or a dict as Lightning takes it
        name = "output.loss" if inside[0] else 'output["loss"]'
        return UsageError(
            f"unusable loss ({shown}; from compute_loss): the loss is inside of it; expected the loss itself, a 0-d "
            f'tensor. Return `{name}`; metrics may follow: `{name}, {{"accuracy": accuracy}}`.'
        )
    if len(parts) == 2 and hasattr(parts[0], "backward"):
        return UsageError(
            f"unusable count ({shown}; from compute_loss): what follows the sum of the losses is how many tokens or "
            "samples it is over; expected an int or an integer tensor. For a metric such as an accuracy return "
            '`loss, {"accuracy": accuracy}`; for a count of floats `mask.sum().long()`.'
        )
    return UsageError(
        f"unusable loss ({shown}; from compute_loss); expected a mean, (mean, metrics), (sum, count) or "
        "(sum, count, metrics): the loss a 0-d tensor, the count an int, metrics a dict."
    )


def _loss_in(value: Any) -> Any:
    return value.get("loss") if isinstance(value, Mapping) else getattr(value, "loss", None)


def _described(value: Any) -> str:
    """Return the type of a value, of a tensor its format and shape, and a number itself."""
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    return type(value).__name__


class Totals(NamedTuple):
    """What all ranks counted in a step.

    Attributes:
        factor: What makes gradients of this rank's sums, averaged over ranks, those of the mean over all that counts;
            a number, or a 0-d tensor on the device.
        means: What to record: means over all that counts.
        count: How much that is, on all ranks.
        mine: This rank's mean loss; that of all ranks where this one counted nothing.
    """

    factor: Any
    means: dict[str, Any]
    count: Any
    mine: Any


class Tally:
    """Sums of one step: added per micro-batch, exchanged beside the last backward, read after it."""

    def __init__(self, *, averages: bool) -> None:
        """Begin with nothing.

        Args:
            averages: Gradients are averaged over ranks, so that counts of all ranks matter.
        """
        self._averages = averages
        self._sums: dict[str, Any] = {}  # the count first
        self._both: Any = None  # the sums of this rank, then to be those of all
        self._finish: Callable[[], Any] | None = None

    def add(self, computed: Computed) -> None:
        """Add a micro-batch, as it is now: what is done in place to its tensors later changes nothing."""
        count = _now(computed.count)
        values = {"loss": _now(computed.loss)}
        values |= {name: _now(value) * count for name, value in computed.more.items()}
        if isinstance(count, float) and not count:  # what does not count may be no number
            values = {name: _zero(value) for name, value in values.items()}
        for name, value in {"": count, **values}.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def count(self) -> float | None:
        """Return what this rank has counted; None where only the device knows."""
        count = self._sums[""]
        return count if isinstance(count, float) else None

    def exchange(self) -> None:
        """Begin to add up the sums of all ranks; every rank calls it, before its last backward."""
        import torch

        from ezpz.dist.collectives import begin_sum

        flat = list(self._sums.values())
        device = next((each.device for each in flat if isinstance(each, torch.Tensor)), None)
        if device is None:
            self._both = torch.tensor(flat, dtype=torch.float64)
        else:
            self._both = torch.stack([on_device(each, device) for each in flat])
        if self._averages:
            self._finish = begin_sum(self._both)

    def read(self) -> Totals:
        """Return the totals; on a CPU it waits for them."""
        ranks = 1
        both = self._both
        if self._finish is not None:
            both, ranks = self._finish()
        names = [name for name in self._sums if name]
        if both.device.type == "cpu":
            total, *sums = both.tolist()
            means = {name: value / total if total else 0.0 for name, value in zip(names, sums, strict=True)}
            own, count = float(self._sums["loss"]), float(self._sums[""])
            return Totals(ranks / total if total else 0.0, means, total, own / count if count else means["loss"])
        return self._read_device(both, names, ranks)

    def _read_device(self, both: Any, names: list[str], ranks: int) -> Totals:
        import torch

        total = both[0]
        inverse = torch.where(total > 0, 1.0 / total, torch.zeros_like(total))
        means = dict(zip(names, (both[1:] * inverse).unbind(), strict=True))
        own, count = (on_device(self._sums[name], both.device) for name in ("loss", ""))
        return Totals(ranks * inverse, means, total, torch.where(count > 0, own / count, means["loss"]))


def _now(value: Any) -> Any:
    """Return a number, or a tensor's value: on a CPU a number, elsewhere a copy that waits for nothing."""
    if not hasattr(value, "detach"):
        return float(value)
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value.item() * 1.0 if value.device.type == "cpu" else value.detach().float().clone().reshape(())


def on_device(value: Any, device: torch.device) -> torch.Tensor:
    """Return a number or a 0-d tensor in float32 on a device, without waiting for the device.

    A number is filled in there: ``torch.as_tensor(number, device=…)`` would copy it from pageable memory of the host,
    and CUDA answers such a copy only when all work queued before it is done.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device, torch.float32, non_blocking=True)
    return torch.full((), float(value), dtype=torch.float32, device=device)


def _zero(value: Any) -> Any:
    return 0.0 if isinstance(value, float) else value.new_zeros(())


def nominal_count(count: Any, *, averages: bool) -> float:
    """Return a power of two near the mean count of a micro-batch of all ranks: every rank calls it at the same place.

    float16 has no room for the gradients of a sum; divided by this, they are about those of a mean.
    """
    import math

    from ezpz.dist import all_reduce

    mine = float(count)
    mean = all_reduce(mine, "mean") if averages else mine
    return 2.0 ** round(math.log2(mean)) if mean > 0 else 1.0


def ignored_targets(batch: Any) -> bool:
    """Tell whether a batch has targets that torch's cross entropy leaves out; it waits for the device."""
    if isinstance(batch, Mapping):
        return any(map(ignored_targets, batch.values()))
    if isinstance(batch, (tuple, list)):
        return any(map(ignored_targets, batch))
    if hasattr(batch, "__dataclass_fields__") and hasattr(batch, "__dict__"):
        return any(map(ignored_targets, vars(batch).values()))
    if not hasattr(batch, "is_floating_point") or batch.is_floating_point() or batch.is_complex() or not batch.numel():
        return False
    return batch.element_size() > 1 and int(batch.min()) == IGNORED
