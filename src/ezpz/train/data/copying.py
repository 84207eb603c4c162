"""Copy a batch to the device while the one before it is computed."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from copy import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ezpz.train.data.place import Batch


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a device; on CUDA each is copied on a stream of its own, one batch ahead.

    The next one is asked for before a batch is handed out, so that the copy runs beside the computation with it.
    """
    if device.type == "cpu":
        yield from batches
        return
    import torch

    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    ahead = None
    for each in batches:
        coming = _copied(each, device, side)
        if ahead is not None:
            yield _arrived(ahead, side)
        ahead = coming
    if ahead is not None:
        yield _arrived(ahead, side)


def _copied(each: Batch, device: torch.device, side: Any) -> tuple[Batch, Any]:
    """Begin to copy; return the batch, and what tells that it has come."""
    import torch

    if side is None:
        return each._replace(batch=moved(each.batch, device)), None
    with torch.cuda.stream(side):
        copy = each._replace(batch=moved(each.batch, device))
        event = torch.cuda.Event()
        event.record(side)
    return copy, event


def _arrived(coming: tuple[Batch, Any], side: Any) -> Batch:
    """Let the device's own stream wait for the copy, and keep its memory until that has used it."""
    import torch

    each, event = coming
    if side is not None:
        now = torch.cuda.current_stream(side.device)
        now.wait_event(event)
        _used_by(each.batch, now)
    return each


def _used_by(batch: Any, stream: Any) -> None:
    if hasattr(batch, "record_stream"):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _used_by(value, stream)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            _used_by(value, stream)
    elif _is_record(batch):
        for value in vars(batch).values():
            _used_by(value, stream)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch on a device; of containers their tensors, and what is no tensor as it is."""
    if hasattr(batch, "to"):
        # A container of a library, such as a tokenizer's BatchEncoding, has no device of its own.
        return _tensor_on(batch, device) if hasattr(batch, "device") else batch.to(device)
    if isinstance(batch, Mapping):
        values = {name: moved(value, device) for name, value in batch.items()}
        other = copy(batch) if isinstance(batch, MutableMapping) else {}  # of the same class, whatever it is made of
        other.update(values)
        return other
    if isinstance(batch, (tuple, list)):
        items = [moved(value, device) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if _is_record(batch):
        other = copy(batch)
        for name, value in vars(batch).items():
            object.__setattr__(other, name, moved(value, device))  # a frozen one, too
        return other
    return batch


def _is_record(value: Any) -> bool:
    """Tell whether a value is an instance of a dataclass with its fields in a dict, as all but those of slots have."""
    return hasattr(value, "__dataclass_fields__") and hasattr(value, "__dict__") and not isinstance(value, type)


def _tensor_on(tensor: Any, device: torch.device) -> Any:
    if tensor.device == device or (tensor.device.type == device.type and device.index is None):
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
