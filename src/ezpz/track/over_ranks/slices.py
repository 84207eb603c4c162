r"""Cut one rank's rows into slices of some steps, and pack them into bytes.

    {"r":3,"u":200,"e":0,"l":0,"n":100,"k":["loss","lr"],"s":["lr"],"w":1}\n
    int64[n] steps, float64[n] weights if "w", float64[n] for each key, uint8[n] for each key of "s": 1 where it was
    recorded

``r`` is the rank, ``u`` the step before which nothing of it is missing, ``e`` 1 if the rank has ended, ``l`` how many
rows came too late for their window.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.values import Value

__all__ = ["ENDED", "NO_STEP", "Slice", "Slicer", "pack", "read_slice"]

ENDED = 1
NO_STEP = -(2**63)
_KINDS = {float, int, bool}
_NAN = float("nan")


class Slice(NamedTuple):
    """What one rank recorded over some steps.

    Attributes:
        rank: The rank.
        upto: It has no more rows of steps below this one; `NO_STEP` of a rank that has recorded none.
        end: 0 while the rank runs, else `ENDED`.
        late: Rows so far that were left out because their window had passed.
        steps: int64 array of shape (n,).
        weights: float64 array of shape (n,), NaN where none was given; None if none was.
        columns: Key to float64 values and a bool mask of shape (n,) that tells where it was recorded, None for
            everywhere.
    """

    rank: int
    upto: int
    end: int
    late: int
    steps: Any
    weights: Any
    columns: dict[str, tuple[Any, Any]]


class Slicer:
    """Cuts rows into slices, one per window of steps, as soon as a row of a later window has come.

    Attributes:
        upto: One more than the highest step so far.
        late: Rows that belonged to a window that had passed.
    """

    def __init__(self, rank: int, window: int) -> None:
        self._rank, self._window = rank, window
        self._rows: dict[int, tuple[dict[str, float], float | None]] = {}
        self._at: int | None = None  # the window that these rows are of
        self.upto = NO_STEP
        self.late = 0

    @property
    def waits(self) -> bool:
        """Whether there are rows that have not been returned yet."""
        return bool(self._rows)

    def add(self, step: int, values: Mapping[str, Value], weight: float | None) -> Slice | None:
        """Take one row; a step that comes again adds to its row.

        Returns:
            The window before this row's, if this row is the first of a later one.
        """
        at, full = step // self._window, None
        if self._at is None:
            self._at = at
        if at < self._at:
            self.late += 1
            return None
        if at > self._at:
            full = self.cut(at * self._window)
            self._at = at
        numbers = {key: _number(value) for key, value in values.items() if type(value) in _KINDS}
        self.upto = max(self.upto, step + 1)
        known = self._rows.get(step)
        if known is None:
            self._rows[step] = numbers, weight
        else:
            self._rows[step] = {**known[0], **numbers}, known[1] if weight is None else weight
        return full

    def cut(self, upto: int | None = None, end: int = 0) -> Slice:
        """Return the rows that have not been returned yet, also when there are none.

        Args:
            upto: What the slice says of itself; by default `upto`.
            end: What it says of the rank.
        """
        import numpy as np

        rows, self._rows = self._rows, {}
        steps = sorted(rows)
        weights = [rows[step][1] for step in steps]
        columns: dict[str, tuple[Any, Any]] = {}
        for key in dict.fromkeys(key for numbers, _ in rows.values() for key in numbers):
            values = [rows[step][0].get(key) for step in steps]
            mask = None if None not in values else np.array([value is not None for value in values])
            columns[key] = np.array([_NAN if value is None else value for value in values], dtype=np.float64), mask
        return Slice(
            self._rank,
            self.upto if upto is None else upto,
            end,
            self.late,
            np.array(steps, dtype=np.int64),
            None if weights.count(None) == len(weights) else np.array(weights, dtype=np.float64),
            columns,
        )


def _number(value: Value) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a bool, int or float, as the caller has seen
    except OverflowError:  # an int beyond the largest float
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]  # an int


def pack(piece: Slice) -> bytes:
    """Return a slice as bytes."""
    sparse = [key for key, (_, mask) in piece.columns.items() if mask is not None]
    head: dict[str, Any] = {"r": piece.rank, "u": piece.upto, "e": piece.end, "l": piece.late, "n": len(piece.steps)}
    head |= {"k": list(piece.columns), "s": sparse, "w": int(piece.weights is not None)}
    arrays = [piece.steps, *([] if piece.weights is None else [piece.weights])]
    arrays += [values for values, _ in piece.columns.values()]
    arrays += [piece.columns[key][1] for key in sparse]
    return b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *(array.tobytes() for array in arrays)])


def read_slice(data: bytes) -> Slice:
    """Return the slice that `pack` was given."""
    import numpy as np

    at = data.index(b"\n") + 1
    head = json.loads(data[:at])
    count = head["n"]

    def take(dtype: Any) -> Any:
        nonlocal at
        array = np.frombuffer(data, dtype, count, at)
        at += array.nbytes
        return array

    steps = take(np.int64)
    weights = take(np.float64) if head["w"] else None
    values = {key: take(np.float64) for key in head["k"]}
    masks = {key: take(np.bool_) for key in head["s"]}
    columns = {key: (array, masks.get(key)) for key, array in values.items()}
    return Slice(head["r"], head["u"], head["e"], head["l"], steps, weights, columns)
