"""Copy a batch to the device while the one before it is computed."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from copy import copy
from typing import TYPE_CHECKING, Any

from ezpz.dist.device import accelerator_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ezpz.train.data.place import Batch


class Copier:
    """Copies batches to a device; on CUDA on a stream of its own, beside the computation with the batch before."""

    def __init__(self, device: torch.device) -> None:
        """Take a device, ``cuda`` without a number being the current one."""
        self._device = device
        self._cuda = accelerator_module("cuda") if device.type == "cuda" else None
        self._side: Any = None

    @property
    def is_ahead(self) -> bool:
        """Whether `begin` returns while the copy is on its way, so that there is something to gain by it."""
        return self._cuda is not None

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Begin to copy a batch; return it, to be used when it has `arrived`, and what tells that it has."""
        if self._cuda is None:
            return moved(batch, self._device), None
        if self._side is None:
            self._side = self._cuda.Stream(self._device)
        # It waits for nothing that is queued: what comes from the host needs none of it.
        with self._cuda.stream(self._side):
            there = moved(batch, self._device)
            event = self._cuda.Event()
            event.record(self._side)
        return there, event

    def arrived(self, coming: tuple[Any, Any]) -> Any:
        """Return a batch, for which the device's own stream waits; its memory is kept until that has used it."""
        batch, event = coming
        if self._cuda is not None:
            now = self._cuda.current_stream(self._side.device)
            now.wait_event(event)
            _used_by(batch, now)
        return batch


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a device; on CUDA each is copied on a stream of its own, one batch ahead.

    The next one is asked for before a batch is handed out, so that the copy runs beside the computation with it.
    """
    if device.type == "cpu":
        yield from batches
        return
    copier = Copier(device)
    ahead = None
    for each in batches:
        coming = each, copier.begin(each.batch)
        if ahead is not None:
            yield ahead[0]._replace(batch=copier.arrived(ahead[1]))
        ahead = coming
    if ahead is not None:
        yield ahead[0]._replace(batch=copier.arrived(ahead[1]))


def _used_by(batch: Any, stream: Any) -> None:
    if hasattr(batch, "record_stream"):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):  # also a tokenizer's BatchEncoding
        for value in batch.values():
            _used_by(value, stream)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            _used_by(value, stream)
    elif _is_record(batch) or hasattr(batch, "to"):  # the latter: a class of the user's
        for value in getattr(batch, "__dict__", {}).values():
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


def rows_of(batch: Any) -> int:
    """Return the samples of a batch: the length of its first tensor, or of its list of other values; else 1."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    inside = batch.values() if isinstance(batch, Mapping) else vars(batch).values() if _is_record(batch) else batch
    if not isinstance(batch, (Mapping, tuple, list)) and not _is_record(batch):
        return 1
    first = next(iter(inside), None)
    if isinstance(batch, list) and not (hasattr(first, "shape") or isinstance(first, (tuple, list))):
        return len(batch)
    return rows_of(first)


def _is_record(value: Any) -> bool:
    """Tell whether a value is an instance of a dataclass with its fields in a dict, as all but those of slots have."""
    return hasattr(value, "__dataclass_fields__") and hasattr(value, "__dict__") and not isinstance(value, type)


def _tensor_on(tensor: Any, device: torch.device) -> Any:
    if tensor.device == device or (tensor.device.type == device.type and device.index is None):
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")  # the host would read what has not come yet
