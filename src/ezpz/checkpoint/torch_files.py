"""Write a file that `torch.load` reads, one tensor at a time: `torch.save` wants all of them in memory at once.

    archive/data.pkl     an OrderedDict of names to tensors, of which each names its storage
    archive/byteorder    little
    archive/data/0 …     the bytes of each storage; their place in the file is a multiple of 64
    archive/version      3

It is a zip file without compression. Source: "Serialized file format for torch.save" in torch's notes on
serialization, and the reductions in torch/_utils.py and torch/serialization.py (torch 2.13).
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _utils as rebuilding

from ezpz.checkpoint.safetensors_files import Weight, bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

__all__ = ["TorchFileWriter"]

_ALIGNMENT = 64
_HEADER, _PADDING, _ZIP64 = 30, 4, 20  # bytes of a local header, of a field of padding, and of one of 64-bit sizes
_KINDS = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


class _Storage(NamedTuple):
    """What the pickle says in the place of the bytes."""

    kind: str
    key: str
    numbers: int


class _Later:
    """A tensor whose bytes come later."""

    def __init__(self, key: str, weight: Weight) -> None:
        self.key, self.weight = key, weight


class _Pickler(pickle.Pickler):
    """Names storages where torch's own would keep them.

    Attributes:
        small: Tensors inside of values that are none, by the key of their storage.
    """

    def __init__(self, stream: IO[bytes], first: int) -> None:
        super().__init__(stream, protocol=2)
        self._first = first  # key of the first of them
        self.small: dict[str, torch.Tensor] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Storage):
            return None
        return "storage", getattr(torch, obj.kind), obj.key, "cpu", obj.numbers

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Later):
            return _reduced(obj.key, obj.weight.shape, obj.weight.dtype)
        if isinstance(obj, torch.Tensor):
            key = str(self._first + len(self.small))
            self.small[key] = obj.detach().cpu()
            return _reduced(key, tuple(obj.shape), str(obj.dtype).removeprefix("torch."))
        return NotImplemented


def _reduced(key: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the call, as a pickle has it, that makes a tensor of its storage."""
    strides: list[int] = []
    count = 1
    for size in reversed(shape):
        strides.insert(0, count)
        count *= size
    place: tuple[Any, ...] = (0, shape, tuple(strides), False, OrderedDict())
    if dtype in _KINDS:
        return rebuilding._rebuild_tensor_v2, (_Storage(_KINDS[dtype], key, count), *place)  # noqa: SLF001  # the format's own word
    kind = getattr(torch, dtype)
    storage = _Storage("UntypedStorage", key, count * kind.itemsize)
    return rebuilding._rebuild_tensor_v3, (storage, *place, kind)  # noqa: SLF001


class TorchFileWriter:
    """Writes tensors, which come one by one in the order of their names, into a file."""

    def __init__(self, file: IO[bytes], state: Mapping[str, Weight | Any]) -> None:
        """Write the beginning.

        Args:
            file: Open for writing, at its beginning.
            state: Shape and number format of each tensor by its name; for what is no tensor the plain value.
        """
        self._file, self._zip, self._next = file, zipfile.ZipFile(file, "w"), 0
        keys = {name: str(key) for key, name in enumerate(n for n, each in state.items() if isinstance(each, Weight))}
        stream = io.BytesIO()
        pickler = _Pickler(stream, len(keys))
        pickler.dump(
            OrderedDict((name, _Later(keys[name], each) if name in keys else each) for name, each in state.items())
        )
        self._small = pickler.small
        self._write("data.pkl", stream.getvalue())
        self._write("byteorder", sys.byteorder.encode())

    def put(self, tensor: torch.Tensor) -> None:
        """Write the next tensor, whole and on the CPU."""
        self._put(str(self._next), tensor)
        self._next += 1

    def finish(self) -> None:
        """Write the end; the file stays open."""
        for key, tensor in self._small.items():
            self._put(key, tensor)
        self._write("version", b"3\n")
        self._zip.close()

    def _put(self, key: str, tensor: torch.Tensor) -> None:
        self._write(f"data/{key}", bytes_of(tensor))

    def _write(self, name: str, data: bytes | memoryview) -> None:
        entry = zipfile.ZipInfo(f"archive/{name}")
        begin = self._file.tell() + _HEADER + len(entry.filename) + _PADDING + _ZIP64
        padding = -begin % _ALIGNMENT
        entry.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        with self._zip.open(entry, "w", force_zip64=True) as file:
            file.write(data)
