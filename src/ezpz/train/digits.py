"""Real input without a network: the handwritten digits of the UCI set, shipped with the package (see digits.md)."""

from __future__ import annotations

import gzip
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["load_digits"]


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all 1,797 digits.

    Returns:
        Images, ``(1797, 64)`` float32 from 0 to 1, pixels row by row; labels, ``(1797,)`` int64 from 0 to 9.
    """
    import numpy as np
    import torch

    packed = files("ezpz.train").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))
