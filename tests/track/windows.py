"""Read the records of windows over ranks back as arrays, all of them and exactly."""

from typing import Any, NamedTuple

import numpy as np

from ezpz.track.values import decode

_EXTREMES = {"argmin", "argmax"}


class Window(NamedTuple):
    """Statistics of some steps over all ranks; what was not recorded is NaN, or -1 as the number of a rank."""

    world: int
    every: int
    steps: Any
    held: Any
    keys: dict[str, dict[str, Any]]


def unpack(m: dict[str, Any]) -> Window:
    """Return the window of a record of kind ``ranks``, of which `m` is what the journal gives."""
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
