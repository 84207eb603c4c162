"""The idx format of MNIST and its relatives, read with numpy.

    00 00 08 03                     magic: two zeros, 08 for unsigned bytes, 03 dimensions (2051; labels: 2049)
    00 00 ea 60 00 00 00 1c 00 00 00 1c    the sizes, big-endian: 60,000 x 28 x 28
    00 00 12 …                      the values, last dimension fastest

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", the page that published it.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> Any:
    """Return the values of an idx file, plain or compressed with gzip, as a numpy array of uint8.

    Args:
        path: The file.
        dimensions: How many it must have: 3 for images, 1 for labels.

    Raises:
        UsageError: It is no such file, or it is cut.
    """
    import numpy as np

    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(path, getattr(error, "strerror", None) or str(error), dimensions) from error
    head = 4 + 4 * dimensions
    magic = int.from_bytes(data[:4], "big")
    if magic != _UNSIGNED_BYTE << 8 | dimensions:
        raise _unusable(path, f"it begins with {magic}", dimensions)
    if len(data) < head:
        raise _unusable(path, f"it ends after {len(data)} bytes, inside its head", dimensions)
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise _unusable(path, f"it has {len(data)} bytes, where sizes {shape} need {expected}", dimensions)
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _unusable(path: Path, problem: str, dimensions: int) -> UsageError:
    magic = _UNSIGNED_BYTE << 8 | dimensions
    return UsageError(
        f"cannot read {path}: {problem} (from the file); expected idx data that begins with {magic} and has all its "
        "values. Delete the file and fetch it again."
    )
