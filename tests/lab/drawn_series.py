"""A series as the plots take it, made from plain values."""

import numpy as np

from ezpz.track.series import Series


def series(values, steps=None):
    """Series "x" of the values, at the steps given or at 0, 1, 2, …."""
    values = np.array(values, dtype=float)
    return Series("x", np.arange(len(values), dtype=float) if steps is None else np.array(steps, dtype=float), values)
