"""Return the ``xarray.Dataset`` of a run without loading xarray before somebody touches it.

Loading xarray (with pandas) takes longer than all that ends a run without pictures, and most programs leave the
dataset alone. So they get a `LazyDataset`, which holds the bytes of the HDF5 file: the dataset is as it was at the end
of the run, whatever happens to the file afterwards. A program that has loaded xarray itself gets a plain Dataset.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ezpz.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def open_dataset(path: Path) -> Any:
    """Return an export as an ``xarray.Dataset`` that is in memory; the file is closed again."""
    with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
        return _read(file.read())


def dataset_of(image: bytes) -> Any:
    """Return an export as an ``xarray.Dataset``, or as what becomes one when it is touched.

    Args:
        image: What the HDF5 file holds; nothing for the empty dataset of a process that records nothing.
    """
    return _read(image) if "xarray" in sys.modules else LazyDataset(image)


def _read(image: bytes) -> Any:
    import xarray as xr

    if not image:
        return xr.Dataset()
    # From memory, so that neither a lock nor an open file stays behind: HDF5 refuses to replace what it has open.
    with xr.open_dataset(io.BytesIO(image), engine="h5netcdf", decode_times=False) as dataset:
        return dataset.load()


class LazyDataset:
    """An ``xarray.Dataset`` that is read when it is used for the first time.

    Everything goes to the real one: attributes, items, operators, ``repr``, ``isinstance``. Copies and pickles are real
    ones. Only ``type(dataset)`` tells the difference.

    Args:
        image: The bytes of a HDF5 file; none for an empty dataset.
    """

    __slots__ = ("__weakref__", "_dataset", "_image")
    __hash__ = None  # type: ignore[assignment]  # as of a Dataset; neither can it be reversed
    __reversed__ = None

    def __init__(self, image: bytes) -> None:
        object.__setattr__(self, "_image", image)
        object.__setattr__(self, "_dataset", None)

    def _load(self) -> Any:
        if self._dataset is None:
            object.__setattr__(self, "_dataset", _read(self._image))
            object.__setattr__(self, "_image", b"")
        return self._dataset

    @property  # type: ignore[misc]  # isinstance asks here
    def __class__(self) -> type:
        # Who has a class to compare with has loaded its module.
        return getattr(sys.modules.get("xarray"), "Dataset", LazyDataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._load(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._load(), name)


def _forward(name: str) -> Callable[..., Any]:
    def method(self: LazyDataset, *args: Any, **keywords: Any) -> Any:
        return getattr(self._load(), name)(*args, **keywords)

    method.__name__ = name
    return method


# Python looks for these at the class, and never asks `__getattr__`.
_BOTH_WAYS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_SPECIAL = (
    *("repr", "str", "format", "dir", "reduce", "reduce_ex", "copy", "deepcopy", "enter", "exit"),
    *("len", "bool", "iter", "contains", "getitem", "setitem", "delitem", "array", "array_ufunc"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "lshift", "rshift", "ilshift", "irshift"),
    *(f"{way}{name}" for name in _BOTH_WAYS for way in ("", "r", "i")),
)
for _name in _SPECIAL:
    setattr(LazyDataset, f"__{_name}__", _forward(f"__{_name}__"))
Mapping.register(LazyDataset)
