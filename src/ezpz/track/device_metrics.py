"""Keep metrics on their device for a window of rows, and copy them to the host all at once."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.log import get_logger
from ezpz.track.values import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ezpz.track.values import Value


# Numbers off a device with as few waits as there are kinds of tensors.


def fetch(tensors: Sequence[Tensor]) -> list[float | int | bool]:
    """Return the numbers that tensors hold, with one copy to the host for each pair of device and dtype.

    ``tensor.item()`` waits for the device each time; here tensors of one kind are stacked where they lie and read
    together.

    Args:
        tensors: Tensors of one element each, of any device, dtype and shape.

    Returns:
        One number per tensor, in their order: an int for whole dtypes, a bool for bool, else a float. Nothing is
        rounded.

    Raises:
        RuntimeError: A tensor has more than one element, or no value to read (of the meta device).
    """
    import torch

    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(place)
    numbers: list[float | int | bool] = [0] * len(tensors)
    for places in kinds.values():
        scalars = [tensors[place].detach().reshape(()) for place in places]
        together = torch.stack(scalars).tolist() if len(scalars) > 1 else [scalars[0].item()]
        for place, number in zip(places, together, strict=True):
            numbers[place] = number
    return numbers


_SECONDS = 10.0  # slow steps fill a window slowly, and who watches wants to see a loss


class LateRow(NamedTuple):
    """A row of which a part was on a device.

    Attributes:
        step: Its step.
        known: What was known at once.
        came: What came from the device.
        weight: As given to `History.update`.
    """

    step: int
    known: Mapping[str, Value]
    came: dict[str, Value]
    weight: float | None


class WaitingRows:
    """Rows that wait for their values, in order; rows that follow one wait behind it."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._rows: list[tuple[int, Mapping[str, Value], dict[str, Any], float | None]] = []
        self._due = 0.0  # the first row's values are read at once
        self._failed = False

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, step: int, known: Mapping[str, Value], tensors: dict[str, Any], weight: float | None) -> bool:
        """Keep a row; True when it is time to `fetch`."""
        self._rows.append((step, known, tensors, weight))
        return len(self._rows) >= self._window or monotonic() >= self._due

    def fetch(self) -> list[LateRow]:
        """Return all rows, with one copy to the host for the numbers of each kind on each device."""
        rows, self._rows = self._rows, []
        self._due = monotonic() + _SECONDS
        try:
            return self._fetch(rows)
        # A device that was lost raises whatever its library raises; the rows' other values are on the disk.
        except Exception as error:  # noqa: BLE001
            if not self._failed:
                self._failed = True
                get_logger(__name__).warning(
                    f"cannot read metrics from the device, from step {rows[0][0]} on: {type(error).__name__}: {error}."
                )
            return [LateRow(step, known, {}, weight) for step, known, _, weight in rows]

    def _fetch(self, rows: list[Any]) -> list[LateRow]:

        single = [value for _, _, tensors, _ in rows for value in tensors.values() if value.ndim == 0]
        numbers = iter(fetch(single) if single else ())
        return [
            LateRow(
                step,
                known,
                {key: next(numbers) if value.ndim == 0 else plain({key: value})[key] for key, value in tensors.items()},
                weight,
            )
            for step, known, tensors, weight in rows
        ]
