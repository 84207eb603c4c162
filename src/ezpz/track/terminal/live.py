"""A run's numbers while it goes on, kept as arrays that grow: drawing them costs no walk over all rows."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from ezpz.track.names import is_counter
from ezpz.track.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.track.records import Row

__all__ = ["Live"]

_RECENT = 200  # rows of which the speed is told


class Live:
    """What the rows so far have recorded.

    Attributes:
        rows: Rows of metrics.
        step: Step of the last of them, or None.
        time: Its time, in epoch seconds.
        latest: Each metric's last number.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.step: int | None = None
        self.time = 0.0
        self.latest: dict[str, float] = {}
        self._columns: dict[str, tuple[array[float], array[float]]] = {}
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._attempt = 1

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows, as `ezpz.track.terminal.follow.Tail` returns them; kinds that hold no metrics are passed over."""
        for row in rows:
            if row["k"] not in {"", "late"}:
                continue
            if row["a"] != self._attempt:
                self._attempt = row["a"]
                self._cut(row["step"])
            if row["k"] == "":
                self.rows += 1
                self.step, self.time = row["step"], row["t"]
                self._times.append(row["t"])
            for key, value in row["m"].items():
                if type(value) in {float, int, bool} and not is_counter(key):
                    self._append(key, row["step"], value)

    def _append(self, key: str, step: int, value: float) -> None:
        if key not in self._columns:
            self._columns[key] = (array("d"), array("d"))
        try:
            number = float(value)
        except OverflowError:
            number = float("inf") if value > 0 else float("-inf")
        steps, values = self._columns[key]
        steps.append(step)
        values.append(number)
        self.latest[key] = number

    def _cut(self, step: int) -> None:
        """Drop what a run that was started again, from a checkpoint, records once more."""
        self._times.clear()
        for steps, values in self._columns.values():
            while steps and steps[-1] >= step:
                steps.pop()
                values.pop()

    def rate(self) -> float | None:
        """Return rows per second over the last rows, or None where two times are not known."""
        span = self._times[-1] - self._times[0] if self._times else 0.0
        return (len(self._times) - 1) / span if span > 0 else None

    def series(self) -> list[Series]:
        """Return what can be drawn, in the order in which metrics were first recorded."""
        import numpy as np

        result = []
        for key, (steps, values) in self._columns.items():
            x, y = np.array(steps), np.array(values)
            if (x[1:] < x[:-1]).any():
                order = np.argsort(x, kind="stable")
                x, y = x[order], y[order]
            result.append(Series(key, x, y))
        return result
