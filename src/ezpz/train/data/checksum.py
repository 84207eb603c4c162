"""Sum up batches, so that two of them can be told apart later: `sum_of`, of what the host has.

A sum is a CRC-32 of the values. Of a tensor of more than 8 KiB it is taken over four pieces of 1 KiB, evenly spread:
some microseconds, however large the batch is. Nothing waits for a device: a batch that lies there already has no sum,
but for those of which it is known which samples they are (`ezpz.train.PickedBatches` and its like).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["Sum", "combined", "digest_of", "sum_of"]

_WHOLE = 8192  # bytes of a tensor that are summed up whole
_PIECES, _PIECE = 4, 1024  # of a larger one: how many pieces, and their bytes
_DEEPEST = 4  # containers in containers
_MOST_PARTS = 32  # tensors of a batch that are looked at

Sum = tuple[int, str]
"""The sum of a batch, of 32 bits, and its form: types and sizes of its tensors."""

_forms: dict[tuple[Any, Any], str] = {}  # how a type and a size are written


def sum_of(batch: Any, samples: Any = None) -> Sum | None:
    """Return the sum of a batch and its form, such as ``int64[8,128] int64[8,128]``; None where the host cannot know.

    Args:
        batch: Tensors, arrays, numbers and texts, or containers of them, not moved to a device yet.
        samples: Indices of its samples, on the host: what is summed up where the batch lies on a device.
    """
    if type(batch) is tuple or type(batch) is list:
        try:
            return _of_plain_tensors(batch)
        except (AttributeError, TypeError, RuntimeError, ValueError):
            pass  # there is something else among them
    parts: list[Any] = []
    _collect(batch, parts, _DEEPEST)
    by_index = samples is not None and any(map(_is_elsewhere, parts))
    try:
        return _summed([samples] if by_index else parts, "samples " if by_index else "")
    # A tensor may be of any class, with any idea of what it can do; the training goes on without its sum.
    except Exception:  # noqa: BLE001
        return None


def _of_plain_tensors(tensors: Sequence[Any]) -> Sum | None:
    """Do what `sum_of` does for contiguous tensors of the host, which nearly all batches are, in a third of the time.

    Raises:
        AttributeError, TypeError, RuntimeError, ValueError: There is something else among them.
    """
    total, forms = 0, []
    for tensor in tensors:
        data = tensor.numpy()
        if not data.flags.c_contiguous:
            raise ValueError("not contiguous")
        total = _crc(data, total)
        forms.append(_forms.get((tensor.dtype, tensor.shape)) or _form(tensor.dtype, tensor.shape))
    return (total, " ".join(forms)) if forms and len(forms) <= _MOST_PARTS else None


def _summed(parts: list[Any], head: str) -> Sum | None:
    total, forms = 0, []
    for part in parts:
        if hasattr(part, "untyped_storage"):
            if _is_elsewhere(part):
                return None
            data, form = _array_of(part)
        elif hasattr(part, "dtype"):
            data, form = memoryview(part.tobytes()), _form(part.dtype, part.shape)
        elif hasattr(part, "tobytes"):
            data, form = memoryview(part.tobytes()), type(part).__name__
        else:
            data, form = memoryview(repr(part).encode()), type(part).__name__
        total = _crc(data, total)
        forms.append(form)
    return (total, head + " ".join(forms)) if forms else None


def digest_of(sample: Any) -> int:
    """Return a number of what a sample holds, so that ranks can compare it; 0 where nothing of it can be summed up."""
    parts: list[Any] = []
    try:
        _collect(sample, parts, _DEEPEST)
        found = _summed(parts, "")
    except Exception:  # noqa: BLE001  # a sample may be anything, and this is only a comparison
        return 0
    return 0 if found is None else zlib.crc32(found[1].encode(), found[0]) or 1


def combined(one: Sum | None, two: Sum | None) -> Sum | None:
    """Return the sum of two batches of one step; None where one of them is not known."""
    if one is None or two is None:
        return None
    return zlib.crc32(one[0].to_bytes(4, "little") + two[0].to_bytes(4, "little")), one[1]


def _collect(batch: Any, parts: list[Any], depth: int) -> None:
    """Append the tensors, arrays, numbers and texts of a batch; what else it holds is no data."""
    if len(parts) >= _MOST_PARTS:
        return
    if getattr(getattr(batch, "dtype", None), "hasobject", False):  # the bytes of such an array are addresses
        _collect(batch.ravel()[:_MOST_PARTS].tolist(), parts, depth)
    elif isinstance(batch, (int, float, complex, str, bytes, bytearray)) or any(
        hasattr(batch, name) for name in ("dtype", "tobytes")
    ):
        parts.append(batch)
    elif depth and isinstance(batch, (tuple, list)):
        for each in batch:
            _collect(each, parts, depth - 1)
    elif depth and isinstance(batch, Mapping):
        for each in batch.values():
            _collect(each, parts, depth - 1)
    elif depth and hasattr(batch, "__dict__") and not callable(batch):  # a record, or a library's container
        for each in vars(batch).values():
            _collect(each, parts, depth - 1)


def _is_elsewhere(part: Any) -> bool:
    return hasattr(part, "untyped_storage") and part.device.type != "cpu"


def _array_of(tensor: torch.Tensor) -> tuple[Any, str]:
    """Return a tensor of the host as an array of numpy that shares its memory where possible, and its form."""
    form = _form(tensor.dtype, tensor.shape)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        form += "'"  # the same values in another order of memory have another sum
        size = tensor.numel() * tensor.element_size()
        if tensor.dim() and size > _WHOLE:  # a copy of all of it could take long
            tensor = tensor[:: max(1, size // (_PIECES * _PIECE))]
        tensor = tensor.contiguous()
    try:
        return tensor.numpy(), form
    except TypeError:  # of a type that numpy has not, such as bfloat16
        import torch

        return tensor.reshape(-1).view(torch.uint8).numpy(), form


def _form(dtype: Any, shape: Any) -> str:
    known = _forms.get((dtype, shape))
    if known is None:
        known = f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
        if len(_forms) < 1000:  # sizes that differ in every step would fill the memory
            _forms[dtype, shape] = known
    return known


def _crc(data: Any, total: int) -> int:
    """Go on with a sum over a contiguous array, or bytes."""
    size = data.nbytes
    if size <= _WHOLE:
        return zlib.crc32(data, total)
    flat = memoryview(data).cast("B")
    apart = (size - _PIECE) // (_PIECES - 1)
    for start in range(0, _PIECES * apart, apart):
        total = zlib.crc32(flat[start : start + _PIECE], total)
    return total
