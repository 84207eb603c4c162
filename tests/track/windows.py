"""Read the records of windows over ranks back as arrays, all of them and exactly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ezpz.track.values import decode

_EXTREMES = {"argmin", "argmax"}


class Window(NamedTuple):
    """Statistics of some steps over all ranks.

    Attributes:
        world: World size.
        every: 1 if ``ranks`` holds the values of every step, 0 if it holds one mean per rank.
        steps: int64 array of shape (n,), ascending.
        held: int64 array of shape (n,): the ranks whose rows of a step are in it.
        keys: Key to arrays by name: ``mean``, ``min``, ``max``, ``std`` float64 of shape (n,); ``argmin``, ``argmax``
            int64 of shape (n,), -1 where no rank recorded the key; ``ranks`` float64 of shape (world, n), or (world,
            1). What was not recorded is NaN.
    """

    world: int
    every: int
    steps: Any
    held: Any
    keys: dict[str, dict[str, Any]]


def unpack(m: dict[str, Any]) -> Window:
    """Return the window that a journal record of kind ``ranks`` holds.

    Args:
        m: The record's ``m``, as `ezpz.track.journal` reads it.

    Raises:
        KeyError: A part is missing.
        ValueError: A part is no list of numbers, or lists differ in length.
    """
    keys = {
        key: {
            name: _array(part, np.int64 if name in _EXTREMES else np.float64, -1 if name in _EXTREMES else np.nan)
            for name, part in parts.items()
        }
        for key, parts in m["keys"].items()
    }
    steps, held = (np.array(m[part], dtype=np.int64) for part in ("steps", "held"))
    return Window(int(m["world"]), int(m["every"]), steps, held, keys)


def _array(part: list[Any], dtype: Any, missing: float) -> Any:
    try:
        return np.array(part, dtype=dtype)
    except (TypeError, ValueError):  # nulls or NaN among the numbers
        return np.array([_number(item, missing) for item in part], dtype=dtype)


def _number(item: Any, missing: float) -> Any:
    if isinstance(item, list):
        return [_number(inner, missing) for inner in item]
    return missing if item is None else decode(item)
