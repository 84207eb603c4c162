"""Means over a whole data set that ranks share unequally."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.log import get_logger
from ezpz.progress import patience
from ezpz.train.counting import IGNORED, ignored_targets, read_computed
from ezpz.train.data.copying import moved
from ezpz.train.data.prepare import Loader
from ezpz.train.model_modes import kept_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from ezpz.train.counting import Computed

EVALUATION = 3600.0  # seconds without a heartbeat


def evaluate(
    model: Any,
    batches: Iterable[Any],
    compute: Callable[[Any, Any], Any],
    *,
    pick: Callable[[Any], Any] | None = None,
) -> dict[str, float]:
    """Return means over the samples of all ranks; every rank must call it.

    Each sample counts once, however many a rank has, so that the result does not depend on the number of ranks. A rank
    with fewer batches than others computes one of them again without counting it, because a sharded model needs all
    ranks in every forward pass. The sums of all ranks are added once, at the end.

    Args:
        model: Set to ``eval()`` meanwhile; each part has its own mode again behind that. All ranks use the first one's
            statistics of batch norms, as in checkpoints.
        batches: What `ezpz.prepare` returned, of which two or three batches are held at once. Or this rank's, perhaps
            none: tensors, or tuples, lists or dicts of them, whose first dimension counts samples. These are all held
            at once, where they are; where that is too much, let them be indices, and ``pick`` make the samples.
        pick: Called with each batch before ``compute``, such as indices; returns the samples, on any device.
        compute: What a `Loop` trains with: called with model and batch, returns the batch's mean loss, a 0-d tensor,
            which weighs as much as the batch has samples, or ``(sum, count)``, which weighs by its count; a mapping of
            further means may follow.

    Returns:
        ``loss`` and the further means; empty if no rank has a sample, or nothing counts. A perplexity is
        ``math.exp`` of the loss.
    """
    import torch

    from ezpz.dist import all_reduce, get_world_size
    from ezpz.dist.buffers import share_buffers
    from ezpz.dist.device import device as own_device

    share_buffers(model)
    device = own_device()
    exact = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
    found = _of_loader(batches) if isinstance(batches, Loader) else _of_all(batches)
    sums: dict[str, torch.Tensor] = {}
    number, is_partial = 0, False
    count = torch.zeros((), dtype=exact, device=device)
    if isinstance(batches, Loader):
        batches.bind(model)
    with patience("evaluation", EVALUATION), torch.no_grad(), kept_modes(model):
        model.eval()
        for number, (batch, samples) in enumerate(found):
            taken = moved(batch if pick is None else pick(batch), device)
            computed = read_computed(compute(model, taken), None if samples else 0)
            if not number:  # later ones are not looked at, as that would wait for the device
                is_partial = bool(samples) and computed.count is None and ignored_targets(taken)
            weight = _add(computed, samples, sums, exact)
            count += weight if samples else 0
    if not sums:
        return {}
    if is_partial and (number or get_world_size() > 1):
        _warn_of_ignored()
    *added, counted = all_reduce(torch.stack([*sums.values(), count])).tolist()
    if not counted:
        return {}
    return {name: total / counted for name, total in zip(sums, added, strict=True)}


@cache
def _warn_of_ignored() -> None:
    """Warn, once, of means over targets that are partly ignored."""
    get_logger(__name__).warning(
        f"the loss that is evaluated is a mean, and the first batch has ignored targets ({IGNORED}): a batch weighs as "
        "many samples as it has, however few of their tokens count. Return (sum, count) to weigh every token alike."
    )


def _of_loader(loader: Loader) -> Iterator[tuple[Any, int]]:
    """Yield the batches of an epoch as they come, and how many samples of each count.

    All ranks have equally many, so that nobody need know them all before the first.
    """
    for batch in loader:
        yield batch, loader.samples


def _of_all(batches: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Yield as many batches as the rank with the most has, and how many samples of each count: 0 of one lent."""
    mine = [batch for batch in batches if _samples(batch)]  # nothing has a mean of no samples
    turns, spare = _equal_turns(mine)
    for turn in range(turns):
        yield (mine[turn], _samples(mine[turn])) if turn < len(mine) else (spare, 0)


def _equal_turns(mine: list[Any]) -> tuple[int, Any]:
    """Return how many batches the rank with the most has, and one to compute where this rank has no more of its own."""
    import torch

    from ezpz.dist import all_reduce, broadcast, gather_objects

    most, least = all_reduce(torch.tensor([len(mine), -len(mine)]), "max").tolist()
    if most == 0 or least < 0:
        return most, mine[-1] if mine else None
    counts = gather_objects(len(mine))
    lent = broadcast(moved(mine[0], torch.device("cpu")) if mine else None, counts.index(most))
    return most, mine[-1] if mine else lent


def _add(computed: Computed, samples: int, sums: dict[str, Any], exact: Any) -> Any:
    """Add a batch's sums, in double precision, and return what they are over; with 0 samples, nothing."""
    weight = samples if computed.count is None or not samples else computed.count
    values = {"loss": computed.loss.detach().to(exact)}
    if computed.count is None:
        values["loss"] = values["loss"] * weight
    values |= {name: _exactly(value, computed.loss, exact) * weight for name, value in computed.more.items()}
    for name, value in values.items():
        part = value.reshape(()) if samples else value.new_zeros(())
        sums[name] = sums[name] + part if name in sums else part
    return weight


def _exactly(value: Any, beside: torch.Tensor, exact: Any) -> Any:
    """Return a metric, a 0-d tensor or a number, in double precision on the device of the loss."""
    if hasattr(value, "detach"):
        return value.detach().to(exact)
    return beside.detach().new_full((), float(value), dtype=exact)


def _samples(batch: Any) -> int:
    """Return the length of the first tensor of a batch, in whatever container it is.

    Raises:
        UsageError: There is none, or it is a single number.
    """
    inside = batch
    while inside is not None and not hasattr(inside, "shape"):
        inside = next(iter(_parts(inside)), None)
    if inside is None or not inside.shape:
        raise UsageError(
            f"no samples can be counted in a batch of type {type(batch).__name__} (from evaluate); expected tensors, "
            "or tuples, lists, dicts or dataclasses of them, whose first dimension counts samples."
        )
    return int(inside.shape[0])


def _parts(container: Any) -> Iterable[Any]:
    """Return what is in a container that batches are made of; nothing for another object, such as a text."""
    if isinstance(container, Mapping):  # also a tokenizer's BatchEncoding, which is no dict
        return container.values()
    if isinstance(container, (tuple, list)):
        return container
    return vars(container).values() if hasattr(container, "__dataclass_fields__") else ()
